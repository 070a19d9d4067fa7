"""Words as the published filters count them, fast: a word between spaces is taken apart once and remembered.

The rules follow spaCy's English tokenizer, on which datatrove's filters stand: punctuation at both ends comes off, contractions,
hyphens, slashes and ranges come apart, abbreviations, numbers and addresses stay whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

MEMORY = 1 << 18
"""Different words that are remembered (about 250 bytes each); beyond it the memory starts anew, which costs time and changes no result."""
CHARACTERS = 1 << 22
"""So does it beyond so many characters: what stands between spaces may be a sentence of Chinese, or a picture in base64."""
LONGEST = 200
"""Characters of a run between spaces that is taken apart; encoded data is one word."""

Hashes = npt.NDArray[np.uint64]
_Number = TypeVar("_Number", np.int64, np.uint64)
SENTENCE_ENDS = frozenset(".!?\u3002\uff01\uff1f")

_WHOLE = {"cannot": ["can", "not"], "Cannot": ["Can", "not"], "and/or": ["and/or"], "''": ["''"], "°C.": ["°", "C", "."]}
_SIMPLE = re.compile(r"([A-Za-z]*[a-z]{2})([,;:!?)])|([a-z]{3,})(\.)")
_ADDRESS = re.compile(
    r"(?:https?://|www\.)\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|io|co|uk|de|html?)(?:/\S*)?",
    re.I,
)
_ABBREVIATION = re.compile(
    r"(?:[A-Z]\.){1,6}[A-Z]?\.?|[a-z]\.|(?:Mr|Mrs|Ms|Dr|Prof|Gen|Gov|Sen|Rep|Rev|St|Jr|Sr|Inc|Ltd|Co|Corp|Bros|Adm|Mt|Messrs|Ph\.D"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|vs|v\.s|e\.g|i\.e|a\.m|p\.m"
    r"|Ala|Ariz|Ark|Calif|Colo|Conn|Del|Fla|Ga|Ia|Id|Ill|Ind|Kan|Kans|Ky|La|Mass|Md|Mich|Minn|Miss|Mo|Mont|Nebr?|Nev|Okla|Ore|Pa"
    r"|Tenn|Va|Wash|Wis)\."
)
_PREFIX = re.compile(r"US\$|\.\.+|…+|[^\w\s.@+/\\~^|-]|_|\+(?![0-9])")
_SUFFIX = re.compile(
    r"(?:\.\.+|…+|['\u2019][sS]|—+|\u2013+|''|\):|[^\w\s.@%+°/\\~^|=-]|_|%|(?<=[0-9])\+|(?<=[0-9a-z]|[^\w\s])\.|(?<=[A-Z][A-Z])\.|(?<=°[FCKfck])\.|(?<=[^\W\d_A-Za-z])\.)$"
)
_UNIT = re.compile(
    r"(?<=[0-9])(?:[kdcmn]?m[²³]?|µ[mg]|ha|yd|in|ft|[km]?g|t|lb|oz|m/s|km/h|mph|h?Pa|mbar|mb|MB|[kgt]b|[KGT]B|[TGMK]|[aApP]\.?m\.?)$"
)
_CONTRACTION = re.compile(r"(?i)(?<=[a-z])(n['\u2019]t|['\u2019](?:ll|re|ve|m|d))$")
_INFIX = re.compile(
    r"(\.\.+|…|(?<=[0-9])[+\-*^](?=[0-9-])|(?<=[a-z\"'])\.(?=[A-Z\"'])|(?<=[^\W\d_]),(?=[^\W\d_])"
    r"|(?<=[^\W_])(?:--+|[-\u2013\u2014~])(?=[^\W\d_])|(?<=[^\W_])[:<>=/](?=[^\W\d_]))"
)


def split(run: str) -> list[str]:
    """The words of a run of characters without a space."""
    if run.isalpha() or len(run) > LONGEST:
        return _WHOLE.get(run) or [run]
    simple = _SIMPLE.fullmatch(run)
    if simple is not None:
        word, mark = filter(None, simple.groups())
        return [*(_WHOLE.get(word) or [word]), mark]
    before: list[str] = []
    after: list[str] = []
    while run and run not in _WHOLE and not _ABBREVIATION.fullmatch(run):
        match = _PREFIX.match(run)
        if match is not None:
            before.append(match[0])
            run = run[match.end() :]
            continue
        if _ADDRESS.fullmatch(run) and (run[-1].isalnum() or run[-1] == "/"):
            after.append(run)
            run = ""
            break
        match = _SUFFIX.search(run) or _CONTRACTION.search(run) or _UNIT.search(run)
        if match is None:
            break
        after.append(match[0])
        run = run[: match.start()]
    middle = _WHOLE.get(run) or ([run] if _ABBREVIATION.fullmatch(run) else [piece for piece in _INFIX.split(run) if piece])
    return before + middle + after[::-1]


@dataclass(frozen=True)
class Words:
    """The words of a text, in order. A symbol is a word without a letter or digit."""

    hashes: Hashes
    lengths: npt.NDArray[np.int64]
    plain: Hashes
    """Hashes of the words that are no symbols."""
    alphabetic: int
    """Words with a letter."""
    characters: int
    """Of the words that are no symbols."""


class Splitter:
    """Takes texts apart. Its memory makes it fast; no result depends on what it has seen before."""

    def __init__(self, words_of_run: Callable[[str], list[str]] = split) -> None:
        """Args:
        words_of_run: takes a run of characters without a space apart.
        """
        self._words_of_run = words_of_run
        self._forget()

    def _forget(self) -> None:
        self._number: dict[str, int] = {}
        self._runs = np.zeros((1024, 4), np.int64)
        """For each run: its words, its words with a letter, the characters of its words, and where its words start."""
        self._words = np.zeros((2048, 3), np.uint64)
        """For each word of each run: its hash, its length, and whether it is no symbol."""
        self._used = self._characters = 0

    def words(self, runs: Sequence[str]) -> Words:
        """The words of a text, given the runs between spaces."""
        numbers = self._numbers(runs)
        found = self._runs[numbers]
        sizes, start = found[:, 0], found[:, 3]
        ends = sizes.cumsum()
        place = np.arange(ends[-1] if len(ends) else 0)
        place += np.repeat(start - ends + sizes, sizes)
        chosen = self._words[place]
        hashes = chosen[:, 0].copy()
        plain = hashes[chosen[:, 2] != 0]
        return Words(hashes, chosen[:, 1].astype(np.int64), plain, int(found[:, 1].sum()), int(found[:, 2].sum()))

    def _numbers(self, runs: Sequence[str]) -> npt.NDArray[np.int64]:
        known = self._number
        try:
            return np.fromiter(map(known.__getitem__, runs), np.int64, len(runs))
        except KeyError:
            if len(known) > MEMORY or self._characters > CHARACTERS:
                self._forget()
                known = self._number
            self._learn([run for run in dict.fromkeys(runs) if run not in known])
            return np.fromiter(map(known.__getitem__, runs), np.int64, len(runs))

    def _learn(self, runs: Sequence[str]) -> None:
        rows: list[tuple[int, int, int, int]] = []
        words: list[tuple[int, int, int]] = []
        for run in runs:
            start = self._used + len(words)
            letters = characters = 0
            for word in self._words_of_run(run):
                plain = not is_symbol(word)
                words.append((_hash(word), len(word), plain))
                if plain:
                    letters += word.isalpha() or any(map(str.isalpha, word))
                    characters += len(word)
            rows.append((self._used + len(words) - start, letters, characters, start))
        first = len(self._number)
        self._number.update(zip(runs, range(first, first + len(runs)), strict=True))
        self._runs = _written(self._runs, first, rows)
        self._words = _written(self._words, self._used, words)
        self._used += len(words)
        self._characters += sum(map(len, runs))


def _written(table: npt.NDArray[_Number], start: int, rows: Sequence[tuple[int, ...]]) -> npt.NDArray[_Number]:
    """A table with rows written into it from `start` on, made larger if need be."""
    while start + len(rows) > len(table):
        table = np.concatenate([table, np.zeros_like(table)])
    table[start : start + len(rows)] = np.array(rows, table.dtype).reshape(len(rows), table.shape[1])
    return table


def grams(hashes: Hashes, n: int) -> Hashes:
    """Hash of each run of n words; shape (words - n + 1,), or empty."""
    if len(hashes) < n:
        return hashes[:0]
    out = hashes[: len(hashes) - n + 1].copy()
    for offset in range(1, n):
        out = longer(out, hashes[offset:])
    return out


def longer(prefix: Hashes, following: Hashes) -> Hashes:
    """The hashes of n-grams from those of their first words and of their last word; as many as there are of both."""
    size = min(len(prefix), len(following))
    mixed = prefix[:size] ^ (prefix[:size] >> np.uint64(29))
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed += following[:size]
    return mixed


def is_symbol(word: str) -> bool:
    """Whether a word has neither a letter nor a digit."""
    return not (word.isalnum() or any(map(str.isalnum, word)))


def sentences(text: str, enough: float) -> int:
    """Sentences of a line: an end mark that is a word of its own, and the words behind it that are symbols, end one. Counting stops at
    `enough`.
    """
    count, open_, ended = 0, False, False
    for word in (word for run in text.split() for word in split(run)):
        if count >= enough:
            return count
        if word in SENTENCE_ENDS:
            ended = True
        elif ended and not is_symbol(word):
            count += 1
            ended = False
        open_ = True
    return count + open_


def words_of(runs: Sequence[str]) -> list[str]:
    """The words of runs, in order."""
    return [word for run in runs for word in split(run)]


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")
