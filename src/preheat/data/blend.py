"""Which source each sample of a mixture comes from: within one sample of the exact share at every prefix, with constant-time seek."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from preheat.errors import refuse

MAX_PERIOD = 1_000_000
"""Weights with a common denominator above this are refused: write them with fewer digits."""


_COUNTED = 256
"""Every so many samples the counts are written down."""


class Blend:
    """The order of sources of a mixture, as a pure function of the sample number.

    The weights have a common denominator, after which the order repeats; one period is laid out by Tijdeman's rule for the
    chairman assignment problem (Discrete Mathematics 32, 1980), which keeps every source within 1 - 1/(2k - 2) samples of its
    exact share at every prefix, for k sources.

    Raises:
        PreheatError: the common denominator is above `MAX_PERIOD`.
    """

    def __init__(self, weights: Mapping[str, Fraction]) -> None:
        self.names = tuple(weights)
        whole = sum(weights.values(), Fraction(0))
        shares = [weight / whole for weight in weights.values()]
        self.period = math.lcm(*(share.denominator for share in shares))
        if self.period > MAX_PERIOD:
            got = f"the weights {', '.join(f'{name} = {float(weight):.9g}' for name, weight in weights.items())}"
            want = f"they repeat after {self.period:_} samples, which should be at most {MAX_PERIOD:_}"
            refuse(
                "stage.mix", got, want, "Write them with fewer digits, or as whole numbers (1 and 2 for a third and two)", key="stage.mix"
            )
        self._per_period = [int(share * self.period) for share in shares]
        self._order, self._before = _one_period(tuple(self._per_period))

    def source(self, index: int) -> int:
        """The number of the source, in the order of the weights, that gives sample `index`."""
        return int(self._order[index % self.period])

    def count(self, index: int, source: int) -> int:
        """How many of the samples before `index` came from a source."""
        periods, rest = divmod(index, self.period)
        row = rest // _COUNTED
        since = np.count_nonzero(self._order[row * _COUNTED : rest] == source)
        return periods * self._per_period[source] + int(self._before[row, source]) + int(since)


@lru_cache(maxsize=64)
def _one_period(counts: tuple[int, ...]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """The order of one period, and for every `_COUNTED`-th of its samples how many each source gave before it.

    In integers: a sample of a source may come once the source lags by 1 / (2k - 2) samples and must come before it lags by more than
    1 - 1 / (2k - 2); of those that may, the one that must come first goes next.
    """
    period, sources = sum(counts), len(counts)
    scale = max(2 * sources - 2, 1)
    order = np.zeros(period, np.int16)

    def first(source: int, number: int) -> int:
        return -(-(number * scale + 1) * period // (counts[source] * scale)) - 1

    def last(source: int, number: int) -> int:
        return ((number + 1) * scale - 1) * period // (counts[source] * scale)

    waiting = [(first(source, 0), source, 0) for source in range(sources)]
    heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    for time in range(period):
        while waiting and waiting[0][0] <= time:
            _, source, number = heappop(waiting)
            heappush(ready, (last(source, number), source, number))
        _, source, number = heappop(ready)
        order[time] = source
        if number + 1 < counts[source]:
            heappush(waiting, (first(source, number + 1), source, number + 1))
    before = np.zeros((period // _COUNTED + 1, sources), np.int64)
    for source in range(sources):
        before[1:, source] = np.cumsum(order == source)[_COUNTED - 1 :: _COUNTED]
    return order, before
