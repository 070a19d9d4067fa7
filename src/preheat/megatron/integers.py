"""Integer arithmetic as a shell writes it in `$(( ))`, worked out by hand: no text is ever handed to an interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(.))", re.DOTALL)


def evaluate(expression: str, look_up: Callable[[str], str] | None = None) -> int | None:
    """The value of an integer expression of + - * / % and brackets, or None when it is anything else.

    Division cuts towards zero, as a shell does it.
    """
    tokens: list[str | int] = []
    for number, name, other in _TOKEN.findall(expression.strip()):
        if name:
            text = look_up(name) if look_up else ""
            if not re.fullmatch(r"-?\d{1,19}", text.strip()):
                return None
            tokens.append(int(text))
        else:
            tokens.append(int(number) if number and len(number) < 20 else other or "?")
    if len(tokens) > 200:
        return None
    try:
        value, rest = _sum(tokens, 0)
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return value if rest == len(tokens) and abs(value) < 10**30 else None


def _sum(tokens: list[str | int], at: int) -> tuple[int, int]:
    value, at = _product(tokens, at)
    while at < len(tokens) and tokens[at] in ("+", "-"):
        right, following = _product(tokens, at + 1)
        value, at = (value + right if tokens[at] == "+" else value - right), following
    return value, at


def _product(tokens: list[str | int], at: int) -> tuple[int, int]:
    value, at = _factor(tokens, at)
    while at < len(tokens) and tokens[at] in ("*", "/", "%"):
        right, following = _factor(tokens, at + 1)
        if tokens[at] == "*":
            value *= right
        else:
            quotient = abs(value) // abs(right) * (1 if (value < 0) == (right < 0) else -1)
            value = quotient if tokens[at] == "/" else value - quotient * right
        at = following
    return value, at


def _factor(tokens: list[str | int], at: int) -> tuple[int, int]:
    token = tokens[at]
    if isinstance(token, int):
        return token, at + 1
    if token == "-":
        value, following = _factor(tokens, at + 1)
        return -value, following
    if token != "(":
        raise ValueError(token)
    value, following = _sum(tokens, at + 1)
    if tokens[following] != ")":
        raise ValueError("bracket")
    return value, following + 1
