"""The tokenizer as files that `transformers` loads."""

from __future__ import annotations

import json
from pathlib import Path

from preheat.data import Tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Write `tokenizer.json` as it was trained with, and `tokenizer_config.json`. A document's end ends a text, and begins it unless
    documents have a beginning of their own.
    """
    end = tokenizer.decode([tokenizer.eod])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.decode([tokenizer.start]),
        "eos_token": end,
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(tokenizer.content, "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")
