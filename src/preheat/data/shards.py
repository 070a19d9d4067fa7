"""Several indexed datasets, one after the other, as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preheat.data.indexed import Ids, IndexedDataset
from preheat.data.manifest import Split


class Shards:
    """The documents of several datasets back to back, with the interface that `SampleOrder` reads.

    Attributes:
        token_count: tokens altogether.

    Raises:
        PreheatError: one of them is missing, foreign or damaged.
    """

    def __init__(self, prefixes: Sequence[Path]) -> None:
        self._parts = [IndexedDataset(prefix) for prefix in prefixes]
        self._tokens = np.cumsum([0, *(part.token_count for part in self._parts)], dtype=np.int64).tolist()
        self._documents = np.cumsum([0, *map(len, self._parts)], dtype=np.int64).tolist()
        self.token_count = int(self._tokens[-1])

    def __len__(self) -> int:
        return int(self._documents[-1])

    def document(self, number: int) -> Ids:
        """The token ids of a document, a view of a file."""
        part = bisect_right(self._documents, number) - 1
        return self._parts[part].document(number - self._documents[part])

    def tokens(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The tokens `begin..end`, fewer where the last one is passed."""
        out = np.empty(max(min(end, self.token_count) - begin, 0), np.int64)
        self.read(begin, out)
        return out

    def read(self, begin: int, out: npt.NDArray[np.int64]) -> None:
        """Fill `out` with the tokens from `begin` on."""
        part, filled = bisect_right(self._tokens, begin) - 1, 0
        while filled < len(out):
            start = begin + filled
            taken = min(self._tokens[part + 1] - start, len(out) - filled)
            self._parts[part].read(start - self._tokens[part], out[filled : filled + taken])
            filled += taken
            part += 1

    def starts(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The tokens in `begin..end` (without `end`) at which a document starts, in order; an empty document starts nowhere."""
        found = [np.empty(0, np.int64)]
        for part, first in zip(self._parts, self._tokens, strict=False):
            if first < end and first + part.token_count > begin:
                found.append(first + part.starts(max(begin - first, 0), min(end - first, part.token_count)))
        return np.concatenate(found)

    def starts_of_documents(self) -> npt.NDArray[np.int64]:
        """The tokens at which all documents start, and the number of tokens: shape (documents + 1,). Reads the whole index."""
        parts = [first + part.starts_of_documents()[:-1] for part, first in zip(self._parts, self._tokens, strict=False)]
        return np.concatenate([*parts, np.array([self.token_count])])

    def verify(self) -> None:
        """Read all indices.

        Raises:
            PreheatError: one contradicts itself.
        """
        for part in self._parts:
            part.verify()


def opened(folder: Path, side: Split) -> Shards:
    """A side of a source of the prepared data in a folder."""
    return Shards([folder / prefix for prefix in side.shards or (side.prefix,)])
