"""Axes: where the ticks stand, how numbers are written on them, and where a value falls between the ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LOG_DIGITS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))
"""Mantissas of logarithmic ticks, from sparse to dense."""


LARGEST = 1e100
"""Axes are made for values up to this size, far beyond what single precision holds."""
_TINY = 1 / LARGEST


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, both finite and low < high; a logarithmic one has low > 0."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where `value` lies: 0 at `low`, 1 at `high`; what lies outside is moved to the nearer end."""
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))

    def ticks(self, count: int = 5) -> list[float]:
        """About `count` round numbers within the axis."""
        if not self.log:
            return linear_ticks(self.low, self.high, count)
        for digits in _LOG_DIGITS:
            ticks = _log_ticks(self.low, self.high, digits)
            if len(ticks) >= 3:
                return ticks[:: math.ceil(len(ticks) / (count + 2))]
        return linear_ticks(self.low, self.high, count)


def fit(values: Sequence[float], *, zero: bool = False, log: bool = False) -> Scale:
    """The axis that shows all `values` (at least one, none beyond `LARGEST`) with some air; from zero or logarithmic where signs allow."""
    low, high = min(values), max(values)
    if log and low > _TINY:
        air = max((high / low) ** 0.05, 1.01)
        return Scale(low / air, high * air, log=True)
    if zero and low >= 0:
        return Scale(0.0, high * 1.08 if high > _TINY else 1.0)
    # An axis narrower than a float can tell apart would have no middle.
    air = max((high - low) * 0.06, max(abs(low), abs(high)) * 0.005, 1e-12)
    return Scale(low - air, high + air)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` multiples of 1, 2, 2.5 or 5 times a power of ten in [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= raw * 0.9999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, digits: tuple[float, ...]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]


def number(value: float, digits: int = 4) -> str:
    """A number for reading: at most `digits` significant digits, K, M, B and T from a thousand up, a power of ten where it is tiny."""
    if not math.isfinite(value):
        return str(value)
    magnitude = abs(value)
    if magnitude and (magnitude < 1e-3 or magnitude >= 1e15):
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if magnitude >= factor:
            return f"{value / factor:.{digits}g}{suffix}"
    if magnitude >= 10_000:
        return f"{value / 1000:.{digits}g}K"
    return f"{value:,.0f}" if magnitude >= 1000 else f"{value:.{digits}g}"
