"""Text that holds questions of an evaluation. A training document that shares 13 words in a row with one (Brown et al. 2020,
arXiv 2005.14165, appendix C), or all words of a text that has 8 to 12, goes. Case, punctuation and spacing do not matter."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from preheat import recipe
from preheat.data.clean.rule import Text
from preheat.data.clean.words import Hashes, grams
from preheat.data.formats import records, streams
from preheat.data.sources import resolve
from preheat.errors import refuse

SHORTEST = 8
"""Words of a text that is compared as a whole because it is shorter than the n-gram; as for GPT-3, fewer are no evidence."""


class Benchmarks:
    """The n-grams of evaluation tasks, and by their own lengths the texts that are too short for one."""

    def __init__(self, texts: Iterator[str], ngram: int) -> None:
        self.ngram = ngram
        found: dict[int, list[Hashes]] = defaultdict(list)
        for text in texts:
            words = _words(text)
            length = min(len(words), ngram)
            if length >= min(SHORTEST, ngram):
                found[length].append(grams(words, length))
        self.hashes: dict[int, Hashes] = {length: np.unique(np.concatenate(own)) for length, own in sorted(found.items())}

    @property
    def fingerprint(self) -> str:
        """Changes with what is looked for."""
        whole = hashlib.sha256()
        for length, own in self.hashes.items():
            whole.update(f"{length} ".encode() + own.tobytes())
        return whole.hexdigest()

    def overlap(self, text: str) -> str:
        """How many runs of words of a text are in a task, by their length, or nothing."""
        words = _words(text)
        shared = {length: _common(grams(words, length), own) for length, own in self.hashes.items()}
        return ", ".join(f"{count:,} {length}-grams" for length, count in sorted(shared.items(), reverse=True) if count)


def _common(own: Hashes, known: Hashes) -> int:
    """How many of some hashes are among the known ones, which ascend; there is at least one of those."""
    return int((known[np.minimum(np.searchsorted(known, own), len(known) - 1)] == own).sum())


def _words(text: str) -> Hashes:
    return Text(text.casefold()).words.plain


def load(decontaminate: recipe.Decontaminate, folder: Path) -> Benchmarks:
    """The n-grams of all task files: jsonl, of each record every text, however deep.

    Raises:
        PreheatError: a file is missing or a line of it is no JSON; a task that is read by half would let its questions through.
    """
    benchmarks = Benchmarks(_texts(decontaminate.tasks, folder), decontaminate.ngram)
    if not benchmarks.hashes:
        got = f"no text of the tasks has {min(SHORTEST, decontaminate.ngram)} words"
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
