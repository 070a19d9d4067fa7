"""The learning rate as a function of tokens consumed.

End points: `lr(0) = 0` when there is a warm-up, `lr(warmup) = peak`, `lr(total) = final`. An update uses the rate at the clock that it
reaches, so that the first update already moves (llm.c's convention; Megatron-LM's first update has rate zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Shape = Callable[[float], float]

SHAPES: dict[str, Shape] = {
    "linear": lambda r: 1 - r,
    "cosine": lambda r: (1 + math.cos(math.pi * r)) / 2,
    "exponential": lambda r: 2 * 0.5**r - 1,
    "1-sqrt": lambda r: 1 - math.sqrt(r),
}
"""Share of the way from final to peak that is left when the share `r` of the decay is done; 1 at r=0, 0 at r=1.

Exponential and 1-sqrt as in Megatron-LM's WSD tails; 1-sqrt after arXiv 2405.18392.
"""


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up over `warmup` tokens, the peak until `decay_start`, then `shape` down to `final` at `total`."""

    peak: float
    final: float
    warmup: int
    decay_start: int
    total: int
    shape: str | None
    """A key of `SHAPES`; None keeps the peak."""

    def __call__(self, tokens: int) -> float:
        """The rate after `tokens` tokens; clamped to the final value past the end."""
        if tokens < self.warmup:
            return self.peak * (tokens / self.warmup)
        if self.shape is None or tokens <= self.decay_start:
            return self.peak
        if tokens >= self.total:
            return self.final
        share = (tokens - self.decay_start) / (self.total - self.decay_start)
        return self.final + (self.peak - self.final) * SHAPES[self.shape](share)
