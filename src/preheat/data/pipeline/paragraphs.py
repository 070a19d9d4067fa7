"""The steps that find paragraphs which stand in several places of the documents that stay, and take them out of all but one.

They come behind those that find duplicates of documents, and look at the documents that stay: the only place that keeps a paragraph never
goes later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preheat import recipe
from preheat.data import dedup
from preheat.data.dedup.paragraphs import KEY_BYTES, Paragraphs, paragraph_keys, paragraphs
from preheat.data.document import HEAD, Document, Exclusion, exclude
from preheat.data.pipeline import duplicates
from preheat.data.pipeline.assigning import DIVIDE, GONE, SIDE_NAMES, SIDES
from preheat.data.pipeline.duplicates import BATCH, EXACT, SIGN, address, earlier, library
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import EXCLUDED, READ, Counts, write_lines
from preheat.data.pipeline.tasks import Context, Reference, Stage
from preheat.data.pipeline.texts import Library, TextsWriter, batches, texts
from preheat.errors import PreheatError, Problem, Where, refuse

STEP, REPEATED_ONLY = "paragraph", "nothing but repeated paragraphs"
EDIT = "repeated paragraph removed"
EQUAL = "the same text without repeated paragraphs"
ALTERED, DROPPED, EQUAL_NOW = "altered.npy", "dropped.npy", "equal.npy"
KEY_TASKS, EARLIER_TASKS = 64, 64
"""At most so many; the places that a task holds are so many times fewer."""
PLACE = np.dtype([("key", "<u8", (KEY_BYTES // 8,)), ("document", "<i8"), ("number", "<u4")])
"""A paragraph: its hash, its document, and which of the paragraphs of that document it is; 28 bytes."""
AGAIN = np.dtype([("document", "<i8"), ("number", "<u4"), ("kept", "<i8"), ("kept_number", "<u4"), ("places", "<u8")])
"""A paragraph that goes, the place that keeps it, and how many places it has, this one included."""
PAIR = np.dtype([("document", "<i8"), ("kept", "<i8")])
"""A document that goes, and the one that stays for it."""


def takes_part(data: recipe.Data, source: recipe.Source) -> bool:
    """Whether paragraphs of a source are compared. Code without a block of it is broken code, so that it must be asked for."""
    asked = data.dedup.paragraph_sources
    return source.name in asked if asked else source.policy != "code"


def refuse_sources(data: recipe.Data) -> None:
    """Refuse paragraphs to be compared of sources that there are not."""
    names = [source.name for source in data.source]
    unknown = [name for name in data.dedup.paragraph_sources if name not in names]
    key = "data.dedup.paragraph_sources"
    if unknown:
        refuse("data.paragraphs", f"there is no source {unknown[0]!r}", f"there are {', '.join(names)}", "Correct the name", key=key)
    if data.dedup.paragraphs and not any(takes_part(data, source) for source in data.source):
        got, want = "no paragraphs are compared: every source has the policy 'code'", "a source with another policy, or sources by name"
        refuse("data.paragraphs", got, want, "Name the sources, or set data.dedup.paragraphs to false", key=key)


def _places(context: Context, number: int, folder: Path) -> None:
    """The paragraphs of the documents of a shard that stay, or of a part of the earlier ones, in the order of their hashes."""
    least, found = context.plan.data.dedup.paragraph_words, [np.zeros(0, PLACE)]
    for numbers, batch in _documents(context, number):
        split = zip(numbers, paragraphs(batch), strict=True)
        own = [(document, text, n) for document, text in split for n, words in enumerate(text.words) if words >= least]
        rows = np.zeros(len(own), PLACE)
        rows["key"] = paragraph_keys([text.pieces[n] for _, text, n in own])
        rows["document"], rows["number"] = [document for document, _, _ in own], [n for _, _, n in own]
        found.append(rows)
    places = np.concatenate(found)
    places = places[np.argsort(places["key"][:, 0], kind="stable")]
    np.save(folder / "places.npy", places)
    # The hashes of each task of the next step lie together.
    tasks = REPEATED.count(context.plan)
    bounds = np.searchsorted(places["key"][:, 0], np.array([(task << 64) // tasks for task in range(1, tasks)], np.uint64))
    np.save(folder / "bounds.npy", np.concatenate(([0], bounds, [len(places)])))


def _documents(context: Context, number: int) -> Iterator[tuple[Sequence[int], list[str]]]:
    """The numbers and the texts of the documents of a task, a batch at a time."""
    plan, books = context.plan, library(context)
    if number >= len(plan.shards):
        before = earlier(context)
        ends = np.cumsum(before.column("bytes"))
        part, size = number - len(plan.shards), int(ends[-1]) if len(ends) else 0
        begin, end = np.searchsorted(ends, [size * part // EARLIER_TASKS, size * (part + 1) // EARLIER_TASKS], side="right").tolist()
        staying: Sequence[int] = range(len(books) + begin, len(books) + end)
        found: Iterator[str] = map(before.text, range(begin, end))
    elif not takes_part(plan.data, plan.data.source[plan.shards[number].source]):
        return
    else:
        own = np.load(context.folder(DIVIDE.name) / SIDES, mmap_mode="r")[books.firsts[number] : books.firsts[number + 1]] != GONE
        staying = (np.flatnonzero(own) + books.firsts[number]).tolist()
        found = (text for text, stays in zip(texts(context.folder(READ.name, number)), own.tolist(), strict=True) if stays)
    yield from _batched(staying, found)


def _places_settings(context: Context, number: int) -> object:
    plan = context.plan
    before = number >= len(plan.shards)
    own = earlier(context).identity if before else takes_part(plan.data, plan.data.source[plan.shards[number].source])
    return [plan.data.dedup.paragraph_words, own]


def _places_needs(plan: Plan, number: int) -> list[Reference]:
    return [(EXACT.name, 0), (DIVIDE.name, 0), *([(READ.name, number)] if number < len(plan.shards) else [])]


PARAGRAPH = Stage(
    "paragraph",
    lambda plan: (len(plan.shards) + EARLIER_TASKS * bool(plan.data.dedup.against)) * plan.data.dedup.paragraphs,
    _places,
    _places_settings,
    _places_needs,
)


def _repeated(context: Context, number: int, folder: Path) -> None:
    """Which of the paragraphs with the task's hashes go, and for which place: all but one of those with enough places.

    A place in an earlier document stays, else one on the training side, then in the source that the recipe names first, then in the longest
    document, then in the one with the lowest key, and in it the first.
    """
    places = _places_of(context, number)
    same = dedup.exact_duplicates(places["key"], ())
    several = np.union1d(np.flatnonzero(same >= 0), same[same >= 0])
    places = places[several]
    stays_for = dedup.exact_duplicates(places["key"], (*_standing(context, places["document"]), places["number"]))
    goes = np.flatnonzero(stays_for >= 0)
    kept = stays_for[goes]
    again = np.zeros(len(goes), AGAIN)
    again["document"], again["number"] = places["document"][goes], places["number"][goes]
    again["kept"], again["kept_number"] = places["document"][kept], places["number"][kept]
    again["places"] = np.bincount(kept, minlength=len(places))[kept] + 1
    again = again[(again["places"] >= context.plan.data.dedup.paragraph_places) & (again["document"] < len(library(context)))]
    again = np.sort(again, order=["document", "number"])
    np.save(folder / "again.npy", again)
    np.save(folder / "bounds.npy", np.searchsorted(again["document"], library(context).firsts))


def _places_of(context: Context, number: int) -> npt.NDArray[np.void]:
    """All paragraphs with the hashes of a task of the step `repeated`."""
    folders = [context.folder(PARAGRAPH.name, task) for task in range(PARAGRAPH.count(context.plan))]
    bounds = [np.load(folder / "bounds.npy")[number : number + 2].tolist() for folder in folders]
    out, filled = np.empty(sum(end - begin for begin, end in bounds), PLACE), 0
    for folder, (begin, end) in zip(folders, bounds, strict=True):
        # One mapped file at a time: each takes a file descriptor.
        out[filled : filled + end - begin] = np.load(folder / "places.npy", mmap_mode="r")[begin:end]
        filled += end - begin
    return out


def _standing(context: Context, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.integer], ...]:
    """By what one of these documents comes before another one, the most important first; shape (documents,) each."""
    books, plan = library(context), context.plan
    known, place = np.unique(numbers, return_inverse=True)
    sides, sources = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
    sizes, keys = np.zeros(len(known), np.int64), np.zeros((len(known), 4), np.uint64)
    every = np.load(context.folder(DIVIDE.name) / SIDES, mmap_mode="r")
    bounds = np.searchsorted(known, books.firsts).tolist()
    for shard, (begin, end) in enumerate(pairwise(bounds)):
        own = known[begin:end]
        rows = np.load(context.folder(SIGN.name, shard) / duplicates.DOCUMENTS, mmap_mode="r")[own - books.firsts[shard]]
        sides[begin:end], sources[begin:end] = every[own], plan.shards[shard].source
        sizes[begin:end], keys[begin:end] = rows["characters"], rows["key"]
    # Earlier ones have the side 0, which no document that stays has, and among them the first comes first.
    return sides[place], sources[place], -sizes[place], *keys[place].byteswap().T, numbers


def _every_place(plan: Plan, number: int) -> list[Reference]:
    return [(EXACT.name, 0), (DIVIDE.name, 0), *((PARAGRAPH.name, task) for task in range(PARAGRAPH.count(plan)))]


def _key_tasks(plan: Plan) -> int:
    """How many tasks the hashes are divided among; it changes nothing in the result."""
    few = len(plan.shards) if not plan.data.dedup.against else KEY_TASKS
    return min(few, KEY_TASKS) * plan.data.dedup.paragraphs


REPEATED = Stage(
    "repeated",
    _key_tasks,
    _repeated,
    lambda context, number: context.plan.data.dedup.paragraph_places,
    _every_place,
)


def _shorten(context: Context, number: int, folder: Path) -> None:
    """The texts of a shard's documents from which paragraphs went, what the index says of them, and which documents go altogether."""
    books, source, least = library(context), _source(context, number), context.plan.data.dedup.paragraph_words
    again = _again_of(context, number)
    counts, altered, dropped = Counts(), list[int](), list[int]()
    (folder / EXCLUDED).touch()
    with TextsWriter(folder) as out:
        changed = np.unique(again["document"]).tolist()
        for numbers, batch in _batched(changed, map(books.text, changed)):
            for document, whole, text in zip(numbers, batch, paragraphs(batch), strict=True):
                own = again[slice(*np.searchsorted(again["document"], [document, document + 1]))]
                goes = set(own["number"].tolist())
                stays = sum(words for n, words in enumerate(text.words) if n not in goes) >= least
                (altered if stays else dropped).append(document)
                if stays:
                    out.add(text.without(goes))
                excluded = list(_explained(context, Document(source, books.label(document), whole), text, own.tolist(), stays))
                counts.drop(excluded)
                write_lines(folder / EXCLUDED, excluded)
    books.close()
    if altered:
        counts.edited["repeated paragraphs removed"] = len(altered)
    counts.save(folder)
    np.save(folder / ALTERED, np.array(altered, np.int64))
    np.save(folder / DROPPED, np.array(dropped, np.int64))
    duplicates.sign(context, folder, folder)


def _again_of(context: Context, shard: int) -> npt.NDArray[np.void]:
    """The paragraphs of a shard that go, by document and number."""
    parts = [np.zeros(0, AGAIN)]
    for task in range(REPEATED.count(context.plan)):
        begin, end = np.load(context.folder(REPEATED.name, task) / "bounds.npy")[shard : shard + 2].tolist()
        if end > begin:
            parts.append(np.load(context.folder(REPEATED.name, task) / "again.npy", mmap_mode="r")[begin:end])
    return np.sort(np.concatenate(parts), order=["document", "number"])


def _batched(numbers: Sequence[int], found: Iterator[str]) -> Iterator[tuple[Sequence[int], list[str]]]:
    """Documents in batches of so many that their texts may be in memory together: their numbers, and their texts."""
    done = 0
    for batch in batches(found, BATCH):
        yield numbers[done : done + len(batch)], batch
        done += len(batch)


def _explained(context: Context, document: Document, text: Paragraphs, again: list[tuple[int, ...]], stays: bool) -> Iterator[Exclusion]:
    """A record for each paragraph that goes, and one for the document if it does not stay."""
    for _, number, kept, kept_number, places in again:
        where = f"paragraph {kept_number + 1} of {address(context, kept)}"
        detail = f"paragraph {number + 1}, {text.words[number]:,} words, as {where}, {places:,} places in all"
        yield Exclusion(document.source, document.id, "edit", EDIT, detail, text.pieces[number][:HEAD])
    if not stays:
        yield exclude(document, STEP, REPEATED_ONLY, f"{len(again):,} of {len(text.pieces):,} paragraphs")


def _source(context: Context, shard: int) -> str:
    return context.plan.data.source[context.plan.shards[shard].source].name


def _shorten_settings(context: Context, number: int) -> object:
    asked = context.plan.data.dedup
    return [_source(context, number), asked.paragraph_words, dedup.SIGNATURE if asked.near else None]


def _shorten_needs(plan: Plan, number: int) -> list[Reference]:
    return [(EXACT.name, 0), (READ.name, number), *((REPEATED.name, task) for task in range(REPEATED.count(plan)))]


SHORTEN = Stage("shorten", lambda plan: len(plan.shards) * plan.data.dedup.paragraphs, _shorten, _shorten_settings, _shorten_needs)


def _settle(context: Context, number: int, folder: Path) -> None:
    """The sides of the documents, without those that went with their paragraphs and those that became equal to another one."""
    books = library(context)
    before = np.load(context.folder(DIVIDE.name) / SIDES)
    after = before.copy()
    for shard in range(len(context.plan.shards)):
        after[np.load(context.folder(SHORTEN.name, shard) / DROPPED)] = GONE
    equal = _equal_now(context, after)
    after[equal["document"]] = GONE
    problems = []
    for source, spec in enumerate(context.plan.data.source):
        own = context.plan.shards_of(source)
        span = slice(books.firsts[own[0]], books.firsts[own[-1] + 1])
        for side, name in SIDE_NAMES.items():
            count = int((before[span] == side).sum())
            if count and side not in after[span]:
                first = books.label(books.firsts[own[0]] + int(np.argmax(before[span] == side)))
                got = f"source {spec.name}: the side {name}, documents: {count:,}, holds only paragraphs that stand elsewhere, too"
                fix = "Leave the source out of data.dedup.paragraph_sources, or hold out more or nothing"
                problems.append(Problem("data.empty", got, f"for example {first}", fix, Where(key="data.dedup.paragraphs")))
    if problems:
        raise PreheatError(*problems)
    np.save(folder / SIDES, after)
    np.save(folder / EQUAL_NOW, equal)


def _equal_now(context: Context, sides: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Documents that have the same text now, and for which one each goes; as for paragraphs, one on the training side stays first."""
    plan, books, before = context.plan, library(context), earlier(context)
    keys, sizes = duplicates.documents(context, "key", before), duplicates.documents(context, "characters", before).view(np.int64)
    for shard in range(len(plan.shards)):
        altered = np.load(context.folder(SHORTEN.name, shard) / ALTERED)
        rows = np.load(context.folder(SHORTEN.name, shard) / duplicates.DOCUMENTS)
        keys[altered], sizes[altered] = rows["key"], rows["characters"]
    sources = np.repeat(np.array([*(shard.source for shard in plan.shards), -1], np.int32), [*books.counts, len(before)])
    own = len(books)
    staying = np.concatenate((np.flatnonzero(sides != GONE), np.arange(own, own + len(before))))
    # Earlier ones have the side 0, which no document that stays has.
    ranks = (np.concatenate((sides, np.zeros(len(before), np.uint8))), sources, -sizes)
    stays_for = dedup.exact_duplicates(keys[staying], tuple(rank[staying] for rank in ranks))
    goes = np.flatnonzero((stays_for >= 0) & (staying < own))
    out = np.zeros(len(goes), PAIR)
    out["document"], out["kept"] = staying[goes], staying[stays_for[goes]]
    return out


def _settle_needs(plan: Plan, number: int) -> list[Reference]:
    return [(EXACT.name, 0), (DIVIDE.name, 0), *((SHORTEN.name, shard) for shard in range(len(plan.shards)))]


SETTLE = Stage("settle", lambda plan: 1 * plan.data.dedup.paragraphs, _settle, lambda context, number: None, _settle_needs)


def settled(plan: Plan, shards: Sequence[int]) -> list[Reference]:
    """What a step needs that asks which documents stay, on which side, and those of some shards with which text."""
    asked = plan.data.dedup.paragraphs
    return [(DIVIDE.name, 0), *((SHORTEN.name, shard) for shard in shards if asked), *([(SETTLE.name, 0)] if asked else [])]


def sides(context: Context) -> npt.NDArray[np.uint8]:
    """For each document whether it goes, is trained on or is held out, now that all is known."""
    stage = SETTLE if context.plan.data.dedup.paragraphs else DIVIDE
    out: npt.NDArray[np.uint8] = np.load(context.folder(stage.name) / SIDES, mmap_mode="r")
    return out


def remaining_texts(context: Context, shard: int) -> Iterator[str]:
    """The texts of a shard, in order, without the paragraphs that went; one that went altogether is whole."""
    found = texts(context.folder(READ.name, shard))
    if not context.plan.data.dedup.paragraphs:
        return found
    short = context.folder(SHORTEN.name, shard)
    altered = zip((np.load(short / ALTERED) - library(context).firsts[shard]).tolist(), texts(short), strict=True)
    return _replaced(found, altered)


def _replaced(found: Iterator[str], altered: Iterator[tuple[int, str]]) -> Iterator[str]:
    following = next(altered, None)
    for number, text in enumerate(found):
        if following is not None and following[0] == number:
            yield following[1]
            following = next(altered, None)
        else:
            yield text


def known(context: Context, shard: int, name: str, own: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """What a file of the step `sign` says of some documents of a shard, the last axis; of those that lost paragraphs as they are now."""
    out: npt.NDArray[Any] = np.load(context.folder(SIGN.name, shard) / name, mmap_mode="r")[..., own]
    if context.plan.data.dedup.paragraphs:
        short, numbers = context.folder(SHORTEN.name, shard), own + library(context).firsts[shard]
        altered = np.load(short / ALTERED, mmap_mode="r")
        place = np.searchsorted(altered, numbers)
        now = np.flatnonzero(place < len(altered))
        now = now[altered[place[now]] == numbers[now]]
        out[..., now] = np.load(short / name, mmap_mode="r")[..., place[now]]
    return out


def equal_now(context: Context, begin: int, end: int) -> npt.NDArray[np.void]:
    """The documents of the numbers `begin..end` that became equal to another one, as rows of `PAIR` by number."""
    if not context.plan.data.dedup.paragraphs:
        return np.zeros(0, PAIR)
    found: npt.NDArray[np.void] = np.load(context.folder(SETTLE.name) / EQUAL_NOW, mmap_mode="r")
    return found[slice(*np.searchsorted(found["document"], [begin, end]))]


class Remaining:
    """The texts of the documents that stay, without the paragraphs that went."""

    def __init__(self, context: Context) -> None:
        self._books = library(context)
        folders = [context.folder(SHORTEN.name, shard) for shard in range(SHORTEN.count(context.plan))]
        self._short = Library(folders)
        self._numbers = np.concatenate([np.zeros(0, np.int64), *(np.load(folder / ALTERED) for folder in folders)])

    def text(self, number: int) -> str:
        """The text of a document."""
        place = int(np.searchsorted(self._numbers, number))
        if place < len(self._numbers) and self._numbers[place] == number:
            return self._short.text(place)
        return self._books.text(number)

    def close(self) -> None:
        """Close the files."""
        self._books.close()
        self._short.close()
