"""What a cleaning step sees and says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from preheat.data.clean.words import Counts, Hashes, Splitter

Numbers = Mapping[str, float]
"""Thresholds by `rule.name`."""

_splitter = Splitter()


class Text:
    """A text and what rules ask of it, found once."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def counts(self) -> Counts:
        """Words, symbols, and so on."""
        return _splitter.counts(self._numbers)

    @cached_property
    def words(self) -> tuple[Hashes, npt.NDArray[np.int64]]:
        """Hash and length of each word."""
        return _splitter.words(self._numbers)

    @property
    def plain_words(self) -> Hashes:
        """Hash of each word that is no symbol, without regard to case."""
        return _splitter.plain_words(self._numbers)

    @cached_property
    def runs(self) -> list[str]:
        """What stands between white space."""
        return self.text.split()

    @property
    def _numbers(self) -> npt.NDArray[np.int64]:
        # Not kept: the splitter may forget its numbers between two texts.
        return _splitter.numbers(self.runs)


@dataclass(frozen=True)
class Dropped:
    """A document goes: for this reason, with the numbers of the case."""

    reason: str
    detail: str = ""


Step = Callable[[Text, Numbers], str | Dropped | None]
"""An edit gives the new text; a rule gives why the document goes, or None if it stays."""
