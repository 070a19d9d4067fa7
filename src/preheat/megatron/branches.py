"""The blocks of a script, and which part of each is read: the one that its condition chooses, or the first when only a shell could tell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_CLOSING = {"[": "]", "[[": "]]", "test": ""}
_LONGEST = 200
"""Words of a condition that is worked out."""
_CONSTANTS = {"true": True, ":": True, "false": False}


@dataclass
class Block:
    """An `if`, a loop, a `case` or a group in braces that is being read."""

    kind: Literal["if", "loop", "case", "group"]
    line: int
    deciding: bool = False
    """Commands belong to the condition."""
    reading: bool = False
    """Commands belong to the part that is read."""
    taken: bool = False
    """A part has been read."""
    guessed: bool = False
    """The condition was not known."""
    condition: list[str] = field(default_factory=list)
    """Words after expansion, with && and || between commands."""
    subject: str = ""
    """What a `case` compares."""
    patterns: list[str] = field(default_factory=list)

    def add(self, words: list[str], end: str) -> None:
        """One more command of the condition, and what separates it from the next."""
        self.condition += [*words, *([end] if end in ("&&", "||", "(", ")", "|") else [])]

    def decide(self) -> None:
        """At `then` or `do`: read this part if none was, and if its condition holds or is not known."""
        self._take(condition(self.condition))
        self.condition, self.deciding = [], False

    def otherwise(self) -> None:
        """At `else`."""
        self.reading, self.taken = not self.taken, True

    def choose(self) -> None:
        """After the patterns of a part of a `case`."""
        known = not any("$" in text for text in (self.subject, *self.patterns))
        self._take(any(fnmatchcase(self.subject, pattern) for pattern in self.patterns) if known else None)
        self.patterns, self.deciding = [], False

    def next_part(self) -> None:
        """At `;;`."""
        self.reading, self.deciding = False, True

    def leave(self) -> None:
        """The part that is read ends the script: it is not the one that launches, so another may be."""
        if self.kind in ("if", "case"):
            self.taken = False

    def _take(self, value: bool | None) -> None:
        self.guessed = self.guessed or (value is None and not self.taken)
        self.reading = not self.taken and value is not False
        self.taken = self.taken or self.reading


def condition(words: list[str]) -> bool | None:
    """Whether a condition holds: tests joined by && and ||, of texts and numbers, -z and -n. None for all that only a shell could know."""
    return _joined(words, "||") if len(words) <= _LONGEST else None


def _joined(words: list[str], operator: str) -> bool | None:
    """The value of parts between operators, || outside and && inside; brackets [[ ]] hold operators of their own."""
    if operator not in words:
        return _joined(words, "&&") if operator == "||" else _test(words)
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += (word == "[[") - (word == "]]")
        if word == operator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) == 1:
        return _joined(words, "&&") if operator == "||" else _test(words)
    return _all([_joined(part, "&&") for part in parts], operator)


def _all(values: list[bool | None], operator: str) -> bool | None:
    decisive = operator == "||"
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def _test(words: list[str]) -> bool | None:
    """The value of one test with its brackets."""
    if words[:1] == ["!"]:
        value = _test(words[1:])
        return value if value is None else not value
    if len(words) == 1:
        return _CONSTANTS.get(words[0])
    closing = _CLOSING.get(words[0]) if words else None
    if closing is None or (closing and words[-1] != closing) or any("$" in word or word in ("(", ")", "|") for word in words):
        return None
    return _inside(words[1:-1] if closing else words[1:], words[0] == "[[")


def _inside(words: list[str], double: bool) -> bool | None:
    """What stands between the brackets."""
    for operator, own in (("||", "-o"), ("&&", "-a")):
        mark = operator if double else own
        if mark in words and len(words) > 3:
            at = words.index(mark)
            return _all([_inside(words[:at], double), _inside(words[at + 1 :], double)], operator)
    if words[:1] == ["!"] and len(words) > 1:
        value = _inside(words[1:], double)
        return value if value is None else not value
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    return _compare(*words, double=double) if len(words) == 3 else None


def _compare(left: str, operator: str, right: str, *, double: bool) -> bool | None:
    if operator in ("=", "==", "!="):
        return (fnmatchcase(left, right) if double else left == right) == (operator != "!=")
    if operator in _NUMBERS and re.fullmatch(r"-?\d{1,18}", left) and re.fullmatch(r"-?\d{1,18}", right):
        a, b = int(left), int(right)
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[_NUMBERS[operator]]
    return None
