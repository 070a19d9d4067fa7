"""What is to be prepared, as a file that every process of a preparation reads: `plan.json` in the work folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from preheat import recipe
from preheat.data.sources import File

FILE_NAME = "plan.json"
RULES_VERSION = 5
"""Counts up when the same configuration and texts would give other bytes than before."""
SHARDS, MIN_SHARD, MAX_SHARD = 256, 2_000_000, 256_000_000
"""A shard is about a 256th of the input, between these sizes in bytes. It changes nothing in the result."""


@dataclass(frozen=True)
class Shard:
    """Consecutive files of a source that one task reads; `source` is its number in the recipe."""

    source: int
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Plan:
    """What is asked for, and the shards of the input."""

    data: recipe.Data
    tokenizer: recipe.Tokenizer
    vocab_size: int
    folder: str
    """Where relative paths of the recipe start."""
    shards: tuple[Shard, ...]
    tasks: tuple[str, ...] = ()
    """The recipe's `evaluation.tasks`."""

    def save(self, work: Path) -> None:
        """Write `plan.json`, whole or not at all."""
        temporary = work / f".{FILE_NAME}"
        # Names of files need not be text; as escapes they can be written.
        temporary.write_text(json.dumps(_ADAPTER.dump_python(self, mode="json"), indent=1), "utf-8")
        temporary.replace(work / FILE_NAME)

    @classmethod
    def load(cls, work: Path) -> Plan:
        """Read `plan.json`, which an earlier process of the same version of preheat wrote."""
        return _ADAPTER.validate_python(json.loads((work / FILE_NAME).read_bytes()))

    def shards_of(self, source: int) -> list[int]:
        """The numbers of a source's shards, in order."""
        return [number for number, shard in enumerate(self.shards) if shard.source == source]


def shard_size(files: Sequence[Sequence[File]]) -> int:
    """How many bytes a shard of these files should have."""
    return min(max(sum(file.size for own in files for file in own) // SHARDS, MIN_SHARD), MAX_SHARD)


def divided(files: Sequence[Sequence[File]], size: int) -> tuple[Shard, ...]:
    """The files of each source in shards of at least `size` bytes where there is so much."""
    out = []
    for source, own in enumerate(files):
        group: list[File] = []
        filled = 0
        for file in own:
            group.append(file)
            filled += file.size
            if filled >= size:
                out.append(Shard(source, tuple(group)))
                group, filled = [], 0
        if group:
            out.append(Shard(source, tuple(group)))
    return tuple(out)


def fingerprint(value: object) -> str:
    """SHA-256 of a value that JSON can write."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


_ADAPTER = TypeAdapter(Plan)
