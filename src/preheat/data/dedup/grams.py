"""Texts as sets of word 5-grams, each a 64-bit number. Whole batches at once in numpy: no Python object for a word.

A word is a run of letters, digits and underscores (`\\w+`) of the case-folded text; a character of a script that is written without spaces
(Chinese, Japanese, Thai and their neighbours) is a word by itself, so that a sentence of theirs has 5-grams, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

SHINGLE = 5
"""Words in a shingle."""
SLICE = 1 << 20
"""Characters looked at together. A longer document is cut into slices, by this number alone."""

Hashes = npt.NDArray[np.uint64]

_SEPARATOR, _WORD, _ALONE = 0, 1, 2
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Chinese
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


@dataclass(frozen=True)
class Shingles:
    """The shingles of several documents back to back, in the order of the text and with repetitions: those of document `i` are
    `hashes[offsets[i] : offsets[i + 1]]`. Every document has at least one.
    """

    hashes: Hashes
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def distinct(self, number: int) -> Hashes:
        """The sorted set of shingles of one document."""
        return np.unique(self.hashes[self.offsets[number] : self.offsets[number + 1]])


def shingles(texts: Sequence[str]) -> Shingles:
    """Hashes of the word 5-grams of each text; of a text with fewer words one hash of the whole, so that short texts are alike only if
    they are equal. The values depend on the text alone.
    """
    words, counts = _words(texts)
    ends = np.cumsum(counts)
    if len(words) < SHINGLE:
        words = np.concatenate((words, np.zeros(SHINGLE, np.uint64)))
    mixed = np.zeros(max(len(words) - SHINGLE + 1, 0), np.uint64)
    for position in range(SHINGLE):
        mixed = (mixed ^ words[position : position + len(mixed)]) * np.uint64(_BASE)
        mixed ^= mixed >> np.uint64(29)
    own = np.maximum(counts - SHINGLE + 1, 1)
    offsets = np.concatenate(([0], np.cumsum(own)))
    # Where each shingle's first word stands: the start of its document plus its number in it.
    first = np.arange(offsets[-1]) + np.repeat(ends - counts - offsets[:-1], own)
    hashes = mixed[np.minimum(first, len(mixed) - 1)]
    for number in np.flatnonzero(counts == 0).tolist():
        hashes[offsets[number]] = _without_words(texts[number])
    for count in range(1, SHINGLE):
        short = np.flatnonzero(counts == count)
        whole = np.full(len(short), count, np.uint64)
        for position in range(count):
            whole = (whole ^ words[ends[short] - count + position]) * np.uint64(_BASE)
            whole ^= whole >> np.uint64(29)
        hashes[offsets[short]] = whole
    return Shingles(hashes, offsets)


def word_counts(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """How many words each text has."""
    return _words(texts)[1]


def _without_words(text: str) -> np.uint64:
    """One number for the characters of a text that has no words, but white space."""
    values = np.frombuffer("".join(text.split()).encode("utf-32-le", "replace"), "<u4")
    out = len(values)
    for value in values.tolist():
        out = ((out ^ value) * _BASE) & 0xFFFFFFFFFFFFFFFF
        out ^= out >> 29
    return np.uint64(out)


def _words(texts: Sequence[str]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """The hashes of all words, and how many each text has."""
    parts: list[Hashes] = []
    counts = np.zeros(len(texts), np.int64)
    batch: list[str] = []
    size, first = 0, 0
    for number, text in enumerate(texts):
        folded = text.casefold()
        if batch and size + len(folded) >= SLICE:
            parts.append(_batch(batch, counts[first:number]))
            batch, size, first = [], 0, number
        if len(folded) < SLICE:
            batch.append(folded)
            size += len(folded) + 1
            continue
        begin = 0
        while begin < len(folded):
            # Between two words, if there is a place between words.
            end = max(folded.rfind(gap, begin + 1, begin + SLICE) for gap in " \n") if len(folded) - begin > SLICE else len(folded)
            end = end if end > begin else begin + SLICE
            one = np.zeros(1, np.int64)
            parts.append(_batch([folded[begin:end]], one))
            counts[number] += one[0]
            begin = end
        first = number + 1
    if batch:
        parts.append(_batch(batch, counts[first:]))
    return (np.concatenate(parts) if parts else np.empty(0, np.uint64)), counts


def _batch(folded: Sequence[str], counts: npt.NDArray[np.int64]) -> Hashes:
    """The hashes of the words of consecutive texts; `counts` receives how many each has.

    A word's hash is the polynomial of its characters modulo 2^64, as the difference of two prefix sums over the whole batch, times the
    power of the inverse that makes it independent of the place.
    """
    values = np.frombuffer("\n".join(folded).encode("utf-32-le", "replace"), "<u4")
    kinds = _kinds()[values]
    inside = kinds != _SEPARATOR
    starts = inside.copy()
    starts[1:] &= (kinds[1:] == _ALONE) | (kinds[:-1] != _WORD)
    ends = inside.copy()
    ends[:-1] &= (kinds[1:] != _WORD) | (kinds[:-1] == _ALONE)
    begin, end = np.flatnonzero(starts), np.flatnonzero(ends)
    powers, inverses = _powers(SLICE + 1)
    sums = np.cumsum((values.astype(np.uint64) + np.uint64(0x632BE59B)) * powers[: len(values)])
    before = np.where(begin > 0, sums[begin - 1], np.uint64(0)) if len(begin) else np.empty(0, np.uint64)
    out = (sums[end] - before) * inverses[begin]
    out = (out ^ (out >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(29)
    bounds = np.fromiter(accumulate((len(text) + 1 for text in folded), initial=0), np.int64, len(folded) + 1)
    counts += np.diff(np.searchsorted(begin, bounds))
    return out


@lru_cache(1)
def _kinds() -> npt.NDArray[np.uint8]:
    """What each code point is: a separator, a part of a word, or a word by itself."""
    table = np.fromiter((character.isalnum() for character in map(chr, range(0x110000))), np.uint8, 0x110000)
    table[ord("_")] = _WORD
    for first, last in _UNSPACED:
        table[first : last + 1] *= _ALONE
    return table


@lru_cache(1)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """The powers of the base and of its inverse modulo 2^64."""
    out = []
    for base in (_BASE, _INVERSE):
        steps = np.full(count, base, np.uint64)
        steps[0] = 1
        out.append(np.multiply.accumulate(steps))
    return out[0], out[1]
