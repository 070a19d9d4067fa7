"""The last steps: token ids by shard, the files of each side of each source, and the records of all documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preheat.data import indexed
from preheat.data.dedup.signatures import BANDS
from preheat.data.document import Document, Exclusion, exclude
from preheat.data.pipeline import duplicates, index
from preheat.data.pipeline.arrays import ArrayWriter
from preheat.data.pipeline.assigning import GONE, SIDE_NAMES, TRAIN, duplicates_found
from preheat.data.pipeline.duplicates import EXACT, SIGN, address, earlier, gone, library
from preheat.data.pipeline.learning import TOKENIZER
from preheat.data.pipeline.paragraphs import EQUAL, SHORTEN, STEP, equal_now, known, remaining_texts, settled, sides
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import AT_ONCE, EXCLUDED, READ, Counts, write_lines
from preheat.data.pipeline.tasks import Context, Reference, Stage
from preheat.data.tokenizer import Tokenizer

DOCUMENTS, EXCLUSIONS = index.LINES, "exclusions.jsonl"
_ROWS_AT_ONCE = 1000
"""Documents of which what the index says is in memory together; 512 bytes each."""


def _encode(context: Context, number: int, folder: Path) -> None:
    """The ids of a shard's documents by side, with a line for each document; the exclusions of its duplicates.

    The counts are those of paragraphs that went, too.
    """
    books = library(context)
    source = context.plan.data.source[context.plan.shards[number].source].name
    own = slice(books.firsts[number], books.firsts[number + 1])
    tokenizer, reasons = _tokenizer(context), _Reasons(context, number)
    dtype = indexed.dtype_for(tokenizer.vocab_size)
    (folder / EXCLUDED).touch()
    with ExitStack() as stack:
        writers = {side: stack.enter_context(indexed.Writer(folder / name, dtype)) for side, name in SIDE_NAMES.items()}
        lines = {side: stack.enter_context((folder / f"{name}.jsonl").open("w", encoding="utf-8")) for side, name in SIDE_NAMES.items()}
        for document, text, side in zip(range(own.start, own.stop), remaining_texts(context, number), sides(context)[own], strict=True):
            label = books.label(document)
            if side == GONE:
                reasons.explain(document, Document(source, label, text), folder)
                continue
            ids = tokenizer.encode_document(text)
            writers[side].add(ids)
            row = {"source": source, "split": SIDE_NAMES[side], "id": label, "bytes": len(text.encode()), "tokens": len(ids)}
            lines[side].write(json.dumps(row, ensure_ascii=False) + "\n")
    reasons.save(folder)
    books.close()


class _Reasons:
    """For which document each duplicate of a shard went."""

    def __init__(self, context: Context, shard: int) -> None:
        self._context, self._first = context, library(context).firsts[shard]
        span = library(context).firsts[shard : shard + 2]
        stays_for, self._similar = gone(context, *span)
        self._stays_for, self._equal_now = stays_for[slice(*span)], equal_now(context, *span)
        self._counts = Counts.load([context.folder(SHORTEN.name, shard)] if context.plan.data.dedup.paragraphs else [])
        self._waiting: list[Exclusion] = []

    def explain(self, number: int, document: Document, folder: Path) -> None:
        """Note why a document went, if the step that shortens documents has not; write what was noted when that has become much."""
        kept = int(self._stays_for[number - self._first])
        if kept >= 0:
            self._note(document, "duplicate", "same text", kept, f"as {address(self._context, kept)}")
        elif (row := _row(self._similar, "number", number)) is not None:
            kept = int(row["kept"])
            self._note(
                document, "near-duplicate", "similar text", kept, f"to {address(self._context, kept)}, Jaccard {row['similarity']:.2f}"
            )
        elif (row := _row(self._equal_now, "document", number)) is not None:
            kept = int(row["kept"])
            self._note(document, STEP, EQUAL, kept, f"as {address(self._context, kept)}")
        if len(self._waiting) >= AT_ONCE:
            self._write(folder)

    def _note(self, document: Document, step: str, reason: str, kept: int, detail: str) -> None:
        own = len(library(self._context))
        folder = f" of {earlier(self._context).folder_of(kept - own)}" if kept >= own else ""
        self._waiting.append(exclude(document, step, reason + folder, detail))

    def save(self, folder: Path) -> None:
        """Write what is left, and the counts."""
        self._write(folder)
        self._counts.save(folder)

    def _write(self, folder: Path) -> None:
        self._counts.drop(self._waiting)
        write_lines(folder / EXCLUDED, self._waiting)
        self._waiting.clear()


def _row(rows: npt.NDArray[np.void], field: str, number: int) -> Any:
    """The row of a document in rows by number, or None."""
    place = int(np.searchsorted(rows[field], number))
    return rows[place] if place < len(rows) and rows[field][place] == number else None


def _tokenizer(context: Context) -> Tokenizer:
    return context.once("tokenizer", lambda: Tokenizer.load(context.folder(TOKENIZER.name)))


def _encode_needs(plan: Plan, number: int) -> list[Reference]:
    return [*duplicates_found(plan), *settled(plan, [number]), (TOKENIZER.name, 0)]


def _encode_settings(context: Context, number: int) -> str:
    return context.plan.data.source[context.plan.shards[number].source].name


ENCODE = Stage("encode", lambda plan: len(plan.shards), _encode, _encode_settings, _encode_needs)


def _merge(context: Context, number: int, folder: Path) -> None:
    """The two files of a side of a source, and the lines of its documents."""
    source, side = _side(context.plan, number)
    name = context.plan.data.source[source].name
    parts = [context.folder(ENCODE.name, shard) for shard in context.plan.shards_of(source)]
    dtype = indexed.dtype_for(_tokenizer(context).vocab_size)
    limit = context.plan.data.shard_bytes if side == SIDE_NAMES[TRAIN] else None
    indexed.merge([part / side for part in parts], folder / f"{name}_{side}", dtype, limit)
    _joined((part / f"{side}.jsonl" for part in parts), folder / DOCUMENTS)


_NUMBERS = {name: side for side, name in SIDE_NAMES.items()}


def _side(plan: Plan, number: int) -> tuple[int, str]:
    return number // 2, list(SIDE_NAMES.values())[number % 2]


def _merge_needs(plan: Plan, number: int) -> list[Reference]:
    return [(TOKENIZER.name, 0), *((ENCODE.name, shard) for shard in plan.shards_of(_side(plan, number)[0]))]


def _merge_settings(context: Context, number: int) -> object:
    return [context.plan.data.source[_side(context.plan, number)[0]].name, context.plan.data.shard_bytes]


MERGE = Stage("merge", lambda plan: 2 * len(plan.data.source), _merge, _merge_settings, _merge_needs)


def _list(context: Context, number: int, folder: Path) -> None:
    """The lines of all documents, and of all that went: a source after the other, and in it those that went first. The index."""
    plan = context.plan
    _joined((context.folder(MERGE.name, task) / DOCUMENTS for task in range(MERGE.count(plan))), folder / DOCUMENTS)
    shortened = [SHORTEN.name] if plan.data.dedup.paragraphs else []
    stages = [(source, stage) for source in range(len(plan.data.source)) for stage in (READ.name, ENCODE.name, *shortened)]
    parts = (context.folder(stage, shard) / EXCLUDED for source, stage in stages for shard in plan.shards_of(source))
    _joined(parts, folder / EXCLUSIONS)
    _index(context, folder)


def _index(context: Context, folder: Path) -> None:
    """What a later preparation needs to know of the documents that stay, in the order of their lines."""
    plan, books = context.plan, library(context)
    every = sides(context)
    parts = []
    for task in range(MERGE.count(plan)):
        source, side = _side(plan, task)
        for shard in plan.shards_of(source):
            span = every[books.firsts[shard] : books.firsts[shard + 1]]
            parts.append((shard, np.flatnonzero(span == _NUMBERS[side])))
    count = sum(len(own) for _, own in parts)
    files: list[tuple[str, str, np.dtype[Any], tuple[int, ...]]] = [(index.ROWS, duplicates.DOCUMENTS, index.DTYPE, (count,))]
    if plan.data.dedup.near:
        files.append((index.BAND_FILE, duplicates.BAND_FILE, np.dtype("<u8"), (BANDS, count)))
    for name, signed, dtype, shape in files:
        with ArrayWriter(folder / name, dtype, shape) as out:
            for shard, own in parts:
                for first in range(0, len(own), _ROWS_AT_ONCE):
                    out.add(known(context, shard, signed, own[first : first + _ROWS_AT_ONCE]))


def _list_needs(plan: Plan, number: int) -> list[Reference]:
    every = range(len(plan.shards))
    return [
        (EXACT.name, 0),
        *settled(plan, every),
        *((stage.name, task) for stage in (SIGN, MERGE, ENCODE) for task in range(stage.count(plan))),
    ]


LIST = Stage("list", lambda plan: 1, _list, lambda context, number: None, _list_needs)


def _joined(parts: Iterator[Path], out: Path) -> None:
    with out.open("wb") as stream:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, stream, 1 << 20)
