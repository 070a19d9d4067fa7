"""Where a text has its paragraphs, by which hash two of them are the same, and what is left of a text without some."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from preheat.data.clean.edits import MAX_WRAP_WIDTH
from preheat.data.dedup.grams import word_counts
from preheat.data.dedup.signatures import key

KEY_BYTES = 16
"""Of the SHA-256 of a paragraph. Among 10^12 different ones two are the same with a probability of 10^-15."""

_GAP = re.compile(r"(\n(?:[^\S\n]*\n)*)")
"""The end of a line, and the blank lines behind it."""


@dataclass(frozen=True)
class Paragraphs:
    """A text as paragraphs and the gaps behind them, which are line feeds and blank lines: `lead`, then a paragraph and its gap, and so on.

    A paragraph is what stands between blank lines: of hard-wrapped text, a list, a table, a stanza. A line that is longer than any that is
    wrapped is a paragraph by itself, because texts of the web often have no blank lines. Where one begins and ends depends on nothing else.
    """

    lead: str
    pieces: tuple[str, ...]
    gaps: tuple[str, ...]
    words: tuple[int, ...]
    """How many each paragraph has."""

    def without(self, gone: Collection[int]) -> str:
        """The text without some of its paragraphs; it has exactly the others, so nothing more goes if this is done again.

        Where paragraphs went between two that stay, the largest of the gaps between these is left, and at least a blank line.
        """
        stay = [number for number in range(len(self.pieces)) if number not in gone]
        if not stay:
            return ""
        out = [self.lead, self.pieces[stay[0]]]
        for before, number in pairwise(stay):
            gap = max(self.gaps[before:number], key=len)
            out += [gap if number == before + 1 or gap != "\n" else "\n\n", self.pieces[number]]
        return "".join([*out, self.gaps[-1]])


def paragraphs(texts: Sequence[str]) -> list[Paragraphs]:
    """The paragraphs of each text."""
    found = [_split(text) for text in texts]
    words = iter(word_counts([piece for _, pieces, _ in found for piece in pieces]).tolist())
    return [Paragraphs(lead, pieces, gaps, tuple(islice(words, len(pieces)))) for lead, pieces, gaps in found]


def paragraph_keys(pieces: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The hash by which paragraphs are the same, as documents are: but for case, white space and Unicode form. Shape (pieces, 2)."""
    return np.frombuffer(b"".join(key(piece)[:KEY_BYTES] for piece in pieces), "<u8").reshape(-1, KEY_BYTES // 8)


def _split(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The gap before the first paragraph, the paragraphs, and the gap behind each of them."""
    parts = _GAP.split(text)
    lead = "" if parts[0] else "".join(parts[:2])
    lines, gaps = parts[0 if parts[0] else 2 :: 2], parts[1 if parts[0] else 3 :: 2]
    if lines and not lines[-1]:
        lines.pop()
    gaps += [""] * (len(lines) - len(gaps))
    pieces: list[str] = []
    behind: list[str] = []
    alone = True
    for line, gap in zip(lines, gaps, strict=True):
        before, alone = alone, len(line) > MAX_WRAP_WIDTH
        if before or alone or behind[-1] != "\n":
            pieces.append(line)
            behind.append(gap)
        else:
            pieces[-1] += behind[-1] + line
            behind[-1] = gap
    return lead, tuple(pieces), tuple(behind)
