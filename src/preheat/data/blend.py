"""Which source each sample of a mixture comes from: within one sample of the exact share at every prefix, with constant-time seek."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

MAX_PERIOD = 1_000_000
"""Weights with a common denominator above this are refused: write them with fewer digits."""


class Blend:
    """The order of sources of a mixture, as a pure function of the sample number.

    The weights have a common denominator, after which the order repeats; one period is laid out by Tijdeman's rule for the
    chairman assignment problem (Discrete Mathematics 32, 1980), which keeps every source within 1 - 1/(2k - 2) samples of its
    exact share at every prefix, for k sources.

    Raises:
        ValueError: the common denominator is above `MAX_PERIOD`.
    """

    def __init__(self, weights: Mapping[str, Fraction]) -> None:
        self.names = tuple(weights)
        whole = sum(weights.values(), Fraction(0))
        shares = [weight / whole for weight in weights.values()]
        self.period = math.lcm(*(share.denominator for share in shares))
        if self.period > MAX_PERIOD:
            raise ValueError(
                f"the weights {', '.join(f'{n} = {float(w):g}' for n, w in weights.items())} only repeat after {self.period:_} samples"
            )
        self._per_period = [int(share * self.period) for share in shares]
        self._order, self._before = _one_period(tuple(self._per_period))

    def source(self, index: int) -> int:
        """The number of the source, in the order of the weights, that gives sample `index`."""
        return int(self._order[index % self.period])

    def count(self, index: int, source: int) -> int:
        """How many of the samples before `index` came from a source."""
        periods, rest = divmod(index, self.period)
        return periods * self._per_period[source] + int(self._before[rest, source])


@lru_cache(maxsize=64)
def _one_period(counts: tuple[int, ...]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """The order of one period and, for each prefix, the samples of each source in it.

    In integers: a source is eligible for sample n when its lag `counts * (n + 1) - period * taken` is at least
    period / (2k - 2), and the eligible one whose deadline is nearest goes next.
    """
    period, sources = sum(counts), len(counts)
    order = np.zeros(period, np.int16)
    before = np.zeros((period + 1, sources), np.int64)
    scale = max(2 * sources - 2, 1)
    share = np.array(counts, np.int64)
    taken = np.zeros(sources, np.int64)
    for sample in range(period):
        lag = share * (sample + 1) - period * taken
        eligible = lag * scale >= period if sources > 1 else np.ones(1, bool)
        deadline = np.where(eligible, (period * (scale - 1) - lag * scale) / share, np.inf)
        chosen = int(deadline.argmin())
        order[sample] = chosen
        taken[chosen] += 1
        before[sample + 1] = taken
    return order, before
