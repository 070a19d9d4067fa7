"""The rules of C4 (Raffel et al. 2019, arXiv 1910.10683, section 2.2), with the line rules of its published code; no list of bad words."""

from __future__ import annotations

import re

from preheat.data.clean.rule import Dropped, Numbers, Text
from preheat.data.clean.words import sentences

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def lines(text: Text, numbers: Numbers) -> str | Dropped:
    """The lines that are sentences, without citation marks; a page with too few of them goes, and so does one with code or filler text."""
    longest, fewest, ended = numbers["c4.max_word"], numbers["c4.min_words_in_line"], numbers["c4.terminal_punctuation"]
    kept: list[str] = []
    count, wanted = 0, numbers["c4.min_sentences"]
    for raw in text.text.splitlines():
        line = raw.strip()
        words = line.split()
        if len(line) > longest and max(map(len, words)) > longest:
            continue
        if "[" in line:
            line = _CITATION.sub("", line)
        if ended and (not line.endswith(_ENDS) or line.endswith("...")):
            continue
        if len(words) < fewest:
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return Dropped("c4: lorem ipsum")
        if "javascript" in lower:
            continue
        if "{" in line:
            return Dropped("c4: curly bracket")
        if any(notice in lower for notice in _NOTICES):
            continue
        if count < wanted:
            count += sentences(line, wanted - count)
        kept.append(line)
    if count < wanted:
        return Dropped("c4: too few sentences", f"{count}")
    return "\n".join(kept).strip()
