"""The house's own rules, for text that the rules of the web do not fit, and those for source code."""

from __future__ import annotations

import re

from preheat.data.clean.rule import Dropped, Numbers, Text


def too_short(text: Text, numbers: Numbers) -> Dropped | None:
    """Fewer characters than the policy asks for."""
    size = len(text.text)
    return Dropped("too short", f"{size} characters") if size < numbers["length.min_characters"] else None


def few_letters(text: Text, numbers: Numbers) -> Dropped | None:
    """Tables of numbers, rulings, encoded data."""
    dense = "".join(text.runs)
    share = sum(map(str.isalpha, dense)) / max(len(dense), 1)
    return Dropped("few letters", f"{share:.0%} letters") if share < numbers["letters.min_share"] else None


_FIRST_UNSPACED, _UNSPACED_FACTOR = "\u2e7f", 5
"""From here on, blocks of Chinese and Japanese, written without spaces: they may run longer, by the factor."""


_LONG_RUN = "long run without a break"


def long_run(text: Text, numbers: Numbers) -> Dropped | None:
    """Encoded data: a run without a space that no language has; or one of nothing but spaces. Both take tokenizers ages."""
    longest = int(numbers["run.max_characters"])
    if max(map(len, text.runs), default=0) > longest:
        for run in text.runs:
            unspaced = sum(character > _FIRST_UNSPACED for character in run) > len(run) / 2
            if len(run) > longest * (_UNSPACED_FACTOR if unspaced else 1):
                return Dropped(_LONG_RUN, f"{len(run):_} characters without a space")
    if longest <= len(text.text) and (" " * longest in text.text or "\t" * longest in text.text):
        return Dropped(_LONG_RUN, f"{longest:_} spaces or more in a row")
    return None


def repeated_lines(text: Text, numbers: Numbers) -> Dropped | None:
    """Too much of the text is in lines that occurred before."""
    seen: set[str] = set()
    repeated = 0
    for line in map(str.strip, text.text.split("\n")):
        if line in seen:
            repeated += len(line)
        seen.add(line)
    share = repeated / max(len(text.text), 1)
    return Dropped("repeated lines", f"{share:.0%} of the characters") if share > numbers["repeated_lines.max_share"] else None


_GENERATED = re.compile(
    r"auto-?generated|(?:automatically|machine)[ -]generated|generated (?:automatically|by|from)\b|do not (?:edit|modify) (?:this|by)"
    r"|@generated",
    re.IGNORECASE,
)
_GENERATED_WITHIN = 600


def generated(text: Text, numbers: Numbers) -> Dropped | None:
    """Code whose first lines say that a program wrote it."""
    match = _GENERATED.search(text.text, 0, _GENERATED_WITHIN)
    return Dropped("generated", match[0]) if match else None


def minified(text: Text, numbers: Numbers) -> Dropped | None:
    """Lines too long for a human to have written."""
    lines = [line for line in text.text.split("\n") if line]
    mean = sum(map(len, lines)) / max(len(lines), 1)
    return Dropped("minified", f"{mean:.0f} characters a line") if mean > numbers["line.max_mean_characters"] else None
