"""Megatron-LM's list expressions over layers, `([0]*3+[1]*58)`, worked out by hand: Megatron-LM itself hands them to eval."""

from __future__ import annotations

import re

MAX_LAYERS = 100_000


def read_pattern(text: str) -> list[int]:
    """A list expression of digits, brackets, `+` and `*`, one number for each layer.

    Raises:
        ValueError: it is none.
    """
    tokens = re.findall(r"\d+|[\[\]()+*,]|\S", text)
    if len(tokens) > 2_000:
        raise ValueError("too long")
    value, rest = _pattern_sum(tokens, 0)
    if rest != len(tokens) or len(value) > MAX_LAYERS:
        raise ValueError(text)
    return value


def _pattern_sum(tokens: list[str], at: int, depth: int = 0) -> tuple[list[int], int]:
    value, at = _pattern_item(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "+*":
        if tokens[at] == "+":
            right, at = _pattern_item(tokens, at + 1, depth)
            while at < len(tokens) and tokens[at] == "*":
                right, at = _repeated(right, tokens, at)
            value = value + right
        else:
            value, at = _repeated(value, tokens, at)
    return value, at


def _repeated(value: list[int], tokens: list[str], at: int) -> tuple[list[int], int]:
    times = int(tokens[at + 1]) if at + 1 < len(tokens) and tokens[at + 1].isdigit() else None
    if times is None or times * max(len(value), 1) > MAX_LAYERS:
        raise ValueError("repeat")
    return value * times, at + 2


def _pattern_item(tokens: list[str], at: int, depth: int) -> tuple[list[int], int]:
    if at >= len(tokens) or depth > 20:
        raise ValueError("end")
    if tokens[at] == "(":
        value, at = _pattern_sum(tokens, at + 1, depth + 1)
        closing = ")"
    elif tokens[at] == "[":
        value, at = [], at + 1
        while at < len(tokens) and tokens[at] != "]":
            if tokens[at] != ",":
                value.append(int(tokens[at]))
            at += 1
        closing = "]"
    else:
        raise ValueError(tokens[at])
    if at >= len(tokens) or tokens[at] != closing:
        raise ValueError("bracket")
    return value, at + 1
