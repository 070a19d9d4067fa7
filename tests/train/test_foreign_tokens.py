"""Data of another tokenizer, or with other ends of documents, is refused before anything is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from preheat.data.manifest import TokenizerUsed
from preheat.errors import PreheatError
from preheat.recipe import load
from preheat.train.refusals import refuse_foreign_tokens


def manifest(vocab_size: int = 50_257, eod_name: str = "<|endoftext|>", bos_name: str | None = None) -> Any:
    return SimpleNamespace(tokenizer=TokenizerUsed("gpt2", "tokenizer.json", vocab_size, 50_256, "", None, eod_name, bos_name))


@pytest.mark.parametrize(
    ("sets", "data", "message"),
    [
        ((), {"vocab_size": 60_000}, r"60_000 entries; model\.vocab_size is 50_257"),
        (('tokenizer.eod="<|endoftext|>"',), {"eod_name": "</s>"}, r"end with </s> \(50256\); tokenizer\.eod is <\|endoftext\|>"),
        (('tokenizer.bos="<s>"',), {}, r"begin with no token of their own; tokenizer\.bos is <s>"),
        ((), {"bos_name": "<s>"}, r"begin with <s>; tokenizer\.bos is absent"),
    ],
)
def test_refused(sets: tuple[str, ...], data: dict[str, Any], message: str) -> None:
    recipe = load("toy-124m", sets).recipe
    with pytest.raises(PreheatError, match=message):
        refuse_foreign_tokens(recipe, manifest(**data))


def test_data_of_the_recipe_is_taken() -> None:
    refuse_foreign_tokens(load("toy-124m").recipe, manifest())
    refuse_foreign_tokens(load("toy-124m", ('tokenizer.eod="<|endoftext|>"', 'tokenizer.bos="<s>"')).recipe, manifest(bos_name="<s>"))
