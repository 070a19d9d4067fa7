"""Text that holds questions of an evaluation. A training document that shares 13 words in a row with one (Brown et al. 2020,
arXiv 2005.14165, appendix C) goes. Case, punctuation and spacing do not matter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from preheat import recipe
from preheat.data.clean.rule import Text
from preheat.data.clean.words import Hashes, grams
from preheat.data.formats import records, streams
from preheat.data.sources import resolve
from preheat.errors import refuse


class Benchmarks:
    """The n-grams of evaluation tasks."""

    def __init__(self, texts: Iterator[str], ngram: int) -> None:
        self.ngram = ngram
        found = [_grams(text, ngram) for text in texts]
        self.hashes: Hashes = np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)

    def overlap(self, text: str) -> int:
        """How many n-grams of a text are in a task."""
        own = _grams(text, self.ngram)
        place = np.minimum(np.searchsorted(self.hashes, own), max(len(self.hashes) - 1, 0))
        return int((self.hashes[place] == own).sum()) if len(self.hashes) else 0


def _grams(text: str, n: int) -> Hashes:
    return grams(Text(text.casefold()).words.plain, n)


def load(decontaminate: recipe.Decontaminate, folder: Path) -> Benchmarks:
    """The n-grams of all task files: jsonl, of each record every text, however deep.

    Raises:
        PreheatError: a file is missing or a line of it is no JSON; a task that is read by half would let its questions through.
    """
    benchmarks = Benchmarks(_texts(decontaminate.tasks, folder), decontaminate.ngram)
    if not len(benchmarks.hashes):
        got = f"no text of the tasks has {decontaminate.ngram} words"
        refuse("data.decontaminate", got, "", "Correct `tasks`, or lower `ngram`", key="data.decontaminate")
    return benchmarks


def _texts(paths: Sequence[str], folder: Path) -> Iterator[str]:
    for file in resolve(recipe.Source(name="tasks", paths=tuple(paths)), folder):
        try:
            for number, (line, _) in enumerate(records.lines(streams.chunks(file), records.MAX_RECORD), start=1):
                if line.strip():
                    yield from _strings(_parsed(line, file.path, number))
        except (OSError, streams.Damage) as error:
            refuse("data.decontaminate", f"it cannot be read: {error}", "", "Repair the file", file=file.path)


def _parsed(line: bytes, path: str, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        refuse("data.decontaminate", "no JSON", "one record a line", "Correct the line", file=path, line=number)


def _strings(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _strings(value)
