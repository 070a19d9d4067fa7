"""Exact and near duplicates, over all sources. The result does not depend on the order in which documents come.

Exact: documents whose text is the same but for case and white space. Near: MinHash over word 5-grams (rensa's RMinHash, 128
permutations, 32 bands of 4 rows), then the Jaccard similarity of the 5-gram sets of every candidate pair. Documents are taken
from the longest to the shortest (ties: by hash), and one goes if it is similar enough to one that stays.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

PERMUTATIONS, BANDS, ROWS, SHINGLE, SEED = 128, 32, 4, 5, 1

Hashes = npt.NDArray[np.uint64]
_WORD = re.compile(r"\w+")


def key(text: str) -> bytes:
    """The hash by which two documents are the same: of the text in NFC and lower case, with one space between words."""
    return hashlib.sha256(" ".join(unicodedata.normalize("NFC", text).casefold().split()).encode()).digest()


class Shingler:
    """Turns texts into 64-bit hashes of their word 5-grams. Hashing a word once makes it fast; the values do not depend on the instance."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def shingles(self, text: str) -> Hashes:
        """The sorted set of 5-gram hashes; of a shorter text, one hash of all its words, so that short texts are alike only if equal."""
        words = _WORD.findall(text.casefold())
        if len(words) < SHINGLE:
            whole = " ".join(words or text.split())
            return np.array([_hash(whole)], np.uint64)
        known = self._words
        for word in set(words) - known.keys():
            known[word] = _hash(word)
        values = np.fromiter(map(known.__getitem__, words), np.uint64, len(words))
        count = len(values) - SHINGLE + 1
        mixed = np.zeros(count, np.uint64)
        with np.errstate(over="ignore"):
            for position in range(SHINGLE):
                mixed = (mixed ^ values[position : position + count]) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(29)
        return np.unique(mixed)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def bands(shingles: Sequence[Hashes]) -> npt.NDArray[np.uint64]:
    """One row of 32 band hashes a document; two documents are candidates if a band is equal. Shape (documents, 32)."""
    if not shingles:
        return np.zeros((0, BANDS), np.uint64)
    offsets = np.cumsum([0, *map(len, shingles)], dtype=np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(np.concatenate(shingles), offsets, PERMUTATIONS, SEED)
    digest = np.array(matrix.to_rows(), np.uint64).reshape(len(shingles), BANDS, ROWS)
    out = np.zeros((len(shingles), BANDS), np.uint64)
    with np.errstate(over="ignore"):
        for row in range(ROWS):
            out = (out ^ digest[:, :, row]) * np.uint64(0x9E3779B97F4A7C15)
            out ^= out >> np.uint64(32)
    return out


@dataclass(frozen=True)
class Match:
    """A document goes because of `kept`, the number of the one that stays."""

    kept: int
    similarity: float


def exact_duplicates(keys: Sequence[bytes], ranks: Sequence[object]) -> dict[int, int]:
    """Number of each document that goes -> number of the one that stays: of equal keys, the one with the lowest rank."""
    stays: dict[bytes, int] = {}
    for number, same in enumerate(keys):
        first = stays.get(same)
        if first is None or ranks[number] < ranks[first]:  # type: ignore[operator]
            stays[same] = number
    return {number: stays[same] for number, same in enumerate(keys) if stays[same] != number}


def near_duplicates(texts: Sequence[str], keys: Sequence[bytes], band_hashes: npt.NDArray[np.uint64], jaccard: float) -> dict[int, Match]:
    """Number of each document that goes -> the match that it goes for. `keys` must differ; they break ties of length."""
    shared = np.zeros(band_hashes.shape, bool)
    for band in range(band_hashes.shape[1]):
        _, inverse, counts = np.unique(band_hashes[:, band], return_inverse=True, return_counts=True)
        shared[:, band] = counts[inverse] > 1
    involved = sorted(np.flatnonzero(shared.any(axis=1)).tolist(), key=lambda number: (-len(texts[number]), keys[number]))
    shingler = Shingler()
    shingles = {number: shingler.shingles(texts[number]) for number in involved}
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    place = {number: position for position, number in enumerate(involved)}
    dropped: dict[int, Match] = {}
    for number in involved:
        own = [(band, int(band_hashes[number, band])) for band in np.flatnonzero(shared[number]).tolist()]
        candidates = {candidate for bucket in own for candidate in buckets[bucket]}
        for candidate in sorted(candidates, key=place.__getitem__):
            similarity = _jaccard(shingles[number], shingles[candidate], jaccard)
            if similarity >= jaccard:
                dropped[number] = Match(candidate, similarity)
                break
        else:
            for bucket in own:
                buckets[bucket].append(number)
    return dropped


def _jaccard(a: Hashes, b: Hashes, threshold: float) -> float:
    """Size of the intersection over size of the union; 0 where the sizes alone keep it under the threshold."""
    if min(len(a), len(b)) < threshold * max(len(a), len(b)):
        return 0.0
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)
