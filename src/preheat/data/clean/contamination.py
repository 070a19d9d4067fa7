"""Text that holds questions of an evaluation. A training document that shares 13 words in a row with one (Brown et al. 2020,
arXiv 2005.14165, appendix C), or all words of a text that has 8 to 12, goes.

Words are runs of letters and digits after NFKC and case folding, so that case, punctuation, the form of apostrophes and quotation marks,
and spacing do not matter. Each Chinese character is a word. They are compared by 64-bit hashes.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from preheat.data.clean.rule import Text
from preheat.data.clean.words import LONGEST, Hashes, Splitter, grams, longer
from preheat.data.document import File
from preheat.data.tasks import lines
from preheat.errors import refuse

SHORTEST = 8
"""Words of a text that is compared as a whole because it is shorter than the n-gram; as for GPT-3, fewer are no evidence."""
SHOWN = 200
"""Characters of the shared words that are shown."""
SPARSE, LARGEST_TABLE = 8, 26
"""Places of a table for each n-gram that is looked for, at a byte each; its largest size as a power of two."""
SHARED = re.compile(r"(?P<file>.*?):(?P<line>\d+): (?P<size>\d+) words, from word (?P<start>\d+) on: (?P<words>.*)", re.DOTALL)
"""What an exclusion says of a `Shared`."""
_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_ASCII = re.compile("[a-z0-9]+")


class Shared(NamedTuple):
    """A run of words that a text and a record of a task share."""

    size: int
    """In words."""
    start: int
    """The first of them in the text, from 1."""
    place: str
    """The record's file and line."""
    words: str
    """As the text writes them, cut at `SHOWN` characters."""

    def __str__(self) -> str:
        """As `SHARED` reads it back."""
        return f"{self.place}: {self.size} words, from word {self.start} on: {self.words}"


class _Known:
    """The n-grams of one length that are looked for, each with the first record that has it."""

    def __init__(self, texts: Sequence[Hashes], records: Sequence[int], length: int) -> None:
        """Take all runs of `length` words of texts, which have so many at least; `records` are the numbers of the records they are in."""
        sizes = [len(text) for text in texts]
        text = np.repeat(np.arange(len(texts)), sizes)  # of each word
        starts = np.flatnonzero(text[: len(text) - length + 1] == text[length - 1 :])
        self.hashes, first = np.unique(grams(np.concatenate(texts), length)[starts], return_index=True)
        self.records = np.repeat(np.array(records, np.int32), sizes)[starts[first]]
        # Most n-grams of a text end at this table, which has room for `SPARSE` times as many as there are.
        self._mask = np.uint64((1 << min((SPARSE * len(self.hashes)).bit_length(), LARGEST_TABLE)) - 1)
        self._maybe = np.zeros(int(self._mask) + 1, np.bool_)
        self._maybe[self.hashes & self._mask] = True

    def find(self, own: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The places in `own` of n-grams that are looked for, ascending, and their records."""
        places = np.flatnonzero(self._maybe[own & self._mask])
        near = np.minimum(np.searchsorted(self.hashes, own[places]), len(self.hashes) - 1)
        equal = self.hashes[near] == own[places]
        return places[equal], self.records[near[equal]]


class Benchmarks:
    """The n-grams of evaluation tasks, and by their own lengths the texts that are too short for one."""

    def __init__(self, files: Iterable[File], ngram: int) -> None:
        """Read task files: jsonl, of each record every text, however deep.

        Raises:
            PreheatError: a file cannot be read or a line of it is no JSON; a task that is read by half would let its questions through.
        """
        self.ngram, self.shortest = ngram, min(SHORTEST, ngram)
        self.places: list[str] = []
        """Of each record its file and line."""
        self.too_short = 0
        """Records of which no text is long enough to be looked for."""
        self._splitter = Splitter(words_of_run)
        found: dict[int, tuple[list[Hashes], list[int]]] = defaultdict(lambda: ([], []))
        for number, (place, texts) in enumerate(_records(files)):
            words = [own for text in texts if len(own := self._words(Text(text))) >= self.shortest]
            for own in words:
                same_length, records = found[min(len(own), ngram)]
                same_length.append(own)
                records.append(number)
            self.too_short += not words
            self.places.append(place)
        self._known = {length: _Known(*found[length], length) for length in sorted(found)}

    def _words(self, text: Text) -> Hashes:
        return self._splitter.words(_runs(text)).plain

    @property
    def size(self) -> int:
        """How many n-grams are looked for."""
        return sum(len(known.hashes) for known in self._known.values())

    @cached_property
    def fingerprint(self) -> str:
        """Changes with what is looked for, and with what is said when it is found."""
        whole = hashlib.sha256(json.dumps([self.ngram, self.places]).encode())
        for length, known in self._known.items():
            whole.update(f"{length} ".encode() + known.hashes.tobytes() + known.records.tobytes())
        return whole.hexdigest()

    def shared(self, text: Text) -> Shared | None:
        """The longest run of words that a text shares with a record, the first of equally long ones; None where it shares none."""
        best: tuple[int, int, int] | None = None
        for length, own in _grams(self._words(text), self._known).items():
            for start, count, record in _stretches(*self._known[length].find(own)):
                best = max(best or (0, 0, 0), (count + length - 1, -start, record))
        if best is None:
            return None
        count, start, record = best[0], -best[1], best[2]
        return Shared(count, start + 1, self.places[record], _quoted(_runs(text), start, count))


def _grams(words: Hashes, lengths: Collection[int]) -> dict[int, Hashes]:
    """Hashes of the n-grams of a text, for each n of `lengths` for which there are any; shape (words - n + 1,)."""
    found, own = {}, words
    for length in range(1, min(max(lengths, default=0), len(words)) + 1):
        if length > 1:
            own = longer(own, words[length - 1 :])
        if length in lengths:
            found[length] = own
    return found


def _stretches(starts: npt.NDArray[np.int64], records: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """Places in a row that belong to one record, as (first place, how many, record); `starts` ascend."""
    if not len(starts):
        return
    breaks = np.flatnonzero((np.diff(starts) != 1) | (np.diff(records) != 0)) + 1
    for part in np.split(np.arange(len(starts)), breaks):
        yield int(starts[part[0]]), len(part), int(records[part[0]])


def _runs(text: Text) -> list[str]:
    """What stands between white space; a Chinese character stands alone."""
    if text.text.isascii() or not _CHINESE.search(text.text):
        return text.runs
    return _CHINESE.sub(r" \g<0> ", text.text).split()


def words_of_run(run: str) -> list[str]:
    """The words of a run of characters without a space. One of more than `LONGEST` characters is one word: encoded data, not language."""
    if run.isascii():
        return [run.lower()] if run.isalnum() or len(run) > LONGEST else _ASCII.findall(run.lower())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", run).casefold())
    if len(run) > LONGEST:
        return [folded]
    words = [""]
    for character in folded:
        if _CHINESE.match(character):
            words += [character, ""]
        elif (category := unicodedata.category(character))[0] in "LMN":
            words[-1] += character
        elif category != "Cf":  # As a soft hyphen: it is in a word and not seen.
            words.append("")
    return list(filter(None, words))


def _quoted(runs: Sequence[str], start: int, count: int) -> str:
    """Words of a text as it writes them, from the run that holds the first to the one that holds the last."""
    shown, seen = [], 0
    for run in runs:
        if seen >= start + count:
            break
        seen += sum(any(map(str.isalnum, word)) for word in words_of_run(run))
        if seen > start:
            shown.append(run)
    text = " ".join(shown)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _records(files: Iterable[File]) -> Iterator[tuple[str, list[str]]]:
    """Each record of task files: its file and line, and its texts."""
    for file in files:
        for number, line in lines(file):
            try:
                yield f"{file.id}:{number}", list(_strings(json.loads(line)))
            except (ValueError, RecursionError):
                refuse("data.decontaminate", "no JSON", "one record a line", "Correct the line", file=file.path, line=number)


def _strings(node: object) -> Iterator[str]:
    """The texts of a JSON value in their order; the names of fields are none."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _strings(value)
