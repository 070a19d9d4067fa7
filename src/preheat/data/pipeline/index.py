"""What earlier preparations kept: the documents of prepared folders, found again by the index that each of these folders holds.

The index is `index.npy`, a row of `DTYPE` for each line of `documents.jsonl`, and `index_bands.npy`, the MinHash bands of the same
documents, shape (64, documents). Their texts are their token ids, decoded.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preheat import recipe
from preheat.data import dedup, split
from preheat.data.dedup.grams import Hashes
from preheat.data.manifest import Index, Manifest, entry_of
from preheat.data.pipeline.plan import RULES_VERSION
from preheat.data.shards import Shards, opened
from preheat.data.tokenizer import Tokenizer
from preheat.errors import refuse

ROWS, BAND_FILE, LINES = "index.npy", "index_bands.npy", "documents.jsonl"
DTYPE = np.dtype([("key", "<u8", (4,)), ("position", "<u8"), ("characters", "<u8"), ("bytes", "<u8")])
"""What is kept in memory of each document, in single tasks of a step: a row of this, 56 bytes, and a few numbers more."""


def rows_of(texts: Sequence[str]) -> npt.NDArray[np.void]:
    """Key, held-out position and sizes of each text."""
    keys = [dedup.key(text) for text in texts]
    rows = [(np.frombuffer(key, "<u8"), split.position(key), len(text), len(text.encode())) for key, text in zip(keys, texts, strict=True)]
    return np.array(rows, DTYPE)


def index_of(data: recipe.Dedup) -> Index:
    """By what the index of a folder that is prepared now is made."""
    return Index(RULES_VERSION, dedup.SIGNATURE if data.near else None)


def against(data: recipe.Dedup, folder: Path) -> Mapping[str, str]:
    """The prepared folders whose documents are not to come again -> their fingerprints; relative names start at `folder`.

    Raises:
        PreheatError: one is no prepared folder, is damaged, or its index cannot be compared with the present documents.
    """
    out = {}
    for name in data.against:
        place = folder / name
        manifest = Manifest.load(place)
        _refuse_other_index(data, name, manifest.index, place)
        for file in (ROWS, BAND_FILE) if data.near else (ROWS,):
            if entry_of(place / file) != manifest.files[file]:
                refuse("data.damaged", "the content changed", "it has another checksum", "Prepare that folder again", file=place / file)
        out[name] = manifest.fingerprint
    return out


def _refuse_other_index(data: recipe.Dedup, name: str, index: Index | None, place: Path) -> None:
    """Refuse a folder whose documents cannot be compared with those that are prepared now."""
    fix, key = "Prepare that folder again, with this version", "data.dedup.against"
    if index is None:
        want = "folders that `preheat data prepare` of this version makes have one"
        refuse("data.against", f"{name} holds no index of its documents", want, fix, key=key, file=place)
    if index.rules != RULES_VERSION:
        want = f"this version prepares by rules {RULES_VERSION}"
        refuse("data.against", f"{name} was prepared by rules {index.rules}", want, fix, key=key, file=place)
    if data.near and index.signature != dedup.SIGNATURE:
        said = "no MinHash bands (near = false)" if index.signature is None else f"MinHash bands of the kind {index.signature}"
        fix = "Prepare that folder again with near = true, or compare only equal texts: near = false"
        refuse("data.against", f"{name} holds {said}", f"those of this recipe are {dedup.SIGNATURE}", fix, key=key, file=place)


class Earlier:
    """The documents that prepared folders kept, by their number: those of the first folder come first."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._names = names
        self._places = [folder / name for name in names]
        manifests = [Manifest.load(place) for place in self._places]
        self.identity = [[name, manifest.fingerprint] for name, manifest in zip(names, manifests, strict=True)]
        self._bos = [manifest.tokenizer.bos is not None for manifest in manifests]
        self._sides = [(i, side) for i, m in enumerate(manifests) for source in m.sources for side in (source.train, source.held_out)]
        self._side_firsts = list(accumulate((side.documents for _, side in self._sides), initial=0))
        sizes = [sum(side.documents for own, side in self._sides if own == i) for i in range(len(names))]
        self._firsts = list(accumulate(sizes, initial=0))
        # Opened when they are needed, and then once.
        self._shards, self._rows = cache(self._open), cache(_rows)
        self._tokenizer, self._starts = cache(Tokenizer.load), cache(_line_starts)

    def __len__(self) -> int:
        return self._firsts[-1]

    def rows(self) -> npt.NDArray[np.void]:
        """A row of `DTYPE` for each document."""
        return np.concatenate([np.zeros(0, DTYPE), *map(_rows, self._places)])

    def column(self, field: str) -> npt.NDArray[Any]:
        """One field of `DTYPE` of each document."""
        return np.concatenate([np.zeros((0, *DTYPE[field].shape), DTYPE[field].base), *(_rows(place)[field] for place in self._places)])

    def band(self, number: int) -> Hashes:
        """One band of all documents, shape (documents,)."""
        return np.concatenate([np.zeros(0, np.uint64), *(self._bands(i)[number] for i in range(len(self._places)))])

    def text(self, number: int) -> str:
        """The text of a document.

        Raises:
            PreheatError: its ids are not those of the text that was prepared.
        """
        side = bisect_right(self._side_firsts, number) - 1
        folder, own = self._sides[side]
        ids = self._shards(side).document(number - self._side_firsts[side])
        text = self._tokenizer(self._places[folder]).decode(ids[self._bos[folder] : -1].tolist())
        if dedup.key(text) != self._rows(self._places[folder])["key"][number - self._firsts[folder]].tobytes():
            got = f"the ids of document {number - self._side_firsts[side]} are not those of its text"
            file = self._places[folder] / f"{own.prefix}.bin"
            refuse("data.damaged", got, "its index says otherwise", "See `preheat data verify`; prepare that folder again", file=file)
        return text

    def address(self, number: int) -> str:
        """Source and label of a document, and the folder that holds it."""
        folder = bisect_right(self._firsts, number) - 1
        path = self._places[folder] / LINES
        with path.open("rb") as stream:
            stream.seek(self._starts(path)[number - self._firsts[folder]])
            row = json.loads(stream.readline())
        return f"{row['source']}: {row['id']} of {self._names[folder]}"

    def folder_of(self, number: int) -> str:
        """The folder of a document, as the recipe names it."""
        return self._names[bisect_right(self._firsts, number) - 1]

    def _bands(self, folder: int) -> Hashes:
        out: Hashes = np.load(self._places[folder] / BAND_FILE, mmap_mode="r")
        return out

    def _open(self, side: int) -> Shards:
        folder, own = self._sides[side]
        return opened(self._places[folder], own)


def _rows(place: Path) -> npt.NDArray[np.void]:
    out: npt.NDArray[np.void] = np.load(place / ROWS, mmap_mode="r")
    return out


def _line_starts(path: Path) -> npt.NDArray[np.int64]:
    with path.open("rb") as stream:
        return np.fromiter(accumulate(map(len, stream), initial=0), np.int64)
