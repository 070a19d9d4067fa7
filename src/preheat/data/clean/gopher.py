"""The rules of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1 and table A1): repetition within a document, and its quality."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from preheat.data.clean.rule import Dropped, Numbers, Text
from preheat.data.clean.words import Hashes, grams, longer

_BLANK_LINES, _LINE_FEEDS = re.compile(r"\n{2,}"), re.compile(r"\n+")
_STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
_TOP, _REPEATED = (2, 3, 4), (5, 6, 7, 8, 9, 10)


def repetition(text: Text, numbers: Numbers) -> Dropped | None:
    """Lines, paragraphs and n-grams that come again."""
    raw = text.text
    for what, parts in (("paragraphs", _BLANK_LINES.split(raw.strip())), ("lines", _LINE_FEEDS.split(raw))):
        count, characters = duplicates(parts)
        of_parts, of_text = count / len(parts), characters / max(len(raw), 1)
        for share, key in ((of_parts, f"max_duplicate_{what}"), (of_text, f"max_duplicate_{what}_characters")):
            if share > numbers[f"gopher.{key}"]:
                return Dropped(f"gopher: repeated {what}", f"{share:.0%} of the {'characters' if 'characters' in key else what}")
    hashes, lengths = text.words
    ends = np.concatenate([[0], np.cumsum(lengths)])
    of_n = grams(hashes, _TOP[0])
    for n in _TOP:
        share = _top(of_n, ends, n) / max(len(raw), 1)
        if share > numbers[f"gopher.max_top_{n}_gram"]:
            return Dropped(f"gopher: one {n}-gram again and again", f"{share:.0%} of the characters")
        of_n = longer(of_n, hashes[n:])
    least = min(numbers[f"gopher.max_duplicate_{n}_grams"] for n in _REPEATED)
    if _most_repeated(of_n, lengths) <= least * len(raw):
        return None
    for n in _REPEATED:
        share = _repeated(of_n, ends, n) / len(raw)
        if share > numbers[f"gopher.max_duplicate_{n}_grams"]:
            return Dropped(f"gopher: repeated {n}-grams", f"{share:.0%} of the characters")
        of_n = longer(of_n, hashes[n:])
    return None


def duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts occurred before, and their characters."""
    if len(set(parts)) == len(parts):
        return 0, 0
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        else:
            seen.add(part)
    return count, characters


def _top(of_n: Hashes, ends: npt.NDArray[np.int64], n: int) -> int:
    """Characters, spaces between included, in all occurrences of the most frequent n-gram, of several the first one."""
    if not len(of_n):
        return 0
    ordered = np.sort(of_n)
    edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    counts = np.diff(edges)
    most = int(counts.max())
    if most == 1:
        first = 0
    else:
        best = ordered[edges[:-1][counts == most]]
        first = int(np.argmax(of_n == best[0] if len(best) == 1 else np.isin(of_n, best)))
    return most * int(ends[first + n] - ends[first] + n - 1)


def _most_repeated(of_5: Hashes, lengths: npt.NDArray[np.int64]) -> int:
    """Characters in 5-grams that occurred before: no more can be in longer ones, nor in those that do not overlap."""
    ordered = np.sort(of_5)
    if not (ordered[1:] == ordered[:-1]).any():
        return 0
    order = np.argsort(of_5, kind="stable")
    again = order[1:][of_5[order[1:]] == of_5[order[:-1]]]
    change = np.zeros(len(lengths) + 1, np.int64)
    change[again] += 1
    change[again + 5] -= 1
    return int(lengths[np.cumsum(change)[:-1] > 0].sum())


def _repeated(of_n: Hashes, ends: npt.NDArray[np.int64], n: int) -> int:
    """Characters in n-grams that occurred before, taken from the left without overlap."""
    seen: set[int] = set()
    place, characters = 0, 0
    values = of_n.tolist()
    while place < len(values):
        if values[place] in seen:
            characters += int(ends[place + n] - ends[place])
            place += n
        else:
            seen.add(values[place])
            place += 1
    return characters


def quality(text: Text, numbers: Numbers) -> Dropped | None:
    """Length, words, symbols, bullets and stop words."""
    raw, counts = text.text, text.counts
    words = counts.words - counts.symbols
    if words < numbers["gopher.min_words"]:
        return Dropped("gopher: too few words", f"{words:,}")
    if words > numbers["gopher.max_words"]:
        return Dropped("gopher: too many words", f"{words:,}")
    mean = counts.characters / words
    if not numbers["gopher.min_mean_word"] <= mean <= numbers["gopher.max_mean_word"]:
        return Dropped("gopher: length of the words", f"{mean:.1f} characters")
    symbols = max(raw.count("#"), raw.count("...") + raw.count("…")) / counts.words
    if symbols > numbers["gopher.max_symbols"]:
        return Dropped("gopher: hashes and ellipses", f"{symbols:.0%} of the words")
    lines = [line.strip() for line in raw.splitlines()]
    bullets = sum(line.startswith(("•", "-")) for line in lines) / len(lines)
    if bullets > numbers["gopher.max_bullet_lines"]:
        return Dropped("gopher: bullets", f"{bullets:.0%} of the lines")
    ellipses = sum(line.endswith(("...", "…")) for line in lines) / len(lines)
    if ellipses > numbers["gopher.max_ellipsis_lines"]:
        return Dropped("gopher: lines that end in an ellipsis", f"{ellipses:.0%} of the lines")
    letters = counts.alphabetic / counts.words
    if letters < numbers["gopher.min_alphabetic"]:
        return Dropped("gopher: words without a letter", f"{1 - letters:.0%} of the words")
    found = _stop_words(text)
    return Dropped("gopher: stop words", f"{found} of {len(_STOP_WORDS)}") if found < numbers["gopher.min_stop_words"] else None


def _stop_words(text: Text) -> int:
    """How many of the English stop words occur, each as it is written."""
    return len(_STOP_WORDS.intersection(text.runs))
