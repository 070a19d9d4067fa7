"""A look at prepared documents: what training will really see, decoded from the ids on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from preheat.data.indexed import Ids, IndexedDataset
from preheat.data.manifest import Manifest
from preheat.data.shards import Shards, opened
from preheat.data.statistics import labels
from preheat.data.tokenizer import Tokenizer

Side = Literal["train", "held_out"]


@dataclass(frozen=True)
class Shown:
    """A document of a prepared source; `ids` end with the end of the document, `text` does not show it.

    `pieces` are the texts of the single ids; one that is a part of a character shows as U+FFFD.
    """

    id: str
    ids: tuple[int, ...]
    text: str
    pieces: tuple[str, ...]


def documents(folder: Path, source: str, *, split: Side = "train", first: int = 1, last: int = 0) -> list[Shown]:
    """The first and the last documents of one side of a prepared source.

    Raises:
        PreheatError: the folder is no prepared data or has no such source.
    """
    dataset = _dataset(folder, source, split)
    return _shown(folder, source, split, [n for n in range(len(dataset)) if n < first or n >= len(dataset) - last])


def sample(folder: Path, source: str, count: int, *, split: Side = "train", seed: int = 1) -> list[Shown]:
    """Documents of one side of a source at random; the same ones for the same seed.

    Raises:
        PreheatError: the folder is no prepared data or has no such source.
    """
    total = len(_dataset(folder, source, split))
    drawn = sorted(range(total), key=lambda n: hashlib.sha256(f"{seed}/{source}/{n}".encode()).digest())[:count]
    return _shown(folder, source, split, drawn)


def held_out_tokens(manifest: Manifest, folder: Path) -> dict[str, Ids]:
    """Source -> the token ids of its held-out documents back to back, each ended by the end-of-document token."""
    return {source.name: IndexedDataset(folder / source.held_out.prefix).tokens for source in manifest.sources}


def _dataset(folder: Path, source: str, split: Side) -> Shards:
    return opened(folder, getattr(Manifest.load(folder).source(source), split))


def _shown(folder: Path, source: str, split: Side, numbers: Sequence[int]) -> list[Shown]:
    dataset, names, tokenizer = _dataset(folder, source, split), labels(folder, source, split), Tokenizer.load(folder)
    out = []
    for number in numbers:
        ids = dataset.document(number).tolist()
        text = tokenizer.decode(ids[:-1] if ids[-1] == tokenizer.eod else ids)
        out.append(Shown(names[number], tuple(ids), text, tuple(map(tokenizer.piece, ids))))
    return out
