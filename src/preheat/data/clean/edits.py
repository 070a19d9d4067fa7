"""What is put right in a document: each edit takes a text and gives one; an edit of its own result changes nothing more."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from itertools import pairwise

from preheat.data.clean.scripts import UNSPACED, columns

WRAP_SLACK = 3
"""A line counts as full if with the next word it would come within this many columns of the wrap width."""
WRAP_SHARE = 0.85
"""A text is hard-wrapped if this share of the lines inside its paragraphs is full."""
MIN_WRAP_WIDTH, MAX_WRAP_WIDTH = 45, 120
"""Widths outside of this were not wrapped for a screen."""
MIN_WRAPPED_LINES = 4
VERSE_SHARE = 0.75
"""A text is verse or dialogue if more than this share of the lines inside its paragraphs begins as a sentence does."""

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
_FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
_FIRST_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]*")
_UNSPACED_START, _UNSPACED_END = re.compile(rf"[{UNSPACED}]"), re.compile(rf"[{UNSPACED}]\Z")
_OPENING = "\"'\u201c\u2018\u201e\u00ab([\u00bf\u00a1\u2014\u2013- "
"""Quotation marks, brackets and dashes, which may stand before the first word of a sentence."""


def unwrapped(text: str) -> str:
    """Hard-wrapped paragraphs as one line each; verse, lists, tables, fenced code and text that is not wrapped stay.

    A text counts as wrapped if nearly every line inside a paragraph is full, the next word would not have fit, and not nearly every one
    begins a sentence, as the lines of verse and of dialogue do.
    """
    blocks = _paragraphs(text)
    pairs = [(line, after) for lines, code in blocks if not code for line, after in pairwise(lines)]
    if len(pairs) < MIN_WRAPPED_LINES:
        return text
    width = sorted(columns(line) for line, _ in pairs)[len(pairs) * 95 // 100]
    if not MIN_WRAP_WIDTH <= width <= MAX_WRAP_WIDTH:
        return text
    full = sum(_is_full(line, after, width) for line, after in pairs)
    if full < WRAP_SHARE * len(pairs) or sum(_begins(after) for _, after in pairs) > VERSE_SHARE * len(pairs):
        return text
    return "\n\n".join("\n".join(lines) if code else _joined(lines, width) for lines, code in blocks) + "\n"


def _paragraphs(text: str) -> list[tuple[list[str], bool]]:
    """The lines of each paragraph, and whether they are, at least in part, fenced code of Markdown."""
    out, inside = [], False
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        fences = sum(_FENCE.match(line) is not None for line in lines) if "```" in block or "~~~" in block else 0
        out.append((lines, inside or fences > 0))
        inside ^= fences % 2 == 1
    return out


def _is_full(line: str, after: str, width: int) -> bool:
    word = _FIRST_WORD.match(after)
    assert word is not None
    return columns(line) + 1 + columns(word[0]) > width - WRAP_SLACK


def _begins(line: str) -> bool:
    """Whether a line begins as a sentence does; in a text of capital letters that says nothing."""
    return line.lstrip(_OPENING)[:1].isupper() and not line.isupper()


def _joined(lines: list[str], width: int) -> str:
    out = lines[0]
    for line, after in pairwise(lines):
        flows = _is_full(line, after, width) or (after[0].islower() and columns(line) > width / 2)
        if flows and not _LIST_ITEM.match(after) and not line.startswith((" ", "\t")):
            # A hyphen at the end of a line may belong to the word: it stays, without a space.
            close = re.search(r"\w-$", line) or (_UNSPACED_END.search(line) and _UNSPACED_START.match(after))
            out += after if close else " " + after
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


_APART = UNSPACED + "\uac00-\ud7a3"
_LETTER = rf"[^\W{_APART}]"
"""A letter or digit that belongs to an address beside it. Chinese, Japanese, Thai and Korean stand beside one without a space."""
_EMAIL = re.compile(
    rf"(?<![.+-])(?<!{_LETTER})(?:{_LETTER}|[.+-]){{1,64}}@[\w-]{{1,63}}(?:\.[\w-]{{1,63}})*"
    rf"\.(?:[^\W\d_{_APART}]{{2,24}}|xn--[A-Za-z0-9-]{{2,59}})(?!-|{_LETTER})"
)
_ADDRESS = re.compile(rf"(?<!\.)(?<!{_LETTER})(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}(?!{_LETTER}|\.[0-9])")
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
