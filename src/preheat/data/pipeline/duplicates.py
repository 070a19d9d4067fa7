"""The steps that find duplicates: signatures by shard, equal texts at once, equal bands by band, similar texts by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preheat.data import dedup
from preheat.data.dedup.grams import Hashes
from preheat.data.dedup.signatures import BANDS
from preheat.data.pipeline.arrays import ArrayWriter
from preheat.data.pipeline.index import DTYPE, Earlier, rows_of
from preheat.data.pipeline.plan import Plan, fingerprint
from preheat.data.pipeline.reading import CHECK, READ
from preheat.data.pipeline.tasks import Context, Reference, Stage, entries
from preheat.data.pipeline.texts import Library, batches, count_of, texts

DOCUMENTS, BAND_FILE, STAYS_FOR, GONE = "documents.npy", "bands.npy", "stays_for.npy", "gone.npy"
EQUAL, MEMBERS, SHARED = "equal-{:02}.npy", "members-{:03}.npy", "shared-{:03}.bin"
BATCH = 4_000_000
"""Characters of text in memory at a time."""
BAND_TASKS = 8
GROUP_TASKS, MOST_GROUP_TASKS = 16, 256


def by_key(keys: npt.NDArray[np.uint64], *first: npt.NDArray[np.integer | np.bool_]) -> npt.NDArray[np.int64]:
    """The order of documents by `first`, and where these are equal by the bytes of their keys, whose shape is (documents, 4)."""
    return np.lexsort((*keys.byteswap().T[::-1], *reversed(first)))


def library(context: Context) -> Library:
    """All documents that cleaning let through."""
    return context.once("library", lambda: Library([context.folder(READ.name, number) for number in range(len(context.plan.shards))]))


def earlier(context: Context) -> Earlier:
    """The documents that the prepared folders of `data.dedup.against` kept. Their numbers go on where those of `library` end."""
    return context.once("earlier", lambda: Earlier(Path(context.plan.folder), context.plan.data.dedup.against))


def address(context: Context, number: int) -> str:
    """The source and the label of a document."""
    books = library(context)
    if number >= len(books):
        return earlier(context).address(number - len(books))
    shard, _ = books.locate(number)
    return f"{context.plan.data.source[context.plan.shards[shard].source].name}: {books.label(number)}"


def documents(context: Context, field: str, of: Earlier | None = None) -> npt.NDArray[Any]:
    """What a field of `DTYPE` says of each document, then of each of the earlier ones if these are asked for, too."""
    books = library(context)
    out = np.empty((len(books) + len(of or ()), *DTYPE[field].shape), DTYPE[field].base)
    for number, (begin, end) in enumerate(pairwise(books.firsts)):
        out[begin:end] = _mapped(context, SIGN, number, DOCUMENTS)[field]
    if of is not None:
        out[len(books) :] = of.rows()[field]
    return out


def _mapped(context: Context, stage: Stage, number: int, name: str) -> npt.NDArray[Any]:
    """A file of a task. Mapped, it takes a file descriptor until it is forgotten: those of all shards would be too many at a time."""
    out: npt.NDArray[Any] = np.load(context.folder(stage.name, number) / name, mmap_mode="r")
    return out


def _sign(context: Context, number: int, folder: Path) -> None:
    sign(context, context.folder(READ.name, number), folder)


def sign(context: Context, read: Path, folder: Path) -> None:
    """Write key, held-out position and sizes of each text of the folder `read`; its bands."""
    count = count_of(read)
    with ExitStack() as stack:
        rows = stack.enter_context(ArrayWriter(folder / DOCUMENTS, DTYPE, (count,)))
        near = context.plan.data.dedup.near
        bands = stack.enter_context(ArrayWriter(folder / BAND_FILE, np.dtype("<u8"), (BANDS, count))) if near else None
        for batch in batches(texts(read), BATCH):
            rows.add(rows_of(batch))
            if bands is not None:
                bands.add(dedup.bands(dedup.shingles(batch)))


SIGN = Stage(
    "sign",
    lambda plan: len(plan.shards),
    _sign,
    lambda context, number: dedup.SIGNATURE if context.plan.data.dedup.near else None,
    lambda plan, number: [(READ.name, number), (CHECK.name, plan.shards[number].source)],
)


def _exact(context: Context, number: int, folder: Path) -> None:
    """For each document, the earlier ones included, the number of the one with the same text that stays for it, or -1.

    An earlier one stays, else the one in the source that the recipe names first, then the longest, then the first. A file says what all of
    this was found in, so that a later step that needs this one needs all texts, and the sources that they are of.
    """
    found_in = [[entries(context, stage, n) for stage in (READ.name, SIGN.name)] for n in range(len(context.plan.shards))]
    before = earlier(context)
    (folder / "found_in.txt").write_text(fingerprint([found_in, _exact_settings(context, number)]), "utf-8")
    sources = np.array([*(shard.source for shard in context.plan.shards), -1], np.int32)
    ranks = np.repeat(sources, [*library(context).counts, len(before)]), -documents(context, "characters", before).view(np.int64)
    np.save(folder / STAYS_FOR, dedup.exact_duplicates(documents(context, "key", before), ranks))


def _every_shard(plan: Plan, number: int) -> list[Reference]:
    return [(stage, shard) for shard in range(len(plan.shards)) for stage in (READ.name, SIGN.name)]


def _exact_settings(context: Context, number: int) -> object:
    """The earlier documents, and for each shard the place and the name of its source: one ranks its documents, the other tells of them."""
    plan = context.plan
    return [earlier(context).identity, [[shard.source, plan.data.source[shard.source].name] for shard in plan.shards]]


def _nothing(context: Context, number: int) -> None:
    return None


EXACT = Stage("exact", lambda plan: 1, _exact, _exact_settings, _every_shard)


def _match_bands(context: Context, number: int, folder: Path) -> None:
    """Documents that share one of the task's bands with another one, and beside each the first of those, which is none of the earlier ones:
    what only they share changes nothing.
    """
    books, before = library(context), earlier(context)
    own, values = len(books), np.empty(len(books) + len(before), np.uint64)
    staying = np.flatnonzero(np.load(context.folder(EXACT.name) / STAYS_FOR, mmap_mode="r") < 0)
    for band in range(number, BANDS, BAND_TASKS):
        for shard, (begin, end) in enumerate(pairwise(books.firsts)):
            values[begin:end] = _mapped(context, SIGN, shard, BAND_FILE)[band]
        values[own:] = before.band(band)
        documents, first = dedup.equal_bands(values, staying)
        np.save(folder / EQUAL.format(band), np.stack((documents, first))[:, first < own])


BAND = Stage("band", lambda plan: BAND_TASKS * plan.data.dedup.near, _match_bands, _nothing, lambda plan, number: [(EXACT.name, 0)])


class _Equal(Sequence[Any]):
    """What the step `band` found, a band at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __len__(self) -> int:
        return BANDS

    def __getitem__(self, band: Any) -> Any:
        if band >= BANDS:
            raise IndexError
        return np.load(self._context.folder(BAND.name, band % BAND_TASKS) / EQUAL.format(band))


def _group(context: Context, number: int, folder: Path) -> None:
    """For each task of the next step, the documents of its groups, which bands connect, and the bands that they share."""
    equal = _Equal(context)
    members, roots = dedup.groups(equal)
    # Consecutive roots go to different tasks; large groups are far between.
    count = _compare_tasks(context.plan)
    tasks = (np.unique(roots, return_inverse=True)[1] % count).astype(np.uint8)
    with ExitStack() as stack:
        streams = [stack.enter_context((folder / SHARED.format(task)).open("wb")) for task in range(count)]
        for band, (documents, first) in enumerate(equal):
            rows = np.stack((documents, first * BANDS + band), axis=1)
            for stream, own in zip(streams, _by_task(tasks[np.searchsorted(members, documents)], count), strict=True):
                stream.write(rows[own].tobytes())
    for task, own in enumerate(_by_task(tasks, count)):
        np.save(folder / MEMBERS.format(task), np.stack((members[own], roots[own])))


def _by_task(tasks: npt.NDArray[np.uint8], count: int) -> list[npt.NDArray[np.int64]]:
    """The places of each task, ascending."""
    return np.split(np.argsort(tasks, kind="stable"), np.cumsum(np.bincount(tasks, minlength=count))[:-1])


def _compare_tasks(plan: Plan) -> int:
    """As the data grows, so does the number of tasks, and not what each of them holds."""
    return min(max(len(plan.shards), GROUP_TASKS), MOST_GROUP_TASKS) * plan.data.dedup.near


GROUP = Stage(
    "group",
    lambda plan: 1 * plan.data.dedup.near,
    _group,
    # The bands may come out the same where there are more or fewer shards, and with them tasks to divide the groups among.
    lambda context, number: _compare_tasks(context.plan),
    lambda plan, number: [(BAND.name, task) for task in range(BAND_TASKS)],
)


def _compare(context: Context, number: int, folder: Path) -> None:
    """Which documents of the task's groups go, for which other ones, and how similar they are."""
    members, roots = np.load(context.folder(GROUP.name) / MEMBERS.format(number))
    shared = np.fromfile(context.folder(GROUP.name) / SHARED.format(number), np.int64).reshape(-1, 2)
    books, before = library(context), earlier(context)
    settled = members >= len(books)
    table = np.concatenate((_rows(context, members[~settled]), before.rows()[members[settled] - len(books)]))
    order = by_key(table["key"], roots, ~settled, -table["characters"].astype(np.int64))

    def text(number: int) -> str:
        return books.text(number) if number < len(books) else before.text(number - len(books))

    def load(numbers: npt.NDArray[np.int64]) -> Iterator[Hashes]:
        for batch in batches(map(text, map(int, numbers)), BATCH // 4):
            found = dedup.shingles(batch)
            yield from (found.distinct(i) for i in range(len(found)))

    jaccard = context.plan.data.dedup.jaccard
    gone = dedup.near_duplicates(members[order], roots[order], (shared[:, 0], shared[:, 1]), load, jaccard, settled[order])
    books.close()
    rows = [(member, match.kept, match.similarity) for member, match in sorted(gone.items())]
    np.save(folder / GONE, np.array(rows, MATCH))


MATCH = np.dtype([("number", "<i8"), ("kept", "<i8"), ("similarity", "<f8")])


def _rows(context: Context, members: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """A row of `DTYPE` for each of some documents; `members` ascend."""
    books = library(context)
    bounds = np.searchsorted(members, books.firsts)
    own = [
        _mapped(context, SIGN, shard, DOCUMENTS)[members[begin:end] - books.firsts[shard]]
        for shard, (begin, end) in enumerate(pairwise(bounds))
        if end > begin
    ]
    return np.concatenate([np.zeros(0, DTYPE), *own])


COMPARE = Stage(
    "compare",
    _compare_tasks,
    _compare,
    lambda context, number: context.plan.data.dedup.jaccard,
    lambda plan, number: [(EXACT.name, 0), (GROUP.name, 0)],
)


def gone(context: Context, begin: int = 0, end: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """For each document the equal one that stays for it, or -1; and the similar ones that go, as rows of `MATCH` by number, of all
    documents or those of the numbers `begin..end`.
    """
    own = len(library(context))
    stays_for: npt.NDArray[np.int64] = np.load(context.folder(EXACT.name) / STAYS_FOR, mmap_mode="r")[:own]
    found = [np.zeros(0, MATCH)]
    for task in range(COMPARE.count(context.plan)):
        rows = _mapped(context, COMPARE, task, GONE)
        found.append(rows[slice(*np.searchsorted(rows["number"], [begin, own if end is None else end]))])
    return stays_for, np.sort(np.concatenate(found), order="number")
