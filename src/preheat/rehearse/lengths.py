"""Sequence lengths of a twin: in the same order as the real ones, each twice the one below."""

from __future__ import annotations

import math
from dataclasses import dataclass

from preheat.recipe import Recipe

SHORTEST, LONGEST = 32, 256
"""Tokens. Both divide among the parts of any twin: 2 x context 2 x tensor 2."""


@dataclass(frozen=True)
class Lengths:
    """Real sequence length -> that of the twin; longer ones than there are doublings up to `LONGEST` become alike."""

    short: dict[int, int]

    @classmethod
    def of(cls, recipe: Recipe) -> Lengths:
        real = sorted({recipe.batch.seq_len, *(stage.seq_len for stage in recipe.stage if stage.seq_len)})
        return cls({length: min(LONGEST, SHORTEST * 2**place) for place, length in enumerate(real)})

    @property
    def longest(self) -> int:
        return max(self.short.values())

    def table(self, rows: int) -> int:
        """Rows of a table of learned positions: as many as the longest sequence has tokens, or more where there were more."""
        return self.longest * (2 if rows > max(self.short) else 1)

    def window(self, window: int) -> int:
        """A sliding window: the same share of the longest sequence."""
        return max(1, min(self.longest - 1, round(window * self.longest / max(self.short))))

    def original(self, positions: int, factor: float) -> int:
        """What rotary frequencies that are stretched by `factor` were made for; the longest sequence stays within reach."""
        scaled = self.short.get(positions) or round(positions * self.longest / max(self.short))
        return max(2, scaled, math.ceil(self.longest / factor))
