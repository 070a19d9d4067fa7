"""How fast a run goes, how much of the machine it uses, and how long it still takes."""

from __future__ import annotations

import math
from collections import deque


def model_flops_utilization(tokens_per_s: float, flops_per_token: float, peak_flops: float) -> float:
    """MFU as a share of 1: observed tokens/s x FLOPs per token / peak FLOP/s (PaLM, arXiv 2204.02311, appendix B).

    The convention of `flops_per_token` (causal or full-square attention) is the caller's and belongs next to the number.
    """
    return tokens_per_s * flops_per_token / peak_flops


class Smoothed:
    """Exponential moving average without the bias towards zero at its start (Adam, arXiv 1412.6980, section 3)."""

    def __init__(self, steps: float) -> None:
        """`steps` is the time constant: a value this many updates ago weighs 1/e of the newest."""
        self._keep = math.exp(-1 / steps)
        self._sum = 0.0
        self._weight = 0.0

    def update(self, value: float) -> float:
        """Take in a value and return the average. A value that is not finite is left out, for it would stay forever."""
        if math.isfinite(value):
            self._sum = self._keep * self._sum + (1 - self._keep) * value
            self._weight = self._keep * self._weight + (1 - self._keep)
        return self.value

    @property
    def value(self) -> float:
        """NaN before the first value."""
        return self._sum / self._weight if self._weight else math.nan


class Pace:
    """Tokens per second of wall time, measurements and saves included: what an ETA needs."""

    def __init__(self, total_tokens: int, window_s: float = 60.0) -> None:
        self._total = total_tokens
        self._window = window_s
        self._marks: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, tokens: int) -> None:
        """Say that `tokens` have been consumed at the monotonic time `now_s`."""
        self._marks.append((now_s, tokens))
        while len(self._marks) > 2 and self._marks[1][0] <= now_s - self._window:
            self._marks.popleft()

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the run at the pace of the last minute; None before there is a pace."""
        if len(self._marks) < 2:
            return None
        (first_s, first_tokens), (last_s, last_tokens) = self._marks[0], self._marks[-1]
        if last_s <= first_s or last_tokens <= first_tokens:
            return None
        return max(0, self._total - last_tokens) * (last_s - first_s) / (last_tokens - first_tokens)
