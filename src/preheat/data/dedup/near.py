"""Which of the documents that share a band go: those similar enough to a better one that stays.

Documents are taken from the best to the worst. Whether two of them meet depends on their bands alone, so groups that no band connects are
decided independently of each other, on as many machines as one likes, with the same result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from preheat.data.dedup.grams import Hashes

BUCKET = 64
"""A document is compared with this many of the best of those that stay and share a certain band with it. A band that more of them share is
boilerplate, and a true copy shares others."""
CACHE_BYTES = 64_000_000
"""Of the documents that stay, this much of shingles is kept in memory; others are read again when they are needed."""
ENTRY_BYTES = 400
"""What a document takes in that memory besides its shingles, about."""

Numbers = npt.NDArray[np.int64]
Load = Callable[[Numbers], Iterator[Hashes]]
"""The sorted distinct shingles of documents, by their numbers."""


@dataclass(frozen=True)
class Match:
    """A document goes because of `kept`, the number of the one that stays; `similarity` is the Jaccard similarity of their 5-gram sets."""

    kept: int
    similarity: float


def groups(shared: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """The documents that share a band with another one, and the group of each: the lowest number that bands connect it with.

    `shared` are pairs of arrays: documents, and one of the documents with the same band. One pair is in memory at a time, if `shared`
    reads them when it is asked for them.
    """
    documents = _mentioned(shared)
    label = np.arange(len(documents))
    for pair in shared:
        a, b = (np.searchsorted(documents, numbers) for numbers in pair)
        while True:
            # Hook the higher root onto the lower one, then let everyone point at its root (Shiloach and Vishkin 1982).
            low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
            apart = low != high
            if not apart.any():
                break
            a, b = a[apart], b[apart]
            np.minimum.at(label, high[apart], low[apart])
            while True:
                jumped = label[label]
                if np.array_equal(jumped, label):
                    break
                label = jumped
    return documents, documents[label]


def _mentioned(shared: Sequence[tuple[Numbers, Numbers]]) -> Numbers:
    """The numbers that stand in any of the arrays, ascending."""
    known = np.zeros(0, bool)
    for numbers in (numbers for pair in shared for numbers in pair if len(numbers)):
        known = np.concatenate((known, np.zeros(max(int(numbers.max()) + 1 - len(known), 0), bool)))
        known[numbers] = True
    return np.flatnonzero(known)


def equal_bands(band: Hashes, among: Numbers) -> tuple[Numbers, Numbers]:
    """The documents of `among` that have this band in common with another one, and beside each the lowest of those; `among` ascend."""
    own = band[among]
    # Most bands are of one document: values are sorted faster than places, and what is not there twice is out.
    values = np.sort(own)
    repeated = np.unique(values[1:][values[1:] == values[:-1]])
    if not len(repeated):
        return among[:0], among[:0]
    which = np.minimum(np.searchsorted(repeated, own), len(repeated) - 1)
    members = np.flatnonzero(repeated[which] == own)
    first = np.full(len(repeated), len(own))
    np.minimum.at(first, which[members], members)
    return among[members], among[first[which[members]]]


def near_duplicates(
    ranked: Numbers,
    group: Numbers,
    shared: tuple[Numbers, Numbers],
    load: Load,
    jaccard: float,
    settled: npt.NDArray[np.bool_] | None = None,
) -> dict[int, Match]:
    """Number of each document that goes -> the match that it goes for.

    `ranked` are the documents of one group after the other, and in each from the best to the worst; `group` (documents,) says to which
    group each belongs. `shared` are two arrays: documents, and a band of each, as a number that is the same for all documents with this
    band. Documents that are `settled`, the first of their group, stay.
    """
    buckets = _Buckets(ranked, *shared)
    kept = _Kept(load, ranked)
    gone: dict[int, Match] = {}
    for place, (number, shingles) in enumerate(zip(ranked, load(ranked), strict=True)):
        if place and group[place] != group[place - 1]:
            kept.forget()
        if settled is None or not settled[place]:
            matches = (_match(shingles, kept, candidate, jaccard) for candidate in buckets.candidates(place))
            match = next((match for match in matches if match), None)
            if match:
                gone[int(number)] = match
                continue
        buckets.add(place)
        kept.add(place, shingles)
    return gone


class _Buckets:
    """The documents that stay by the bands that others have, too: of each band the first `BUCKET`. A document is its place in `ranked`.

    Arrays, not lists and dictionaries, because a group may have millions of documents: some 50 bytes for each band that one shares.
    """

    def __init__(self, ranked: Numbers, documents: Numbers, bands: Numbers) -> None:
        own = np.unique(bands, return_inverse=True)[1].astype(np.int32)
        order = np.argsort(ranked).astype(np.int32)
        places = order[np.searchsorted(ranked, documents, sorter=order)]
        self._of = own[np.argsort(places, kind="stable")]
        self._bounds = np.concatenate(([0], np.cumsum(np.bincount(places, minlength=len(ranked)))))
        room = np.minimum(np.bincount(own), BUCKET)
        self._starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(room)[:-1])) if len(room) else room
        self._ends = self._starts + room
        self._filled = self._starts.copy()
        self._slots = np.zeros(int(room.sum()), np.int32)

    def candidates(self, place: int) -> list[int]:
        """Those that stay and share a band with a document, from the best to the worst."""
        found: set[int] = set()
        own = self._own(place)
        for start, end in zip(self._starts[own].tolist(), self._filled[own].tolist(), strict=True):
            found.update(self._slots[start:end].tolist())
        return sorted(found)

    def add(self, place: int) -> None:
        """A document stays."""
        own = self._own(place)
        free = own[self._filled[own] < self._ends[own]]
        self._slots[self._filled[free]] = place
        self._filled[free] += 1

    def _own(self, place: int) -> npt.NDArray[np.int32]:
        return self._of[self._bounds[place] : self._bounds[place + 1]]


def _match(shingles: Hashes, kept: _Kept, candidate: int, threshold: float) -> Match | None:
    size = kept.size(candidate)
    if min(len(shingles), size) < threshold * max(len(shingles), size):
        return None  # The sizes alone keep it under the threshold.
    similarity = jaccard_similarity(shingles, kept.get(candidate))
    return Match(kept.number(candidate), similarity) if similarity >= threshold else None


def jaccard_similarity(a: Hashes, b: Hashes) -> float:
    """Size of the intersection over size of the union of two sorted sets."""
    small, large = (a, b) if len(a) < len(b) else (b, a)
    common = int(np.count_nonzero(large.take(large.searchsorted(small), mode="clip") == small))
    return common / (len(a) + len(b) - common)


class _Kept:
    """The shingles of the documents that stay, as many as memory is granted for; the others are loaded again."""

    def __init__(self, load: Load, ranked: Numbers) -> None:
        self._load, self._ranked = load, ranked
        self._sizes = np.zeros(len(ranked), np.int64)
        self._held: OrderedDict[int, Hashes] = OrderedDict()
        self._bytes = 0

    def add(self, place: int, shingles: Hashes) -> None:
        self._sizes[place] = len(shingles)
        self._held[place] = shingles
        self._bytes += shingles.nbytes + ENTRY_BYTES
        while self._bytes > CACHE_BYTES and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes + ENTRY_BYTES

    def forget(self) -> None:
        """Of another group nothing will be asked."""
        self._held.clear()
        self._bytes = 0

    def number(self, place: int) -> int:
        return int(self._ranked[place])

    def size(self, place: int) -> int:
        return int(self._sizes[place])

    def get(self, place: int) -> Hashes:
        if place in self._held:
            self._held.move_to_end(place)
            return self._held[place]
        shingles = next(self._load(self._ranked[place : place + 1]))
        self.add(place, shingles)
        return shingles
