"""A look at prepared documents: what training will really see, decoded from the ids on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from preheat.data.indexed import Ids, IndexedDataset
from preheat.data.manifest import Manifest
from preheat.data.prepare import DOCUMENTS
from preheat.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Shown:
    """A document of a prepared source; `ids` end with the end of the document, `text` does not show it."""

    id: str
    ids: tuple[int, ...]
    text: str


def documents(folder: Path, source: str, *, split: Literal["train", "held_out"] = "train", first: int = 1, last: int = 0) -> list[Shown]:
    """The first and the last documents of one side of a prepared source.

    Raises:
        PreheatError: the folder is no prepared data or has no such source.
    """
    manifest = Manifest.load(folder)
    side = getattr(manifest.source(source), split)
    tokenizer = Tokenizer.load(folder)
    dataset = IndexedDataset(folder / side.prefix)
    with (folder / DOCUMENTS).open(encoding="utf-8") as stream:
        labels = [row["id"] for row in map(json.loads, stream) if (row["source"], row["split"]) == (source, split)]
    numbers = [number for number in range(len(dataset)) if number < first or number >= len(dataset) - last]
    return [_shown(labels[number], dataset.document(number).tolist(), tokenizer) for number in numbers]


def held_out_tokens(manifest: Manifest, folder: Path) -> dict[str, Ids]:
    """Source -> the token ids of its held-out documents back to back, each ended by the end-of-document token."""
    return {source.name: IndexedDataset(folder / source.held_out.prefix).tokens for source in manifest.sources}


def _shown(label: str, ids: list[int], tokenizer: Tokenizer) -> Shown:
    return Shown(label, tuple(ids), tokenizer.decode(ids[:-1] if ids[-1] == tokenizer.eod else ids))
