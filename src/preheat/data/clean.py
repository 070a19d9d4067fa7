"""Cleaning: what is put right in a document, and for which reason one is left out. A policy is a row of numbers and two tuples of rules."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

WRAP_SLACK = 3
"""A line counts as full if with the next word it would come within this many columns of the wrap width."""
WRAP_SHARE = 0.85
"""A text is hard-wrapped if this share of the lines inside its paragraphs is full."""
MIN_WRAP_WIDTH, MAX_WRAP_WIDTH = 45, 120
"""Widths outside of this were not wrapped for a screen."""
MIN_WRAPPED_LINES = 4


@dataclass(frozen=True)
class Policy:
    """Thresholds of one kind of text; shares are of characters."""

    min_characters: int
    min_letters: float
    """Letters (of any script) among the characters that are no white space."""
    max_repeated_lines: float
    """Characters in lines that occurred before; Gopher (arXiv 2112.11446, table A1) drops web pages above 0.20."""
    max_run: int
    """Characters without a space, or spaces without a character."""
    max_mean_line: float
    edits: tuple[str, ...]
    rules: tuple[str, ...]


POLICIES: dict[str, Policy] = {
    "prose": Policy(
        min_characters=200,
        min_letters=0.6,
        max_repeated_lines=0.2,
        max_run=1000,
        max_mean_line=float("inf"),
        edits=("navigation lines removed", "characters normalised", "spaces collapsed", "lines unwrapped"),
        rules=("too short", "few letters", "long run without a break", "repeated lines"),
    ),
    "reference": Policy(
        min_characters=200,
        min_letters=0.3,
        max_repeated_lines=0.6,
        max_run=1000,
        max_mean_line=float("inf"),
        edits=("navigation lines removed", "characters normalised"),
        rules=("too short", "few letters", "long run without a break", "repeated lines"),
    ),
    "code": Policy(
        min_characters=100,
        min_letters=0.25,
        max_repeated_lines=0.6,
        max_run=1000,
        max_mean_line=100.0,
        edits=("licence header removed", "whitespace normalised"),
        rules=("too short", "generated", "minified", "few letters", "long run without a break", "repeated lines"),
    ),
}


def clean(text: str, policy: Policy, edited: Counter[str]) -> tuple[str, str, str]:
    """The cleaned text, and the reason and details for leaving it out (both empty if it stays).

    `edited` counts the documents that each edit changed, not counting white space around the text.
    """
    for name in policy.edits:
        changed = _EDITS[name](text)
        if changed.strip() != text.strip():
            edited[name] += 1
        text = changed
    for name in policy.rules:
        detail = _RULES[name](text, policy)
        if detail is not None:
            return text, name, detail
    return text, "", ""


_REPLACED = {"\u00ad": "", "\u200b": "", "\u2060": "", "\ufeff": "", "\u00a0": " ", "\u202f": " "}
"""Soft hyphens, invisible marks and no-break spaces."""
_INNER_SPACE = re.compile(r"(?<=\S)(?:[^\S\n]{2,}|\t)(?=\S)")
_MANY_BLANK_LINES = re.compile(r"\n{4,}")


def whitespace(text: str) -> str:
    """NFC, no trailing space, at most two blank lines in a row and none around, one line feed at the end."""
    lines = [line.rstrip() for line in unicodedata.normalize("NFC", text).split("\n")]
    text = _MANY_BLANK_LINES.sub("\n\n\n", "\n".join(lines)).strip("\n")
    return text + "\n" if text else ""


def characters(text: str) -> str:
    """As `whitespace`, and without invisible characters and special spaces."""
    for character, put in _REPLACED.items():
        text = text.replace(character, put)
    return whitespace(text)


def spaces(text: str) -> str:
    """One space between words. Not for text that may hold tables, formulas or code."""
    return _INNER_SPACE.sub(" ", text)


_MENU = (
    r"(?:home|about(?: us)?|contact(?: us)?|blog|news|search|site ?map|help|faq|log ?in|sign in|contents|index|prev(?:ious)?|next|up|top)"
)
_NAVIGATION = re.compile(
    r"(?:skip|jump) to (?:main )?(?:content|navigation|search)|(?:back|return|go) to (?:the )?(?:top|contents|home ?page)"
    r"|(?:copyright|\(c\)|©).{0,80}|all rights reserved\.?|share (?:this|on \w+)|print this page|click here.{0,40}"
    rf"|(?:accept|manage) (?:all )?cookies|{_MENU}(?:\s?[^\w\s]{{1,3}}\s?{_MENU})+",
    re.IGNORECASE,
)
_NAVIGATION_LENGTH = 120


def without_navigation(text: str) -> str:
    """Without lines that are nothing but a page's menu, such as "Home | About | Contact" or "Back to top"."""
    lines = text.split("\n")
    return "\n".join(
        line for line in lines if not (line.strip() and len(line) <= _NAVIGATION_LENGTH and _NAVIGATION.fullmatch(line.strip()))
    )


_LIST_ITEM = re.compile(r"\s|[-*•]\s|\d{1,3}[.)]\s|[|+>#]")


def unwrapped(text: str) -> str:
    """Hard-wrapped paragraphs as one line each; verse, lists, tables and text that is not wrapped stay.

    A text counts as wrapped if nearly every line inside a paragraph is full: the next word would not have fit.
    """
    paragraphs = [block.split("\n") for block in re.split(r"\n{2,}", text.strip("\n"))]
    pairs = [(line, after) for lines in paragraphs for line, after in pairwise(lines)]
    if len(pairs) < MIN_WRAPPED_LINES:
        return text
    width = sorted(len(line) for line, _ in pairs)[len(pairs) * 95 // 100]
    if not MIN_WRAP_WIDTH <= width <= MAX_WRAP_WIDTH:
        return text
    full = sum(_is_full(line, after, width) for line, after in pairs)
    if full < WRAP_SHARE * len(pairs):
        return text
    return "\n\n".join(_joined(lines, width) for lines in paragraphs) + "\n"


def _is_full(line: str, after: str, width: int) -> bool:
    return len(line) + 1 + len(after.split(" ", 1)[0]) > width - WRAP_SLACK


def _joined(lines: list[str], width: int) -> str:
    out = lines[0]
    for line, after in pairwise(lines):
        flows = _is_full(line, after, width) or after[0].islower()
        if flows and not _LIST_ITEM.match(after) and not line.startswith((" ", "\t")):
            # A hyphen at the end of a line may belong to the word: it stays, without a space.
            out += after if re.search(r"\w-$", line) else " " + after
        else:
            out += "\n" + after
    return out


_LICENCE = re.compile(r"copyright|licen[sc]e|SPDX-|all rights reserved|permission is hereby granted|redistribution and use", re.IGNORECASE)
_LINE_HEADER = re.compile(r"(?P<keep>(?:#!.*\n|#.*coding[:=].*\n)*)(?P<comment>(?:[^\S\n]*\n)*(?:#.*\n)+|(?:[^\S\n]*\n)*(?://.*\n)+)")
_BLOCK_HEADER = re.compile(r"(?P<keep>)(?P<comment>\s*/\*.{0,8000}?\*/\s*\n)", re.DOTALL)


def without_licence(text: str) -> str:
    """Code without the comment at its top if that is a licence or a copyright notice; the recipe names the licence of the source."""
    match = _LINE_HEADER.match(text) or _BLOCK_HEADER.match(text)
    if match is None or not _LICENCE.search(match["comment"]):
        return text
    return match["keep"] + text[match.end() :].lstrip("\n")


def too_short(text: str, policy: Policy) -> str | None:
    """Fewer characters than the policy asks for."""
    return f"{len(text)} characters" if len(text) < policy.min_characters else None


def few_letters(text: str, policy: Policy) -> str | None:
    """Tables of numbers, rulings, encoded data."""
    dense = "".join(text.split())
    share = sum(map(str.isalpha, dense)) / max(len(dense), 1)
    return f"{share:.0%} letters" if share < policy.min_letters else None


_FIRST_UNSPACED, _UNSPACED_FACTOR = "\u2e7f", 5
"""From here on, blocks of Chinese and Japanese, written without spaces: they may run longer, by the factor."""


def long_run(text: str, policy: Policy) -> str | None:
    """Encoded data: a run without a space that no language has; or one of nothing but spaces. Both take tokenizers ages."""
    runs = text.split()
    if max(map(len, runs), default=0) > policy.max_run:
        for run in runs:
            unspaced = sum(character > _FIRST_UNSPACED for character in run) > len(run) / 2
            if len(run) > policy.max_run * (_UNSPACED_FACTOR if unspaced else 1):
                return f"{len(run):_} characters without a space"
    if " " * policy.max_run in text or "\t" * policy.max_run in text:
        return f"{policy.max_run:_} spaces or more in a row"
    return None


def repeated_lines(text: str, policy: Policy) -> str | None:
    """Too much of the text is in lines that occurred before."""
    seen: set[str] = set()
    repeated = 0
    for line in map(str.strip, text.split("\n")):
        if line in seen:
            repeated += len(line)
        seen.add(line)
    share = repeated / max(len(text), 1)
    return f"{share:.0%} of the characters" if share > policy.max_repeated_lines else None


_GENERATED = re.compile(
    r"auto-?generated|(?:automatically|machine)[ -]generated|generated (?:automatically|by|from)\b|do not (?:edit|modify) (?:this|by)"
    r"|@generated",
    re.IGNORECASE,
)
_GENERATED_WITHIN = 600


def generated(text: str, policy: Policy) -> str | None:
    """Code whose first lines say that a program wrote it."""
    match = _GENERATED.search(text, 0, _GENERATED_WITHIN)
    return match[0] if match else None


def minified(text: str, policy: Policy) -> str | None:
    """Lines too long for a human to have written."""
    lines = [line for line in text.split("\n") if line]
    mean = sum(map(len, lines)) / max(len(lines), 1)
    return f"{mean:.0f} characters a line" if mean > policy.max_mean_line else None


_EDITS: dict[str, Callable[[str], str]] = {
    "characters normalised": characters,
    "spaces collapsed": spaces,
    "whitespace normalised": whitespace,
    "navigation lines removed": without_navigation,
    "lines unwrapped": unwrapped,
    "licence header removed": without_licence,
}

_RULES: dict[str, Callable[[str, Policy], str | None]] = {
    "too short": too_short,
    "few letters": few_letters,
    "long run without a break": long_run,
    "repeated lines": repeated_lines,
    "generated": generated,
    "minified": minified,
}
