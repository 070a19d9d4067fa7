"""Which branch of a script's `if` is read: the one that its condition chooses, or the first when only a shell could tell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


@dataclass
class Branch:
    """One `if` that is being read."""

    line: int
    conditions: list[list[str]] = field(default_factory=list)
    """The commands between `if` and `then`; words after expansion."""
    deciding: bool = True
    reading: bool = False
    taken: bool = False
    """A branch has been read."""
    guessed: bool = False
    """Its condition was not known."""

    def decide(self) -> None:
        """At `then`: read this branch if none was, and if its condition holds or is not known."""
        value = condition(self.conditions[0]) if len(self.conditions) == 1 else None
        self.guessed = self.guessed or (value is None and not self.taken)
        self.reading = not self.taken and value is not False
        self.taken = self.taken or self.reading
        self.conditions, self.deciding = [], False

    def otherwise(self) -> None:
        """At `else`."""
        self.reading, self.taken = not self.taken, True


def condition(words: list[str]) -> bool | None:
    """Whether `[ ... ]` or `[[ ... ]]` holds: comparisons of texts and numbers, -z and -n. None for all that only a shell could know."""
    negated = words[:1] == ["!"]
    if negated:
        words = words[1:]
    closing = {"[": "]", "[[": "]]"}.get(words[0]) if words else None
    if closing is None or words[-1] != closing or any("$" in word for word in words):
        return None
    value = _test(words[1:-1])
    return value if value is None or not negated else not value


def _test(words: list[str]) -> bool | None:
    if words[:1] == ["!"]:
        value = _test(words[1:])
        return value if value is None else not value
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) != 3:
        return None
    left, operator, right = words
    if operator in ("=", "==", "!="):
        return None if re.search(r"[*?\[]", right) else (left == right) == (operator != "!=")
    if operator in _NUMBERS and re.fullmatch(r"-?\d{1,18}", left) and re.fullmatch(r"-?\d{1,18}", right):
        a, b = int(left), int(right)
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[_NUMBERS[operator]]
    return None
