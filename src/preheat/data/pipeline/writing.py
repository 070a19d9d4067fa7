"""The last steps: token ids by shard, the files of each side of each source, and the records of all documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from preheat.data import indexed
from preheat.data.dedup.signatures import BANDS
from preheat.data.document import HEAD, Document, exclude
from preheat.data.pipeline import duplicates, index
from preheat.data.pipeline.assigning import DIVIDE, GONE, SIDE_NAMES, SIDES, TOKENIZER, TRAIN, duplicates_found
from preheat.data.pipeline.duplicates import EXACT, SIGN, address, earlier, gone, library
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import EXCLUDED, READ, Counts, write_lines
from preheat.data.pipeline.tasks import Context, Reference, Stage
from preheat.data.pipeline.texts import Library, texts
from preheat.data.tokenizer import Tokenizer

DOCUMENTS, EXCLUSIONS = index.LINES, "exclusions.jsonl"


def _encode(context: Context, number: int, folder: Path) -> None:
    """The ids of a shard's documents by side, with a line for each document; the exclusions of its duplicates."""
    books = library(context)
    source = context.plan.data.source[context.plan.shards[number].source].name
    sides = np.load(context.folder(DIVIDE.name) / SIDES, mmap_mode="r")[books.firsts[number] : books.firsts[number + 1]].tolist()
    tokenizer = _tokenizer(context)
    dtype = indexed.dtype_for(tokenizer.vocab_size)
    dropped: dict[int, str] = {}
    with ExitStack() as stack:
        writers = {side: stack.enter_context(indexed.Writer(folder / name, dtype)) for side, name in SIDE_NAMES.items()}
        lines = {side: stack.enter_context((folder / f"{name}.jsonl").open("w", encoding="utf-8")) for side, name in SIDE_NAMES.items()}
        for document, (text, side) in enumerate(zip(texts(books.folders[number]), sides, strict=True), start=books.firsts[number]):
            if side == GONE:
                dropped[document] = text[:HEAD]
                continue
            ids = tokenizer.encode_document(text)
            writers[side].add(ids)
            label, size = books.label(document), len(text.encode())
            row = {"source": source, "split": SIDE_NAMES[side], "id": label, "bytes": size, "tokens": len(ids)}
            lines[side].write(json.dumps(row, ensure_ascii=False) + "\n")
    _explain(context, books, source, dropped, folder)
    books.close()


def _explain(context: Context, books: Library, source: str, dropped: dict[int, str], folder: Path) -> None:
    """Write for which document each duplicate went."""
    stays_for, similar = gone(context)
    own = similar[slice(*np.searchsorted(similar["number"], [min(dropped, default=0), max(dropped, default=-1) + 1]))]
    matches = {int(row["number"]): (int(row["kept"]), float(row["similarity"])) for row in own}
    counts, out = Counts(), []
    for number, text in dropped.items():
        document = Document(source, books.label(number), text)
        if number in matches:
            kept, similarity = matches[number]
            detail = f"to {address(context, kept)}, Jaccard {similarity:.2f}"
            out.append(exclude(document, "near-duplicate", "similar text" + _of_earlier(context, kept), detail))
        else:
            kept = int(stays_for[number])
            out.append(exclude(document, "duplicate", "same text" + _of_earlier(context, kept), f"as {address(context, kept)}"))
    counts.drop(out)
    counts.save(folder)
    (folder / EXCLUDED).touch()
    write_lines(folder / EXCLUDED, out)


def _of_earlier(context: Context, kept: int) -> str:
    """From which prepared folder the document is for which another one went, if it is none of the present ones."""
    own = len(library(context))
    return f" of {earlier(context).folder_of(kept - own)}" if kept >= own else ""


def _tokenizer(context: Context) -> Tokenizer:
    return context.once("tokenizer", lambda: Tokenizer.load(context.folder(TOKENIZER.name)))


def _encode_needs(plan: Plan, number: int) -> list[Reference]:
    return [*duplicates_found(plan), (DIVIDE.name, 0), (TOKENIZER.name, 0)]


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
    stages = [(source, stage) for source in range(len(plan.data.source)) for stage in (READ.name, ENCODE.name)]
    parts = (context.folder(stage, shard) / EXCLUDED for source, stage in stages for shard in plan.shards_of(source))
    _joined(parts, folder / EXCLUSIONS)
    _index(context, folder)


def _index(context: Context, folder: Path) -> None:
    """What a later preparation needs to know of the documents that stay, in the order of their lines."""
    plan, books = context.plan, library(context)
    sides = np.load(context.folder(DIVIDE.name) / SIDES)
    parts = []
    for task in range(MERGE.count(plan)):
        source, side = _side(plan, task)
        for shard in plan.shards_of(source):
            own = sides[books.firsts[shard] : books.firsts[shard + 1]]
            parts.append((context.folder(SIGN.name, shard), np.flatnonzero(own == _NUMBERS[side])))
    np.save(folder / index.ROWS, np.concatenate([np.load(part / duplicates.DOCUMENTS)[own] for part, own in parts]))
    if not plan.data.dedup.near:
        return
    shape = (BANDS, sum(len(own) for _, own in parts))
    bands = np.lib.format.open_memmap(folder / index.BAND_FILE, "w+", np.dtype("<u8"), shape)
    begin = 0
    for part, own in parts:
        bands[:, begin : begin + len(own)] = np.load(part / duplicates.BAND_FILE, mmap_mode="r")[:, own]
        begin += len(own)
    bands.flush()


def _list_needs(plan: Plan, number: int) -> list[Reference]:
    return [
        (EXACT.name, 0),
        (DIVIDE.name, 0),
        *((stage.name, task) for stage in (SIGN, MERGE, ENCODE) for task in range(stage.count(plan))),
    ]


LIST = Stage("list", lambda plan: 1, _list, lambda context, number: None, _list_needs)


def _joined(parts: Iterator[Path], out: Path) -> None:
    with out.open("wb") as stream:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, stream, 1 << 20)
