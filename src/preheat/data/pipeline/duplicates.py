"""The steps that find duplicates: signatures by shard, equal texts at once, equal bands by band, similar texts by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preheat.data import dedup, split
from preheat.data.dedup.grams import Hashes
from preheat.data.dedup.signatures import BANDS
from preheat.data.pipeline.index import DTYPE, Earlier
from preheat.data.pipeline.plan import Plan, fingerprint
from preheat.data.pipeline.reading import CHECK, READ
from preheat.data.pipeline.tasks import Context, Reference, Stage, entries
from preheat.data.pipeline.texts import Library, batches, texts

DOCUMENTS, BAND_FILE = "documents.npy", "bands.npy"
BATCH = 4_000_000
"""Characters of text in memory at a time."""
BAND_TASKS, GROUP_TASKS = 8, 16


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


def documents(context: Context) -> npt.NDArray[np.void]:
    """A row of `DTYPE` for each document."""
    parts = [np.load(context.folder(SIGN.name, number) / DOCUMENTS) for number in range(len(context.plan.shards))]
    return np.concatenate(parts)


def _sign(context: Context, number: int, folder: Path) -> None:
    """Key, held-out position and sizes of each text; its bands."""
    rows, bands = [], [np.zeros((BANDS, 0), np.uint64)]
    for batch in batches(texts(context.folder(READ.name, number)), BATCH):
        for text in batch:
            key = dedup.key(text)
            rows.append((np.frombuffer(key, "<u8"), split.position(key), len(text), len(text.encode())))
        if context.plan.data.dedup.near:
            bands.append(dedup.bands(dedup.shingles(batch)))
    np.save(folder / DOCUMENTS, np.array(rows, DTYPE))
    if context.plan.data.dedup.near:
        np.save(folder / BAND_FILE, np.concatenate(bands, axis=1))


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
    this was found in, so that a later step that needs this one needs all texts.
    """
    found_in = [[entries(context, stage, n) for stage in (READ.name, SIGN.name)] for n in range(len(context.plan.shards))]
    before = earlier(context)
    (folder / "found_in.txt").write_text(fingerprint([found_in, before.identity]), "utf-8")
    table = np.concatenate((documents(context), before.rows()))
    sources = np.repeat([*(shard.source for shard in context.plan.shards), -1], [*library(context).counts, len(before)])
    np.save(folder / "stays_for.npy", dedup.exact_duplicates(table["key"], (sources, -table["characters"].astype(np.int64))))


def _every_shard(plan: Plan, number: int) -> list[Reference]:
    return [(stage, shard) for shard in range(len(plan.shards)) for stage in (READ.name, SIGN.name)]


def _nothing(context: Context, number: int) -> None:
    return None


EXACT = Stage("exact", lambda plan: 1, _exact, lambda context, number: earlier(context).identity, _every_shard)


def _match_bands(context: Context, number: int, folder: Path) -> None:
    """Documents that share one of the task's bands with another one, and beside each the first of those, which is none of the earlier ones:
    what only they share changes nothing.
    """
    own, before = len(library(context)), earlier(context)
    staying = np.flatnonzero(np.load(context.folder(EXACT.name) / "stays_for.npy") < 0)
    found = []
    for band in range(number, BANDS, BAND_TASKS):
        values = np.concatenate([_bands_of(context, shard)[band] for shard in range(len(context.plan.shards))])
        equal = np.stack(dedup.equal_bands(np.concatenate((values, before.band(band))), staying))
        found.append(equal[:, equal[1] < own])
    np.save(folder / "equal.npy", np.concatenate(found, axis=1))


def _bands_of(context: Context, shard: int) -> Hashes:
    out: Hashes = np.load(context.folder(SIGN.name, shard) / BAND_FILE, mmap_mode="r")
    return out


BAND = Stage("band", lambda plan: BAND_TASKS * plan.data.dedup.near, _match_bands, _nothing, lambda plan, number: [(EXACT.name, 0)])


def _group(context: Context, number: int, folder: Path) -> None:
    """The documents that share a band with another one, by the groups that bands connect."""
    pairs = [np.load(context.folder(BAND.name, task) / "equal.npy") for task in range(BAND_TASKS)]
    members, roots = dedup.groups([(pair[0], pair[1]) for pair in pairs])
    np.save(folder / "groups.npy", np.stack((members, roots)))


GROUP = Stage(
    "group", lambda plan: 1 * plan.data.dedup.near, _group, _nothing, lambda plan, number: [(BAND.name, task) for task in range(BAND_TASKS)]
)


def _compare(context: Context, number: int, folder: Path) -> None:
    """Which documents of the task's groups go, for which other ones, and how similar they are."""
    members, roots = np.load(context.folder(GROUP.name) / "groups.npy")
    # Consecutive roots go to different tasks; large groups are far between.
    own = np.unique(roots, return_inverse=True)[1] % GROUP_TASKS == number
    members, roots = members[own], roots[own]
    books, before = library(context), earlier(context)
    table = np.concatenate((documents(context), before.rows()))[members]
    settled = members >= len(books)
    bands = np.concatenate((_bands(context, books, members[~settled]), before.bands(members[settled] - len(books))), axis=1)
    order = by_key(table["key"], roots, ~settled, -table["characters"].astype(np.int64))
    ranked = members[order].tolist()

    def text(number: int) -> str:
        return books.text(number) if number < len(books) else before.text(number - len(books))

    def load(numbers: Sequence[int]) -> Iterator[Hashes]:
        for batch in batches(map(text, numbers), BATCH // 4):
            found = dedup.shingles(batch)
            yield from (found.distinct(i) for i in range(len(found)))

    gone = dedup.near_duplicates(ranked, roots[order], bands[:, order], load, context.plan.data.dedup.jaccard, settled[order])
    books.close()
    rows = [(member, match.kept, match.similarity) for member, match in sorted(gone.items())]
    np.save(folder / "gone.npy", np.array(rows, MATCH))


MATCH = np.dtype([("number", "<i8"), ("kept", "<i8"), ("similarity", "<f8")])


def _bands(context: Context, books: Library, members: npt.NDArray[np.int64]) -> Hashes:
    """The bands of some documents, shape (64, members); `members` ascend."""
    bounds = np.searchsorted(members, books.firsts)
    return np.concatenate(
        [np.zeros((BANDS, 0), np.uint64)]
        + [
            _bands_of(context, shard)[:, members[begin:end] - books.firsts[shard]]
            for shard, (begin, end) in enumerate(pairwise(bounds))
            if end > begin
        ],
        axis=1,
    )


COMPARE = Stage(
    "compare",
    lambda plan: GROUP_TASKS * plan.data.dedup.near,
    _compare,
    lambda context, number: context.plan.data.dedup.jaccard,
    lambda plan, number: [(EXACT.name, 0), (GROUP.name, 0)],
)


def gone(context: Context) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """For each document the equal one that stays for it, or -1; and the similar ones that go, as rows of `MATCH` by number."""
    stays_for = np.load(context.folder(EXACT.name) / "stays_for.npy")[: len(library(context))]
    tasks = range(COMPARE.count(context.plan))
    similar = np.concatenate([np.zeros(0, MATCH), *(np.load(context.folder(COMPARE.name, task) / "gone.npy") for task in tasks)])
    return stays_for, np.sort(similar, order="number")
