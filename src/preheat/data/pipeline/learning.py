"""The step that gives the tokenizer: learned from the training text, or read from its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from preheat.data import tokenizer as tokenizers
from preheat.data.pipeline.assigning import TRAIN
from preheat.data.pipeline.duplicates import EXACT, by_key, documents
from preheat.data.pipeline.paragraphs import Remaining, settled, sides
from preheat.data.pipeline.plan import Plan, fingerprint
from preheat.data.pipeline.tasks import Context, Reference, Stage
from preheat.disk import sha256


def _tokenizer(context: Context, number: int, folder: Path) -> None:
    """The tokenizer that the recipe asks for."""
    plan = context.plan
    built = tokenizers.build(plan.tokenizer, plan.vocab_size, folder=Path(plan.folder), texts=_to_learn_from(context))
    built.save(folder)


def _to_learn_from(context: Context) -> Iterator[str]:
    """Training documents for a tokenizer, in an order that mixes the sources evenly and does not depend on file names."""
    keys, remaining = documents(context, "key"), Remaining(context)
    training = np.flatnonzero(sides(context) == TRAIN)
    for document in training[by_key(keys[training])].tolist():
        yield remaining.text(document)
    remaining.close()


def _tokenizer_settings(context: Context, number: int) -> object:
    """The recipe's words, and the content of the files that they name."""
    plan = context.plan
    return [plan.tokenizer.model_dump(mode="json"), plan.vocab_size, tokenizer_content(plan.tokenizer, Path(plan.folder))]


def tokenizer_content(tokenizer: object, folder: Path) -> str:
    """A hash of the content of the tokenizer's file or folder, or nothing if it has none."""
    path = getattr(tokenizer, "path", None)
    if path is None:
        return ""
    files = sorted((folder / path).iterdir()) if (folder / path).is_dir() else [folder / path]
    return fingerprint([[file.name, sha256(file)] for file in files if file.is_file()])


def _tokenizer_needs(plan: Plan, number: int) -> list[Reference]:
    return [(EXACT.name, 0), *settled(plan, range(len(plan.shards)))] if plan.tokenizer.kind == "train-bpe" else []


TOKENIZER = Stage("tokenizer", lambda plan: 1, _tokenizer, _tokenizer_settings, _tokenizer_needs)
