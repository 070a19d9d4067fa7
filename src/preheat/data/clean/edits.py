"""What is put right in a document: each edit takes a text and gives one; an edit of its own result changes nothing more."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from itertools import pairwise

WRAP_SLACK = 3
"""A line counts as full if with the next word it would come within this many columns of the wrap width."""
WRAP_SHARE = 0.85
"""A text is hard-wrapped if this share of the lines inside its paragraphs is full."""
MIN_WRAP_WIDTH, MAX_WRAP_WIDTH = 45, 120
"""Widths outside of this were not wrapped for a screen."""
MIN_WRAPPED_LINES = 4


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


_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24}(?![\w-])")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
EMAIL, ADDRESS = "email@example.com", "192.0.2.1"
"""What stands for an address: nobody's, by RFC 2606 and RFC 5737."""


def without_personal_data(text: str) -> str:
    """E-mail addresses and public IPv4 addresses as placeholders, as FineWeb (arXiv 2406.17557) does; private ones name nobody."""
    if "@" in text:
        text = _EMAIL.sub(EMAIL, text)
    return _ADDRESS.sub(_masked, text)


def _masked(match: re.Match[str]) -> str:
    try:
        return ADDRESS if ipaddress.ip_address(match[0]).is_global else match[0]
    except ValueError:  # A number of chapters, not of a machine.
        return match[0]
