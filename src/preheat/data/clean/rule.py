"""What a cleaning step sees and says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from preheat.data.clean.words import Splitter, Words

Numbers = Mapping[str, float]
"""Thresholds by `rule.name`."""

_splitter = Splitter()


class Text:
    """A text and what rules ask of it, found once."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def runs(self) -> list[str]:
        """What stands between white space."""
        return self.text.split()

    @cached_property
    def words(self) -> Words:
        """Its words as the published filters count them."""
        return _splitter.words(self.runs)


@dataclass(frozen=True)
class Dropped:
    """A document goes: for this reason, with the numbers of the case."""

    reason: str
    detail: str = ""


Step = Callable[[Text, Numbers], str | Dropped | None]
"""An edit gives the new text; a rule gives why the document goes, or None if it stays."""
