"""Files of ready token ids as pieces of documents: Megatron's pairs, llm.c's shards, nanoGPT's raw ids, tables of `datasets`."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preheat.data.indexed import IndexedDataset
from preheat.data.sources import File
from preheat.errors import refuse

COLUMN = "input_ids"
CHUNK = 1 << 22
"""Ids of a file without documents that are in memory at a time."""
_HIGH_HALF = 3
"""The upper half of a 32-bit id is no higher in a vocabulary of up to 262,144 entries, Gemma's."""
ROWS = 1024
_LLMC: dict[int, tuple[int, np.dtype[Any]]] = {20240520: (1, np.dtype("<u2")), 20240801: (7, np.dtype("<u4"))}
"""Magic number -> version and type of llm.c's shards: GPT-2's, Llama 3's. The header has 256 32-bit words; the third counts the ids."""
_LLMC_HEADER = 1024
_FOREIGN = {20240326: "a model checkpoint", 20240327: "a debug state", 20240328: "a tokenizer", 20240522: "an evaluation file"}
"""What other files of llm.c are."""

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Piece:
    """Consecutive ids of a source; `ends` says that a document ends with them. `label` says where they begin."""

    ids: Ids
    ends: bool
    label: str


@dataclass(frozen=True)
class TokenFile:
    """A file and what it was found to be."""

    file: File
    format: str

    def pieces(self) -> Iterator[Piece]:
        """The ids in the order of the file.

        Raises:
            PreheatError: the file is damaged, or is not what its beginning says.
        """
        return _READERS[self.format](Path(self.file.path), self.file.id)


def recognised(files: Sequence[File]) -> list[TokenFile]:
    """What each file is, by its name and its first bytes. An index belongs to the `.bin` beside it.

    Raises:
        PreheatError: a file is of no kind that is read here.
    """
    paths = {file.path for file in files}
    return [
        TokenFile(file, _format(Path(file.path))) for file in files if not (file.path.endswith(".idx") and f"{file.path[:-4]}.bin" in paths)
    ]


def _format(path: Path) -> str:
    if "://" in str(path):
        refuse("data.import", "this is not on a local disk", "", "Copy it here first", file=path)
    if path.suffix in (".arrow", ".parquet"):
        return path.suffix[1:]
    if path.suffix == ".idx" or path.with_suffix(".idx").is_file():
        return "megatron"
    with path.open("rb") as stream:
        magic = int.from_bytes(stream.read(4), "little")
    if magic in _LLMC:
        return "llm.c"
    if magic in _FOREIGN:
        refuse("data.import", f"this is {_FOREIGN[magic]} of llm.c", "token ids", "Name its token shards", file=path)
    if path.suffix == ".bin":
        return "nanogpt"
    want = "a .bin, a Megatron .bin with its .idx, an .arrow or a .parquet"
    return refuse("data.import", "this is no file of token ids that preheat reads", want, "Correct the paths of the source", file=path)


def _megatron(path: Path, label: str) -> Iterator[Piece]:
    dataset = IndexedDataset(path.with_suffix(""))
    dataset.verify()
    for number in range(len(dataset)):
        yield Piece(dataset.document(number), True, f"{label}#{number}")


def _llmc(path: Path, label: str) -> Iterator[Piece]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_LLMC_HEADER)
    if len(head) < _LLMC_HEADER:
        refuse("data.import", f"the file has {size:_} bytes", f"the header of a shard has {_LLMC_HEADER:_}", "Fetch it again", file=path)
    magic, version, count = struct.unpack_from("<3i", head)
    known, dtype = _LLMC[magic]
    if version != known:
        refuse("data.import", f"version {version}", f"shards of magic {magic} have version {known}", "Write it anew", file=path)
    wanted = _LLMC_HEADER + count * dtype.itemsize
    if size != wanted:
        got = f"the file has {size:_} bytes"
        refuse("data.import", got, f"its header says {count:_} ids, which take {wanted:_}", "Fetch it again", file=path)
    yield from _raw(path, dtype, _LLMC_HEADER, label)


def _nanogpt(path: Path, label: str) -> Iterator[Piece]:
    size = path.stat().st_size
    if size % 2:
        refuse("data.import", f"the file has {size:_} bytes", "ids of 16 bits take an even number", "Fetch it again", file=path)
    ids = np.fromfile(path, "<u2", CHUNK)
    if len(ids) >= 16 and int(ids[1::2].max()) <= _HIGH_HALF:
        got = f"every second 16-bit number is at most {_HIGH_HALF}, so these are ids of 32 or 64 bits"
        refuse("data.import", got, "a .bin without an .idx beside it has 16-bit ids", "Put its .idx beside it", file=path)
    yield from _raw(path, np.dtype("<u2"), 0, label)


def _raw(path: Path, dtype: np.dtype[Any], offset: int, label: str) -> Iterator[Piece]:
    if path.stat().st_size == offset:
        return  # An empty file cannot be mapped.
    ids = np.asarray(np.memmap(path, dtype, "r", offset))
    for begin in range(0, len(ids), CHUNK):
        yield Piece(ids[begin : begin + CHUNK], False, f"{label}@{begin}")


def _arrow(path: Path, label: str) -> Iterator[Piece]:
    pyarrow, ipc = _package("pyarrow"), _package("pyarrow.ipc")
    with pyarrow.memory_map(str(path)) as stream:
        try:
            reader = ipc.open_stream(stream)
        except pyarrow.ArrowInvalid:
            stream.seek(0)
            try:
                reader = ipc.open_file(stream)
            except pyarrow.ArrowInvalid as error:
                refuse("data.import", f"no Arrow file ({error})", "", "Fetch it again", file=path)
            _column(reader.schema, path)
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            _column(reader.schema, path)
            batches = iter(reader)
        yield from _rows(batches, path, label)


def _parquet(path: Path, label: str) -> Iterator[Piece]:
    pyarrow = _package("pyarrow")
    try:
        file = _package("pyarrow.parquet").ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        refuse("data.import", f"no Parquet file ({error})", "", "Fetch it again", file=path)
    with file:
        _column(file.schema_arrow, path)
        yield from _rows(file.iter_batches(ROWS, columns=[COLUMN]), path, label)


def _column(schema: Any, path: Path) -> None:
    """Refuse a table without a column of lists of integers."""
    types = _package("pyarrow.types")
    kinds = [(field.name, field.type) for field in schema]
    named = [kind for name, kind in kinds if name == COLUMN]
    found = named[0] if len(named) == 1 else None
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if found is None or not any(is_list(found) for is_list in lists) or not types.is_integer(found.value_type):
        got = f"the columns are {', '.join(f'{name} ({kind})' for name, kind in kinds)}"
        fix = 'Text is prepared, not imported: write format = "parquet" and its text_field'
        refuse("data.import", got, f"ids are lists of integers in {COLUMN}, one column of that name", fix, file=path)


def _rows(batches: Iterator[Any], path: Path, label: str) -> Iterator[Piece]:
    """Each row as a document."""
    pyarrow, compute = _package("pyarrow"), _package("pyarrow.compute")
    number = 0
    try:
        for batch in batches:
            column = batch.column(COLUMN)
            values = column.flatten()
            if values.null_count:
                refuse("data.import", f"{COLUMN} has {values.null_count:_} ids that are null", "integers", "Write it anew", file=path)
            ids = values.to_numpy()
            begin = 0
            for length in compute.list_value_length(column).fill_null(0).to_pylist():
                yield Piece(ids[begin : begin + length], True, f"{label}#{number}")
                begin, number = begin + length, number + 1
    except (pyarrow.ArrowInvalid, OSError) as error:
        refuse("data.import", f"cannot be read after row {number:_} ({error})", "", "Fetch it again", file=path)


def _package(name: str) -> Any:
    """A part of pyarrow, which takes a moment to load and has no types."""
    return importlib.import_module(name)


_READERS = {"megatron": _megatron, "llm.c": _llmc, "nanogpt": _nanogpt, "arrow": _arrow, "parquet": _parquet}
