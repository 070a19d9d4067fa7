"""The texts of a shard between two steps: UTF-8 back to back in `texts.bin`, sizes in bytes in `sizes.npy`, labels in `ids.jsonl`."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

_OPEN_SHARDS, _HELD_LABELS = 64, 8
TEXTS, SIZES, IDS = "texts.bin", "sizes.npy", "ids.jsonl"


class TextsWriter:
    """Writes texts one after the other, and their sizes when its block ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stream: BinaryIO = (folder / TEXTS).open("wb")
        self._sizes = array("Q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stream.close()
        if kind is None:
            np.save(self._folder / SIZES, np.array(self._sizes, np.uint64))

    def add(self, text: str) -> None:
        """Append a text."""
        self._sizes.append(self._stream.write(text.encode()))


def texts(folder: Path) -> Iterator[str]:
    """The texts of a shard, in order."""
    with (folder / TEXTS).open("rb") as stream:
        for size in np.load(folder / SIZES).tolist():
            yield stream.read(size).decode()


def batches(source: Iterator[str], characters: int) -> Iterator[list[str]]:
    """Texts in lists of at least so many characters."""
    batch: list[str] = []
    size = 0
    for text in source:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def labels(folder: Path) -> list[str]:
    """The labels of the documents of a shard."""
    return [json.loads(line) for line in (folder / IDS).read_text("utf-8").splitlines()]


class Library:
    """The documents of all shards by their number: those of the first shard come first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.counts = [count_of(folder) for folder in folders]
        self.firsts = np.concatenate(([0], np.cumsum(self.counts, dtype=np.int64))).tolist()
        self._labels: dict[int, list[str]] = {}
        self._places: dict[int, tuple[BinaryIO, npt.NDArray[np.uint64]]] = {}

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def locate(self, number: int) -> tuple[int, int]:
        """The shard of a document and its number there."""
        shard = bisect_right(self.firsts, number) - 1
        return shard, number - self.firsts[shard]

    def label(self, number: int) -> str:
        """The label of a document."""
        shard, own = self.locate(number)
        if shard not in self._labels:
            if len(self._labels) >= _HELD_LABELS:
                self._labels.clear()
            self._labels[shard] = labels(self.folders[shard])
        return self._labels[shard][own]

    def text(self, number: int) -> str:
        """The text of a document."""
        shard, own = self.locate(number)
        if shard not in self._places:
            if len(self._places) >= _OPEN_SHARDS:
                self.close()
            ends = np.cumsum(np.load(self.folders[shard] / SIZES), dtype=np.uint64)
            self._places[shard] = (self.folders[shard] / TEXTS).open("rb"), np.concatenate((np.zeros(1, np.uint64), ends))
        stream, ends = self._places[shard]
        stream.seek(int(ends[own]))
        return stream.read(int(ends[own + 1] - ends[own])).decode()

    def close(self) -> None:
        """Close the files."""
        for stream, _ in self._places.values():
            stream.close()
        self._places.clear()


def count_of(folder: Path) -> int:
    """How many texts a shard has."""
    return len(np.load(folder / SIZES, mmap_mode="r"))
