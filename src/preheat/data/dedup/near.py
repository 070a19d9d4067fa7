"""Which of the documents that share a band go: those similar enough to a better one that stays.

Documents are taken from the best to the worst. Whether two of them meet depends on their bands alone, so groups that no band connects are
decided independently of each other, on as many machines as one likes, with the same result.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from preheat.data.dedup.grams import Hashes

BUCKET = 64
"""A document is compared with this many of the best of those that stay and share a certain band with it. A band that more of them share is
boilerplate, and a true copy shares others."""
CACHE_BYTES = 256_000_000
"""Of the documents that stay, this much of shingles is kept in memory; others are read again when they are needed."""

Load = Callable[[Sequence[int]], Iterator[Hashes]]
"""The sorted distinct shingles of documents, by their numbers."""


@dataclass(frozen=True)
class Match:
    """A document goes because of `kept`, the number of the one that stays; `similarity` is the Jaccard similarity of their 5-gram sets."""

    kept: int
    similarity: float


def groups(shared: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The documents that share a band with another one, and the group of each: the lowest number that bands connect it with.

    `shared` are pairs of arrays: documents, and one of the documents with the same band.
    """
    documents = np.unique(np.concatenate([np.concatenate(pair) for pair in shared])) if shared else np.empty(0, np.int64)
    a = np.concatenate([np.searchsorted(documents, pair[0]) for pair in shared]) if shared else documents
    b = np.concatenate([np.searchsorted(documents, pair[1]) for pair in shared]) if shared else documents
    label = np.arange(len(documents))
    while True:
        # Hook the higher root onto the lower one, then let everyone point at its root (Shiloach and Vishkin 1982).
        low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
        apart = low != high
        if not apart.any():
            return documents, documents[label]
        a, b = a[apart], b[apart]
        np.minimum.at(label, high[apart], low[apart])
        while True:
            jumped = label[label]
            if np.array_equal(jumped, label):
                break
            label = jumped


def equal_bands(band: Hashes, among: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The documents of `among` that have this band in common with another one, and beside each the lowest of those."""
    own = band[among]
    order = np.argsort(own, kind="stable")
    values = own[order]
    equal = np.zeros(len(order) + 1, bool)
    equal[1:-1] = values[1:] == values[:-1]
    several = equal[1:] | equal[:-1]
    starts = several & ~equal[:-1]
    members = order[several]
    firsts = order[starts]
    return among[members], among[firsts[np.cumsum(starts[several]) - 1]] if len(members) else among[members]


def near_duplicates(
    ranked: Sequence[int],
    group: npt.NDArray[np.int64],
    bands: Hashes,
    load: Load,
    jaccard: float,
    settled: npt.NDArray[np.bool_] | None = None,
) -> dict[int, Match]:
    """Number of each document that goes -> the match that it goes for.

    `ranked` are the documents of one group after the other, and in each from the best to the worst; `group` (documents,) and `bands`
    (64, documents) say to which group each belongs and what its bands are. Documents that are `settled`, the first of their group, stay.
    """
    shared = _shared(bands)
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    place = {number: position for position, number in enumerate(ranked)}
    kept = _Kept(load)
    gone: dict[int, Match] = {}
    for position, (number, shingles) in enumerate(zip(ranked, load(ranked), strict=True)):
        if position and group[position] != group[position - 1]:
            buckets.clear()
            kept = _Kept(load)
        own = [(band, int(bands[band, position])) for band in np.flatnonzero(shared[:, position]).tolist()]
        if settled is None or not settled[position]:
            candidates = sorted({candidate for bucket in own for candidate in buckets[bucket]}, key=place.__getitem__)
            match = next((m for m in (_match(shingles, kept, c, jaccard) for c in candidates) if m), None)
            if match:
                gone[number] = match
                continue
        for bucket in own:
            if len(buckets[bucket]) < BUCKET:
                buckets[bucket].append(number)
        kept.add(number, shingles)
    return gone


def _shared(bands: Hashes) -> npt.NDArray[np.bool_]:
    """Which bands of which documents another one has, too: shape (64, documents). Others make no candidates."""
    out = np.zeros(bands.shape, bool)
    everyone = np.arange(bands.shape[1])
    for band in range(len(bands)):
        out[band, equal_bands(bands[band], everyone)[0]] = True
    return out


def _match(shingles: Hashes, kept: _Kept, candidate: int, threshold: float) -> Match | None:
    if min(len(shingles), kept.size(candidate)) < threshold * max(len(shingles), kept.size(candidate)):
        return None  # The sizes alone keep it under the threshold.
    similarity = jaccard_similarity(shingles, kept.get(candidate))
    return Match(candidate, similarity) if similarity >= threshold else None


def jaccard_similarity(a: Hashes, b: Hashes) -> float:
    """Size of the intersection over size of the union of two sorted sets."""
    small, large = sorted((a, b), key=len)
    common = int((large[np.minimum(np.searchsorted(large, small), len(large) - 1)] == small).sum())
    return common / (len(a) + len(b) - common)


class _Kept:
    """The shingles of the documents that stay, as many as memory is granted for; the others are loaded again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._sizes: dict[int, int] = {}
        self._held: OrderedDict[int, Hashes] = OrderedDict()
        self._bytes = 0

    def add(self, number: int, shingles: Hashes) -> None:
        self._sizes[number] = len(shingles)
        self._held[number] = shingles
        self._bytes += shingles.nbytes
        while self._bytes > CACHE_BYTES and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes

    def size(self, number: int) -> int:
        return self._sizes[number]

    def get(self, number: int) -> Hashes:
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        shingles = next(iter(self._load([number])))
        self.add(number, shingles)
        return shingles
