"""The learning rate as a function of tokens consumed.

End points: `lr(0) = 0` when there is a warm-up, `lr(warmup) = peak`, each later piece of the schedule ends exactly at its own rate, and
the rate stays at the last one past the end. An update uses the rate at the clock that it reaches, so that the first update already moves
(llm.c's convention; Megatron-LM's first update has rate zero).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field

Shape = Callable[[float], float]

SHAPES: dict[str, Shape] = {
    "linear": lambda r: 1 - r,
    "cosine": lambda r: (1 + math.cos(math.pi * r)) / 2,
    "exponential": lambda r: 2 * 0.5**r - 1,
    "1-sqrt": lambda r: 1 - math.sqrt(r),
    "constant": lambda r: 0.0,
}
"""Share of the way from the rate before to the rate at the end of a piece that is left when the share `r` of it is done.

1 at r=0 and 0 at r=1, but for `constant`, which is at its rate all along. Exponential and 1-sqrt as in Megatron-LM's
WSD tails; 1-sqrt after arXiv 2405.18392.
"""


@dataclass(frozen=True)
class Piece:
    """From the end of the piece before until `end` tokens the rate goes to `lr` in a `shape` of `SHAPES`."""

    end: int
    lr: float
    shape: str


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up from zero to `peak` over `warmup` tokens, then the pieces one after the other."""

    peak: float
    warmup: int
    pieces: tuple[Piece, ...]
    """In order; at least one."""
    _ends: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", [piece.end for piece in self.pieces])

    def __call__(self, tokens: int) -> float:
        """The rate after `tokens` tokens."""
        if tokens >= self._ends[-1]:
            return self.pieces[-1].lr
        if tokens < self.warmup:
            return self.peak * (tokens / self.warmup)
        if tokens == self.warmup:
            return self.peak
        index = bisect.bisect_left(self._ends, tokens)
        piece = self.pieces[index]
        start, before = (self.pieces[index - 1].end, self.pieces[index - 1].lr) if index else (self.warmup, self.peak)
        if tokens == piece.end or before == piece.lr:
            return piece.lr
        return piece.lr + (before - piece.lr) * SHAPES[piece.shape]((tokens - start) / (piece.end - start))
