"""Megatron's indexed dataset: token ids in `PREFIX.bin`, and where each document starts in `PREFIX.idx`. Little endian.

The index: magic, version, dtype code, counts, then token counts (int32) and byte offsets (int64) of the sequences, and
the number of the first sequence of each document, closed by the count of sequences (int64). As read and written
by `megatron.core.datasets.indexed_dataset`. preheat writes one sequence a document.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from preheat.errors import refuse

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
CODES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
"""Megatron's codes of integer types; its codes 6 and 7, floats, hold no token ids."""
_HEADER = struct.Struct("<9sQBQQ")

Ids = npt.NDArray[np.integer]


def dtype_for(vocab_size: int) -> np.dtype[np.integer]:
    """What Megatron's `DType.optimal_dtype` takes: uint16 below 65,500 entries, int32 from there on."""
    return np.dtype("<u2") if vocab_size < 65_500 else np.dtype("<i4")


def write(prefix: Path, documents: Iterable[Ids], dtype: np.dtype[np.integer]) -> None:
    """Write both files; each document becomes one sequence.

    Raises:
        PreheatError: an id does not fit the type.
    """
    with Writer(prefix, dtype) as writer:
        for ids in documents:
            writer.add(ids)


class Writer:
    """Writes `PREFIX.bin` document by document, and `PREFIX.idx` when its block ends; each document becomes one sequence.

    With a `limit` it writes shards `PREFIX-00000`, `PREFIX-00001` and so on, of at most so many bytes of ids, or of one longer document.
    Where they end depends on the documents alone.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[np.integer], limit: int | None = None) -> None:
        self._prefix, self._dtype, self._limits = prefix, dtype, np.iinfo(dtype)
        self._limit, self._shard = limit, 0
        self._open()

    def __enter__(self) -> Self:
        return self

    def add(self, ids: Ids) -> None:
        """Append a document.

        Raises:
            PreheatError: an id does not fit the type, or the document is longer than the index can say.
        """
        number = len(self._lengths)
        if len(ids) and (ids.min() < self._limits.min or ids.max() > self._limits.max):
            got = f"{self._here}.bin: document {number} has the token id {ids.max()}"
            refuse("data.dtype", got, f"{self._dtype} ends at {self._limits.max}")
        if len(ids) > _LONGEST:
            refuse("data.indexed", f"{self._here}.bin: document {number} has {len(ids):_} tokens", f"at most {_LONGEST:_}", "Divide it")
        if self._bytes and self._bytes + len(ids) * self._dtype.itemsize > self._room():
            self._next()
        self._bytes += self._stream.write(ids.astype(self._dtype).tobytes())
        self._lengths.append(len(ids))

    def extend(self, part: Path) -> None:
        """Append the documents of a dataset that a `Writer` made.

        Raises:
            PreheatError: it is of another type or damaged.
        """
        own = IndexedDataset(part)
        if own.tokens.dtype != self._dtype:
            refuse("data.indexed", f"the tokens are {own.tokens.dtype}", f"{self._dtype} is wanted", _REMEDY, file=f"{part}.bin")
        starts = own.starts_of_documents()
        bytes_, first = starts * self._dtype.itemsize, 0
        while first < len(own):
            fits = int(np.searchsorted(bytes_, bytes_[first] + self._room() - self._bytes, side="right")) - 1
            last = max(fits, first + 1 if not self._bytes else first)
            for begin in range(starts[first], starts[last], _COPIED):
                self._bytes += self._stream.write(own.tokens[begin : min(begin + _COPIED, starts[last])].tobytes())
            self._lengths.extend(np.diff(starts[first : last + 1]).tolist())
            first = last
            if first < len(own) and self._bytes:
                self._next()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(complete=kind is None)

    def _room(self) -> int:
        return self._limit or 2**62

    def _open(self) -> None:
        self._here = self._prefix if self._limit is None else Path(f"{self._prefix}-{self._shard:05}")
        self._stream = Path(f"{self._here}.bin").open("wb")  # noqa: SIM115
        self._bytes, self._lengths = 0, array("i")

    def _close(self, complete: bool) -> None:
        self._stream.close()
        if complete:
            _write_index(self._here, np.array(self._lengths, "<i4"), self._dtype)

    def _next(self) -> None:
        self._close(complete=True)
        self._shard += 1
        self._open()


def merge(parts: Sequence[Path], prefix: Path, dtype: np.dtype[np.integer], limit: int | None = None) -> None:
    """The sequences of several datasets that `Writer` made, one after the other. Byte for byte what a single `Writer` would give.

    Raises:
        PreheatError: a part is of another type or damaged.
    """
    with Writer(prefix, dtype, limit) as writer:
        for part in parts:
            writer.extend(part)


_LONGEST = 2**31 - 1
_COPIED = 1 << 22
"""Tokens in memory when datasets are merged."""


def _write_index(prefix: Path, sizes: npt.NDArray[np.int32], dtype: np.dtype[np.integer]) -> None:
    offsets = np.zeros(len(sizes), "<i8")
    np.cumsum(sizes[:-1], dtype="<i8", out=offsets[1:])
    code = next(code for code, known in CODES.items() if dtype == known)
    with Path(f"{prefix}.idx").open("wb") as stream:
        stream.write(_HEADER.pack(MAGIC, VERSION, code, len(sizes), len(sizes) + 1))
        for values in (sizes, offsets * dtype.itemsize, np.arange(len(sizes) + 1, dtype="<i8")):
            stream.write(values.tobytes())


class IndexedDataset:
    """The documents of `PREFIX.bin` and `PREFIX.idx`, memory-mapped: opening reads the ends of the index only, whatever its length.

    Attributes:
        token_count: tokens altogether.
        tokens: all tokens back to back, shape (token_count,), read-only.

    Raises:
        PreheatError: a file is missing, foreign, cut off, or disagrees with the other one.
    """

    def __init__(self, prefix: Path | str) -> None:
        self._index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for path in (self._index, data):
            if not path.is_file():
                refuse("data.indexed", "there is no such file", "an indexed dataset is a .bin and an .idx", "Prepare the data", file=path)
        dtype, self._lengths, self._offsets, self._entries = _read_index(self._index)
        self._width = dtype.itemsize
        bytes_ = int(self._offsets[-1]) + int(self._lengths[-1]) * self._width if len(self._lengths) else 0
        self.token_count = bytes_ // self._width
        size = data.stat().st_size
        if size != bytes_:
            refuse("data.indexed", f"the file has {size:_} bytes", f"its index says {bytes_:_}", _REMEDY, file=data)
        # An empty file cannot be mapped.
        self.tokens: Ids = np.asarray(np.memmap(data, dtype, "r")) if size else np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self._entries) - 1

    def document(self, number: int) -> Ids:
        """The token ids of a document, a view of the file."""
        start, end = self._bounds(number, number + 1)
        return self.tokens[start:end]

    def read(self, begin: int, out: npt.NDArray[np.int64]) -> None:
        """Fill `out` with the tokens from `begin` on."""
        out[:] = self.tokens[begin : begin + len(out)]

    def starts(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The tokens in `begin..end` (without `end`) at which a document starts, in order; an empty document starts nowhere.

        Takes as many steps as the number of documents has digits, and reads the entries of those that it finds.

        Raises:
            PreheatError: the entries that were read do not ascend.
        """
        documents = range(len(self))
        first, last = (bisect_left(documents, token, key=self._start) for token in (begin, end))
        bounds = self._bounds(first, last)
        lengths = np.diff(bounds)
        if (lengths < 0).any() or bounds[-1] > self.token_count:
            refuse("data.indexed", f"the entries of documents {first:_} to {last:_} do not ascend", "", _REMEDY, file=self._index)
        return bounds[:-1][lengths > 0]

    def starts_of_documents(self) -> npt.NDArray[np.int64]:
        """The tokens at which all documents start, and the number of tokens: shape (documents + 1,). Reads the whole index."""
        return self._bounds(0, len(self))

    def verify(self) -> None:
        """Read the whole index.

        Raises:
            PreheatError: it contradicts itself.
        """
        ends = np.concatenate(([0], np.cumsum(self._lengths, dtype=np.int64)))
        if len(self._lengths) and self._lengths.min() < 0:
            refuse("data.indexed", "a sequence has a negative length", "", _REMEDY, file=self._index)
        if not np.array_equal(self._offsets, ends[:-1] * self._width):
            refuse("data.indexed", "the byte offsets are not the sums of the lengths", "", _REMEDY, file=self._index)
        if (np.diff(self._entries) < 0).any():
            refuse("data.indexed", _ENTRIES, "", _REMEDY, file=self._index)

    def _start(self, document: int) -> int:
        entry = self._entries[document]
        return int(self._offsets[entry]) // self._width if entry < len(self._offsets) else self.token_count

    def _bounds(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The tokens at which the documents `first..last` start, shape (last - first + 1,); the number of documents starts at the end."""
        entries = np.array(self._entries[first : last + 1])
        inside = entries < len(self._offsets)
        bounds = np.full(len(entries), self.token_count, np.int64)
        bounds[inside] = self._offsets[entries[inside]] // self._width
        return bounds


_REMEDY = "Prepare it again; if it came from elsewhere, fetch it again"
_ENTRIES = "the document entries do not run from 0 to the number of sequences"


def _read_index(path: Path) -> tuple[np.dtype[np.integer], npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Type, sequence lengths, sequence byte offsets, and first sequence of each document; the arrays are views of the file."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_HEADER.size)
    if head[: len(MAGIC)] != MAGIC:
        refuse(
            "data.indexed",
            f"the file starts with {head[: len(MAGIC)]!r}",
            f"an index starts with {MAGIC!r}",
            "Name another file",
            file=path,
        )
    if size < _HEADER.size:
        refuse("data.indexed", f"the file ends after {size} bytes", f"the header has {_HEADER.size}", _REMEDY, file=path)
    _, version, code, sequences, entries = _HEADER.unpack(head)
    if version != VERSION or code not in CODES:
        known = f"version {VERSION}, integer types {sorted(CODES)}"
        refuse("data.indexed", f"version {version}, type {code}", known, _REMEDY, file=path)
    wanted = _HEADER.size + 12 * sequences + 8 * entries
    if size != wanted:
        refuse(
            "data.indexed",
            f"the file has {size:_} bytes",
            f"{sequences:_} sequences and {entries:_} document entries take {wanted:_} (multimodal sets are not read)",
            _REMEDY,
            file=path,
        )
    content = np.asarray(np.memmap(path, np.uint8, "r", _HEADER.size)) if size > _HEADER.size else np.empty(0, np.uint8)
    lengths = content[: 4 * sequences].view("<i4")
    offsets = content[4 * sequences : 12 * sequences].view("<i8")
    starts = content[12 * sequences :].view("<i8")
    if not (entries and starts[0] == 0 and starts[-1] == sequences):
        refuse("data.indexed", _ENTRIES, "", _REMEDY, file=path)
    if sequences and not (lengths[0] >= 0 <= lengths[-1] and offsets[0] == 0 <= offsets[-1]):
        refuse("data.indexed", "the byte offsets are not the sums of the lengths", "", _REMEDY, file=path)
    return np.dtype(CODES[code]).newbyteorder("<"), lengths, offsets, starts
