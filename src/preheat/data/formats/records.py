"""Formats that hold many documents a file: JSON lines and parquet. One bad record costs itself and nothing else."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from preheat import recipe
from preheat.data.document import EMPTY, Document, File, Reading
from preheat.data.formats import streams
from preheat.data.formats.text import decoded, is_binary, unescaped
from preheat.errors import refuse

NO_TEXT = "no UTF-8 text"
"""The reason of bytes that are in another encoding or no text at all."""
MAX_RECORD = 256 << 20
"""Bytes of a record that are held in memory; one that is longer is skipped."""
ROWS_IN_MEMORY = 8 << 20
"""About how many bytes of a parquet file become documents at once; the file's own pages, a megabyte by habit, come on top."""


def json_lines(source: recipe.Source, label: str, content: Iterable[bytes], reading: Reading, first: int = 1) -> Iterator[Document]:
    """One record a line; blank lines are no records. Ids are `label:line`."""
    for number, (line, cut) in enumerate(lines(content, MAX_RECORD), start=first):
        if not line or line.isspace():
            continue
        raw, mended = decoded(line)
        if not raw.strip():
            continue
        here = Document(source.name, f"{label}:{number}", raw.strip())
        damage = is_binary(raw, mended)
        if damage:
            # Of UTF-16 the text without its zeros would be left: ASCII by chance, and of everything else another text.
            reading.skip(here, NO_TEXT, damage)
            continue
        reading.repaired += mended
        if cut:
            reading.skip(here, "record too long", f"more than {MAX_RECORD:_} bytes")
            continue
        record, fault = _record(raw)
        if record is None:
            reading.skip(here, fault)
        else:
            yield from _document(source, here, record.get(source.text_field), record, reading)


def _record(line: str) -> tuple[dict[str, Any] | None, str]:
    """The JSON object of a line, or why there is none."""
    try:
        record = json.loads(line, strict=False)
    except RecursionError:
        return None, "broken JSON"
    except ValueError:
        try:
            # Python turns no more than 4,300 digits into an integer; who wants the text does not need it.
            record = json.loads(line, strict=False, parse_int=str)
        except (ValueError, RecursionError):
            return None, "broken JSON"
    return (record, "") if isinstance(record, dict) else (None, "no JSON object")


def _document(source: recipe.Source, here: Document, text: object, record: dict[str, Any], reading: Reading) -> Iterator[Document]:
    """The document of a record, unless its text or its score is missing."""
    if text is None:
        reading.skip(here, f"no field {source.text_field!r}")
    elif not isinstance(text, str):
        reading.skip(here, f"field {source.text_field!r} is no text")
    elif not text.strip():
        reading.skip(here, EMPTY)
    else:
        score = None
        if source.quality is not None and source.quality.field is not None:
            score = _number(record.get(source.quality.field))
            if score is None:
                reading.skip(here, f"field {source.quality.field!r} is no number")
                return
        reading.documents += 1
        yield Document(here.source, here.id, unescaped(text, reading), score)


def _number(value: object) -> float | None:
    """The value of a field that should hold a number, if it does: JSON knows true, NaN, and integers of a thousand digits, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def lines(content: Iterable[bytes], longest: int) -> Iterator[tuple[bytes, bool]]:
    """The lines of a stream without their line feeds, and whether one was cut off at `longest` bytes; the last one needs no line end."""
    rest: list[bytes] = []
    held, cut = 0, False
    for chunk in content:
        head, *more = chunk.split(b"\n")
        for position, part in enumerate([head, *more]):
            if position:
                yield b"".join(rest), cut
                rest, held, cut = [], 0, False
            room = longest - held
            cut = cut or len(part) > room
            if part and room > 0:
                rest.append(part[:room])
                held += len(part[:room])
    yield b"".join(rest), cut


def split_lines(file: File, size: int) -> list[File]:
    """Parts of about `size` bytes of an uncompressed file of lines, cut at line ends. Reads the file once, for the numbers of the lines."""
    parts: list[File] = []
    start, line, position, number = 0, 1, 0, 1
    with streams.open_file(file) as stream:
        for chunk in streams.pieces(stream):
            while position + len(chunk) - start >= size:
                cut = chunk.find(b"\n", max(start + size - position - 1, 0)) + 1
                if not cut:
                    break
                number += chunk.count(b"\n", 0, cut)
                position += cut
                chunk = chunk[cut:]
                parts.append(replace(file, size=position - start, start=start, end=position, line=line))
                start, line = position, number
            number += chunk.count(b"\n")
            position += len(chunk)
    if position > start or not parts:
        parts.append(replace(file, size=position - start, start=start, end=position, line=line))
    return parts


def parquet(source: recipe.Source, file: File, reading: Reading) -> Iterator[Document]:
    """One document a row. Ids are `file:row`, counted from 1. A row group that cannot be read costs its rows.

    Raises:
        Damage: the file as a whole is no readable parquet.
    """
    pq = _pyarrow_parquet()
    wanted = [source.text_field]
    if source.quality is not None and source.quality.field is not None:
        wanted.append(source.quality.field)
    with streams.open_file(file) as stream:
        try:
            table = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)
        except (OSError, ValueError) as error:  # pyarrow's errors are of both kinds.
            raise streams.Damage(str(error).partition("\n")[0]) from None
        names = table.schema_arrow.names
        unclear = next((name for name in wanted if names.count(name) != 1), None)
        if unclear is not None:
            fault = f"{names.count(unclear)} fields {unclear!r}" if unclear in names else f"no field {unclear!r}"
            reading.skip(Document(source.name, file.id, ""), fault, f"fields: {', '.join(names[:20])}", table.metadata.num_rows)
            return
        row = file.line
        for group in range(file.start, table.num_row_groups if file.end is None else file.end):
            meta = table.metadata.row_group(group)
            yield from _row_group(source, file, table, group, wanted, row, reading)
            row += meta.num_rows


def _row_group(
    source: recipe.Source, file: File, table: Any, group: int, wanted: list[str], row: int, reading: Reading
) -> Iterator[Document]:
    pa: Any = importlib.import_module("pyarrow")

    meta = table.metadata.row_group(group)
    rows = max(1, min(4096, ROWS_IN_MEMORY * meta.num_rows // max(meta.total_byte_size, 1)))
    last = row + meta.num_rows
    try:
        for batch in table.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
            column = batch.column(wanted[0])
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
                # Parquet promises UTF-8, and nothing holds writers to it.
                column = column.cast(pa.large_binary())
            scores = batch.column(wanted[1]).to_pylist() if len(wanted) > 1 else [None] * len(column)
            for value, score in zip(column.to_pylist(), scores, strict=True):
                here = Document(source.name, f"{file.id}:{row}", "")
                row += 1
                if isinstance(value, bytes):
                    reading.bytes += len(value)
                    value, mended = decoded(value)
                    reading.repaired += mended
                yield from _document(source, here, value, {wanted[-1]: score}, reading)
    except (OSError, ValueError, NotImplementedError) as error:
        where = Document(source.name, f"{file.id}:{row}", "")
        reading.skip(where, "damaged row group", f"{last - row:_} rows: {str(error).partition(chr(10))[0]}", last - row)


def split_row_groups(file: File, size: int) -> list[File]:
    """Parts of whole row groups, of about `size` bytes of the file each; the file itself where it cannot be read."""
    parts: list[File] = []
    with streams.open_file(file) as stream:
        try:
            metadata = _pyarrow_parquet().read_metadata(stream)
        except (OSError, ValueError):
            return [file]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = max(sum(group.total_byte_size for group in groups), 1)
    first, held, row, next_row = 0, 0, 1, 1
    for number, group in enumerate(groups):
        held += file.size * group.total_byte_size // unpacked
        next_row += group.num_rows
        if held >= size or number == len(groups) - 1:
            parts.append(replace(file, size=held, start=first, end=number + 1, line=row))
            first, held, row = number + 1, 0, next_row
    return parts or [file]


def _pyarrow_parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        refuse("data.no-package", "reading parquet needs the Python package pyarrow", "", "Install it: pip install 'preheat[data]'")
