"""The rules of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1 and table A1): repetition within a document, and its quality."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from preheat.data.clean.rule import Dropped, Numbers, Text
from preheat.data.clean.words import Hashes, grams, longer, words_of

_BLANK_LINES, _LINE_FEEDS = re.compile(r"\n{2,}"), re.compile(r"\n+")
_STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
_BULLETS, _ELLIPSES = frozenset("•-"), ("...", "…")
_TOP = {n: f"gopher.max_top_{n}_gram" for n in (2, 3, 4)}
_REPEATED = {n: f"gopher.max_duplicate_{n}_grams" for n in (5, 6, 7, 8, 9, 10)}


def repetition(text: Text, numbers: Numbers) -> Dropped | None:
    """Lines, paragraphs and n-grams that come again."""
    raw = text.text
    size = max(len(raw), 1)
    for what, parts in (("paragraphs", _BLANK_LINES.split(raw.strip())), ("lines", _LINE_FEEDS.split(raw))):
        count, characters = duplicates(parts)
        if count > numbers[f"gopher.max_duplicate_{what}"] * len(parts):
            return Dropped(f"gopher: repeated {what}", f"{count / len(parts):.0%} of the {what}")
        if characters > numbers[f"gopher.max_duplicate_{what}_characters"] * size:
            return Dropped(f"gopher: repeated {what}", f"{characters / size:.0%} of the characters")
    hashes, lengths = text.words.hashes, text.words.lengths
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    most = len(hashes)
    of_n = grams(hashes, 2)
    for n, key in _TOP.items():
        enough = numbers[key] * size
        longest = int((ends[n:] - ends[:-n]).max(initial=0)) + n - 1
        # What occurs too seldom to be too much at its longest; a longer n-gram does not occur more often.
        if most * longest > enough:
            most, characters = _top(of_n, ends, n, enough / longest)
            if characters > enough:
                return Dropped(f"gopher: one {n}-gram again and again", f"{characters / size:.0%} of the characters")
        of_n = longer(of_n, hashes[n:])
    if most == 1 or _most_repeated(of_n, lengths) <= min(map(numbers.__getitem__, _REPEATED.values())) * size:
        return None
    for n, key in _REPEATED.items():
        characters = _repeated(of_n, ends, n)
        if characters > numbers[key] * size:
            return Dropped(f"gopher: repeated {n}-grams", f"{characters / size:.0%} of the characters")
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


def _top(of_n: Hashes, ends: npt.NDArray[np.int64], n: int, enough: float) -> tuple[int, int]:
    """How often the most frequent n-gram occurs, and the characters, spaces between included, in all its occurrences.

    Of several the first one counts. Where it occurs no more than `enough` times, characters are 0.
    """
    if not len(of_n):
        return 0, 0
    ordered = np.sort(of_n)
    edges = (ordered[1:] != ordered[:-1]).nonzero()[0]
    edges += 1
    most, counts = 1, edges
    if len(edges) < len(of_n) - 1:
        edges = np.concatenate([[0], edges, [len(of_n)]])
        counts = edges[1:] - edges[:-1]
        most = int(counts.max())
    if most <= enough:
        return most, 0
    # In a stable order the first of equal ones is the first in the text.
    first = 0 if most == 1 else int(np.argsort(of_n, kind="stable")[edges[:-1][counts == most]].min())
    return most, most * int(ends[first + n] - ends[first] + n - 1)


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
    raw, all_words, words = text.text, len(text.words.hashes), len(text.words.plain)
    if words < numbers["gopher.min_words"]:
        return Dropped("gopher: too few words", f"{words:,}")
    if words > numbers["gopher.max_words"]:
        return Dropped("gopher: too many words", f"{words:,}")
    mean = text.words.characters / max(words, 1)
    if not numbers["gopher.min_mean_word"] <= mean <= numbers["gopher.max_mean_word"]:
        return Dropped("gopher: length of the words", f"{mean:.1f} characters")
    symbols = max(raw.count("#"), raw.count("...") + raw.count("…")) / max(all_words, 1)
    if symbols > numbers["gopher.max_symbols"]:
        return Dropped("gopher: hashes and ellipses", f"{symbols:.0%} of the words")
    lines = raw.splitlines()
    bullets = sum(line.lstrip()[:1] in _BULLETS for line in lines) / len(lines)
    if bullets > numbers["gopher.max_bullet_lines"]:
        return Dropped("gopher: bullets", f"{bullets:.0%} of the lines")
    ellipses = sum(line.rstrip().endswith(_ELLIPSES) for line in lines) / len(lines)
    if ellipses > numbers["gopher.max_ellipsis_lines"]:
        return Dropped("gopher: lines that end in an ellipsis", f"{ellipses:.0%} of the lines")
    letters = text.words.alphabetic / all_words
    if letters < numbers["gopher.min_alphabetic"]:
        return Dropped("gopher: words without a letter", f"{1 - letters:.0%} of the words")
    wanted = numbers["gopher.min_stop_words"]
    found = _stop_words(text, wanted)
    return Dropped("gopher: stop words", f"{found} of {len(_STOP_WORDS)}") if found < wanted else None


def _stop_words(text: Text, wanted: float) -> int:
    """How many of the English stop words occur, each as it is written; not all are counted once there are as many as wanted."""
    found = len(_STOP_WORDS.intersection(text.runs))
    # Some may stand beside punctuation only.
    return found if found >= wanted else len(_STOP_WORDS.intersection(words_of(text.runs)))
