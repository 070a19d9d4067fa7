"""The texts of a shard between two steps: UTF-8 back to back in `texts.bin`, labels in `ids.jsonl`, and where each of them ends.

The ends are read through a mapped file: what a process holds of a shard does not grow with its documents.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

TEXTS, ENDS = "texts.bin", "ends.npy"
LABELS, LABEL_ENDS = "ids.jsonl", "id_ends.npy"
_OPEN = 64
"""Shards whose files are open at a time."""
_AT_ONCE = 4096
"""Ends that are looked at together."""
OBJECT = 100
"""Bytes of a Python object besides its content, about."""


class _PiecesWriter:
    """Writes pieces of bytes one after the other, and where each ends when its block ends."""

    def __init__(self, path: Path, ends: Path) -> None:
        self._stream: BinaryIO = path.open("wb")
        self._path, self._ends, self._end = ends, array("Q"), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stream.close()
        if kind is None:
            np.save(self._path, np.array(self._ends, np.uint64))

    def write(self, piece: bytes) -> None:
        """Append a piece."""
        self._end += self._stream.write(piece)
        self._ends.append(self._end)


class TextsWriter(_PiecesWriter):
    """Writes texts one after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / TEXTS, folder / ENDS)

    def add(self, text: str) -> None:
        """Append a text."""
        self.write(text.encode())


class LabelsWriter(_PiecesWriter):
    """Writes the labels of the documents of a shard one after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / LABELS, folder / LABEL_ENDS)

    def add(self, label: str) -> None:
        """Append a label."""
        self.write(json.dumps(label).encode() + b"\n")


def texts(folder: Path) -> Iterator[str]:
    """The texts of a shard, in order."""
    ends, begin = _ends(folder / ENDS), 0
    with (folder / TEXTS).open("rb") as stream:
        for first in range(0, len(ends), _AT_ONCE):
            for end in ends[first : first + _AT_ONCE].tolist():
                yield stream.read(end - begin).decode()
                begin = end


def batches(source: Iterator[str], characters: int) -> Iterator[list[str]]:
    """Texts in lists of at least so many characters. A text counts as `OBJECT` more than it has: many short ones take memory, too."""
    batch: list[str] = []
    size = 0
    for text in source:
        batch.append(text)
        size += len(text) + OBJECT
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Library:
    """The documents of all shards by their number: those of the first shard come first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.counts = [count_of(folder) for folder in folders]
        self.firsts = np.concatenate(([0], np.cumsum(self.counts, dtype=np.int64))).tolist()
        self._texts: dict[int, tuple[BinaryIO, npt.NDArray[np.uint64]]] = {}
        self._labels: dict[int, tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]] = {}

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
            if len(self._labels) >= _OPEN:
                self._labels.clear()
            labels = np.asarray(np.memmap(self.folders[shard] / LABELS, np.uint8, "r"))
            self._labels[shard] = labels, _ends(self.folders[shard] / LABEL_ENDS)
        labels, ends = self._labels[shard]
        return str(json.loads(labels[_begin(ends, own) : int(ends[own])].tobytes()))

    def text(self, number: int) -> str:
        """The text of a document."""
        shard, own = self.locate(number)
        if shard not in self._texts:
            if len(self._texts) >= _OPEN:
                self.close()
            self._texts[shard] = (self.folders[shard] / TEXTS).open("rb"), _ends(self.folders[shard] / ENDS)
        stream, ends = self._texts[shard]
        stream.seek(_begin(ends, own))
        return stream.read(int(ends[own]) - stream.tell()).decode()

    def close(self) -> None:
        """Close the files."""
        for stream, _ in self._texts.values():
            stream.close()
        self._texts.clear()


def _begin(ends: npt.NDArray[np.uint64], number: int) -> int:
    return int(ends[number - 1]) if number else 0


def count_of(folder: Path) -> int:
    """How many texts a shard has."""
    return len(_ends(folder / ENDS))


def _ends(path: Path) -> npt.NDArray[np.uint64]:
    # A plain view: NumPy's own class for mapped files takes twice the time for each entry.
    return np.asarray(np.load(path, mmap_mode="r"))
