"""A document, one that is left out and why, and what reading has seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

HEAD = 200
"""Characters of a document that its exclusion shows."""


@dataclass(frozen=True)
class Document:
    """A piece of text with a label. Labels are relative to a root, so that they are the same on every machine; they need not be unique."""

    source: str
    id: str
    text: str
    score: float | None = None
    """What the record says of its quality, where the source names a field for it."""


@dataclass(frozen=True)
class Exclusion:
    """A document that was read and not kept: at which step, by which rule, and the details of the case.

    A document that an edit altered has the same kind of record, with the step "edit".
    """

    source: str
    id: str
    step: str
    reason: str
    detail: str
    head: str
    """The first `HEAD` characters."""
    count: int = 1
    """How many documents it stands for: the rows of a part of a file that cannot be read have one record."""


def exclude(document: Document, step: str, reason: str, detail: str = "") -> Exclusion:
    """The exclusion of a document."""
    return Exclusion(document.source, document.id, step, reason, detail, document.text[:HEAD])


@dataclass
class Reading:
    """What reading has seen. `documents` counts every document or record met, the excluded ones included."""

    documents: int = 0
    bytes: int = 0
    """Unpacked."""
    repaired: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    """Documents that could not be read, by reason; empty ones are none of them."""
    excluded: list[Exclusion] = field(default_factory=list)

    def skip(self, document: Document, reason: str, detail: str = "", count: int = 1) -> None:
        """Note a document that cannot be read, or `count` of them that share a fault."""
        self.documents += count
        if reason != EMPTY:
            self.unreadable[reason] += count
        self.excluded.append(replace(exclude(document, "read", reason, detail), count=count))


EMPTY = "empty"
"""The reason of a document without text: nothing is wrong with its source."""


@dataclass(frozen=True)
class File:
    """A file of a source, or a part of one; `id` is relative to the root of its glob.

    Of a part, `start` and `end` are the bytes (of a jsonl file, at line ends) or the row groups (of a parquet file) that it spans, and
    `line` is the number of its first line or row.
    """

    id: str
    path: str
    """Of the local disk, or an address that fsspec opens."""
    size: int
    start: int = 0
    end: int | None = None
    line: int = 1
    changed: int | None = None
    """When it was last changed, in nanoseconds of the epoch; None where that is not known, as of an address."""
