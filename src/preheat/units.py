"""Quantities with a unit: `"10B tokens"`, `"2000 steps"`, `"512 samples"`, `"85%"`. Never a bare number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

Unit = Literal["tokens", "samples", "steps", "%"]

_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_PATTERN = re.compile(r"(?P<number>\d[\d_,]*(?:\.\d+)?)\s*(?P<suffix>[KMBT]?)\s*(?P<unit>tokens?|samples?|steps?|%)")
PATTERN = r"^\d[\d_,]*(\.\d+)?\s*[KMBT]?\s*(tokens?|samples?|steps?|%)$"
"""The regular expression of a quantity, for the JSON Schema."""


LARGEST = 10**21
"""No run is longer than this many tokens."""


LONGEST = 64
"""No quantity takes more characters."""


@dataclass(frozen=True)
class Quantity:
    """An exact, non-negative amount of tokens, samples, optimizer steps, or a share of the whole run.

    Counts are whole numbers. A share is kept as an exact fraction of 1 (`"85%"` is 17/20).
    """

    amount: Fraction
    unit: Unit

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"unknown unit {self.unit!r}")
        if self.amount < 0:
            raise ValueError(f"{self.amount} {self.unit} is negative")
        if self.unit == "%":
            if self.amount > 1:
                raise ValueError(f"{float(self.amount * 100):g}% is more than the whole run")
        elif self.amount > LARGEST:
            raise ValueError(f"more than {LARGEST:_} {self.unit}")
        elif self.amount.denominator != 1:
            raise ValueError(f"{float(self.amount):g} {self.unit} is not a whole number of {self.unit}")

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read `"10B tokens"`; K, M, B, T are powers of 1,000.

        Raises:
            ValueError: the text has no unit, an unknown one, or is no whole number of it.
        """
        match = _PATTERN.fullmatch(text.strip()) if len(text) <= LONGEST else None
        if match is None:
            text = text if len(text) <= LONGEST else f"{text[:20]}..."
            raise ValueError(f'{text!r} is no quantity: write a number with its unit, as in "10B tokens", "2000 steps" or "85%"')
        amount = Fraction(match["number"].replace("_", "").replace(",", "")) * _SUFFIX[match["suffix"]]
        if match["unit"] == "%":
            if match["suffix"]:
                raise ValueError(f"{text!r}: a percentage takes no {match['suffix']}")
            return cls(amount / 100, "%")
        unit = match["unit"] if match["unit"].endswith("s") else match["unit"] + "s"
        return cls(amount, unit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        if self.unit == "%":
            return f"{_decimal(self.amount * 100)}%"
        return f"{short(int(self.amount))} {self.unit}"


def tokens(count: int) -> Quantity:
    """`count` tokens."""
    return Quantity(Fraction(count), "tokens")


def short(count: int) -> str:
    """A count as people write it, without losing a digit: 10000000000 -> "10B", 65536 -> "65_536"."""
    for suffix, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= factor and count % (factor // 1000) == 0:
            return f"{_decimal(Fraction(count, factor))}{suffix}"
    return f"{count:_}"


def duration(seconds: float) -> str:
    """A time as people say it: 7.4 -> "7 s", 192 -> "3 min 12 s", 5400 -> "1 h 30 min", 200000 -> "2 d 7 h"."""
    whole = round(seconds)
    for unit, length, small, small_length in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // small_length
            return f"{whole // length} {unit} {rest} {small}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def rounded(count: float) -> str:
    """A count for reading only: 124439808 -> "124.4M"."""
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:.1f}{suffix}"
    return f"{count:g}"


def _decimal(value: Fraction) -> str:
    """The exact decimal digits of a fraction whose denominator is a product of 2s and 5s."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(int(value * 10**places)).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits
