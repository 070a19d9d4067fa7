"""Megatron's indexed dataset: token ids in `PREFIX.bin`, and where each document starts in `PREFIX.idx`. Little endian.

The index: magic, version, dtype code, counts, then token counts (int32) and byte offsets (int64) of the sequences, and
the number of the first sequence of each document, closed by the count of sequences (int64). As read and written
by `megatron.core.datasets.indexed_dataset`. preheat writes one sequence a document.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

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
    lengths: list[int] = []
    limits = np.iinfo(dtype)
    with Path(f"{prefix}.bin").open("wb") as stream:
        for number, ids in enumerate(documents):
            if len(ids) and (ids.min() < limits.min or ids.max() > limits.max):
                refuse("data.dtype", f"{prefix}.bin: document {number} has the token id {ids.max()}", f"{dtype} ends at {limits.max}")
            stream.write(ids.astype(dtype).tobytes())
            lengths.append(len(ids))
        stream.flush()
        os.fsync(stream.fileno())
    sizes = np.array(lengths, "<i4")
    offsets = np.zeros(len(sizes), "<i8")
    np.cumsum(sizes[:-1], dtype="<i8", out=offsets[1:])
    code = next(code for code, known in CODES.items() if dtype == known)
    with Path(f"{prefix}.idx").open("wb") as stream:
        stream.write(_HEADER.pack(MAGIC, VERSION, code, len(sizes), len(sizes) + 1))
        for array in (sizes, offsets * dtype.itemsize, np.arange(len(sizes) + 1, dtype="<i8")):
            stream.write(array.tobytes())
        stream.flush()
        os.fsync(stream.fileno())


class IndexedDataset:
    """The documents of `PREFIX.bin` and `PREFIX.idx`, memory-mapped.

    Attributes:
        lengths: tokens of each document, shape (documents,).
        pointers: token at which each document starts, shape (documents,).
        token_count: tokens altogether.
        tokens: all tokens back to back, shape (token_count,), read-only.

    Raises:
        PreheatError: a file is missing, foreign, cut off, or disagrees with the other one.
    """

    def __init__(self, prefix: Path | str) -> None:
        index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for path in (index, data):
            if not path.is_file():
                refuse("data.indexed", "there is no such file", "an indexed dataset is a .bin and an .idx", "Prepare the data", file=path)
        dtype, lengths, offsets, starts = _read_index(index)
        self.token_count = int(lengths.sum(dtype=np.int64))
        size = data.stat().st_size
        if size != self.token_count * dtype.itemsize:
            refuse(
                "data.indexed",
                f"the file has {size:_} bytes",
                f"its index says {self.token_count * dtype.itemsize:_}",
                "Prepare again",
                file=data,
            )
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        if not np.array_equal(offsets, ends[:-1] * dtype.itemsize):
            refuse("data.indexed", "the byte offsets are not the sums of the lengths", "", "Prepare again", file=index)
        bounds = ends[starts]
        self.pointers: npt.NDArray[np.int64] = bounds[:-1]
        self.lengths: npt.NDArray[np.int64] = np.diff(bounds)
        # An empty file cannot be mapped.
        self.tokens: Ids = np.memmap(data, dtype, "r") if size else np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, number: int) -> Ids:
        """The token ids of a document, shape (lengths[number],), a view of the file."""
        start = int(self.pointers[number])
        return self.tokens[start : start + int(self.lengths[number])]


def _read_index(path: Path) -> tuple[np.dtype[np.integer], npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Type, sequence lengths, sequence byte offsets, and first sequence of each document."""
    content = path.read_bytes()
    if content[: len(MAGIC)] != MAGIC:
        refuse(
            "data.indexed",
            f"the file starts with {content[: len(MAGIC)]!r}",
            f"an index starts with {MAGIC!r}",
            "Name another file",
            file=path,
        )
    if len(content) < _HEADER.size:
        refuse("data.indexed", f"the file ends after {len(content)} bytes", f"the header has {_HEADER.size}", "Prepare again", file=path)
    _, version, code, sequences, entries = _HEADER.unpack_from(content)
    if version != VERSION or code not in CODES:
        refuse(
            "data.indexed",
            f"version {version}, type {code}",
            f"version {VERSION}, integer types {sorted(CODES)}",
            "Prepare again",
            file=path,
        )
    wanted = _HEADER.size + 12 * sequences + 8 * entries
    if len(content) != wanted:
        refuse(
            "data.indexed",
            f"the file has {len(content):_} bytes",
            f"{sequences:_} sequences and {entries:_} document entries take {wanted:_} (multimodal sets are not read)",
            "Prepare again",
            file=path,
        )
    position = _HEADER.size
    lengths = np.frombuffer(content, "<i4", sequences, position)
    offsets = np.frombuffer(content, "<i8", sequences, position + 4 * sequences)
    starts = np.frombuffer(content, "<i8", entries, position + 12 * sequences)
    ordered = entries and starts[0] == 0 and starts[-1] == sequences and (np.diff(starts) >= 0).all()
    if not ordered or (sequences and lengths.min() < 0):
        refuse("data.indexed", "the document entries do not run from 0 to the number of sequences", "", "Prepare again", file=path)
    return np.dtype(CODES[code]).newbyteorder("<"), lengths, offsets, starts
