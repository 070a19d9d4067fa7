"""From sources to a prepared folder: read, clean, deduplicate, split, tokenize, write. All or nothing.

The bytes depend only on the configuration and the texts. The texts of all sources are held in memory.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from preheat import recipe
from preheat.data import dedup, indexed, split
from preheat.data import tokenizer as tokenizers
from preheat.data.gather import Gathered, gather
from preheat.data.manifest import FILE_NAME, SCHEMA, Funnel, Inputs, Manifest, PreparedSource, Split, TokenizerUsed, entry_of
from preheat.data.sources import Document, Exclusion, File, exclude, resolve
from preheat.data.tokenizer import Tokenizer
from preheat.data.workspace import workspace
from preheat.errors import PreheatError, Problem, RunFailed, refuse

RULES_VERSION = 1
"""Counts up when the same configuration and texts would give other bytes than before."""
EXCLUSIONS, DOCUMENTS = "exclusions.jsonl", "documents.jsonl"
STEPS = ("read", "clean", "duplicate", "near-duplicate")
"""Where a document can go, in this order."""
MAX_UNREADABLE = 0.5
"""A source of records with more unreadable ones than this has the wrong format or `text_field`."""

Progress = Callable[[str], None]


@dataclass
class _Source:
    """A source on its way: what was gathered, what went, and the numbers of the documents on each side."""

    spec: recipe.Source
    gathered: Gathered
    excluded: list[Exclusion]
    train: list[int]
    held_out: list[int]


@dataclass(frozen=True)
class _Job:
    """What is asked for."""

    data: recipe.Data
    tokenizer: recipe.Tokenizer
    vocab_size: int
    folder: Path
    progress: Progress

    def configuration(self) -> str:
        """A hash of everything but the texts."""
        asked = {
            "data": self.data.model_dump(mode="json"),
            "tokenizer": self.tokenizer.model_dump(mode="json"),
            "vocab_size": self.vocab_size,
        }
        return recipe.fingerprint({"rules": RULES_VERSION, **asked})

    def files(self) -> list[list[File]]:
        """The files of each source."""
        return [resolve(source, self.folder) for source in self.data.source]

    def listing(self, files: Sequence[Sequence[File]]) -> str:
        """A hash of names and sizes of the inputs, and of the content of a tokenizer file."""
        rows: list[list[object]] = [[s.name, f.id, f.size] for s, own in zip(self.data.source, files, strict=True) for f in own]
        if self.tokenizer.kind == "file" and self.tokenizer.path is not None and (self.folder / self.tokenizer.path).is_file():
            rows.append(["tokenizer", entry_of(self.folder / self.tokenizer.path).sha256])
        return recipe.fingerprint({"rows": rows})


def prepare(data: recipe.Data, tokenizer: recipe.Tokenizer, vocab_size: int, *, folder: Path, out: Path, progress: Progress) -> Manifest:
    """Prepare `data` in the folder `out`, or find it prepared there; relative paths start at `folder`.

    Prepared data is found by its configuration and by the names and sizes of the sources' files, without reading them.

    Raises:
        PreheatError: a source is missing, empty or unreadable, the tokenizer does not fit, or `out` holds something else.
        RunFailed: the disk is full or a worker died. Nothing is left behind.
    """
    _check(data)
    job = _Job(data, tokenizer, vocab_size, folder, progress)
    found = _existing(job, out)
    if found is not None:
        return found
    start = time.perf_counter()
    files = job.files()
    try:
        with workspace(out) as work:
            _build(job, files, work)
    except OSError as error:
        got = f"the prepared data cannot be written: {error.strerror or error}"
        raise RunFailed(Problem("data.write", got, "", "Make room or choose another folder")) from error
    progress(f"prepared in {time.perf_counter() - start:.1f} s")
    return Manifest.load(out)


def _check(data: recipe.Data) -> None:
    if not data.source:
        refuse("data.source", "the recipe names no source of text", "", "Add a [[data.source]]", key="data.source")
    for name, count in Counter(source.name.casefold() for source in data.source).items():
        if count > 1:
            refuse(
                "data.source",
                f"{count} sources are called {name!r}",
                "names differ, also in lower case",
                "Rename one",
                key="data.source.name",
            )


def _existing(job: _Job, out: Path) -> Manifest | None:
    """What `out` holds, if it is what we were about to make; None if there is nothing."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / FILE_NAME).is_file():
        refuse("data.out", "this exists and is no prepared data", "", "Choose another folder", file=out)
    manifest = Manifest.load(out)
    fix = "Choose another folder, or delete this one"
    if manifest.configuration != job.configuration():
        want = "`data`, `tokenizer` and `model.vocab_size` were different then"
        refuse("data.out", "the folder holds data prepared by another configuration", want, fix, file=out)
    try:
        files = job.files()
    except PreheatError as error:
        job.progress(f"using the prepared data in {out}; its sources are no longer there ({error.problems[0].got})")
        return manifest
    if job.listing(files) != manifest.inputs.listing:
        got = f"the sources have changed ({sum(map(len, files)):,} files now)"
        refuse("data.changed", got, f"they had {manifest.inputs.files:,} files, or other sizes, when prepared", fix, file=out)
    job.progress(f"using the prepared data in {out}")
    return manifest


def _build(job: _Job, files: Sequence[Sequence[File]], work: Path) -> None:
    """Fill the work folder."""
    data, progress, lap = job.data, job.progress, _Lap()
    gathered = gather(data, files, progress)
    progress(f"read and cleaned {sum(part.reading.bytes for part in gathered) / 1e6:.1f} MB in {lap()}")
    excluded = _duplicates(data, gathered)
    progress(f"deduplicated {sum(len(part.documents) for part in gathered):,} documents in {lap()}")
    survivors = [_divided(spec, part, gone, data) for spec, part, gone in zip(data.source, gathered, excluded, strict=True)]
    for source in survivors:
        progress(f"{source.spec.name}: {_funnel(source)}")
    built = tokenizers.build(job.tokenizer, job.vocab_size, folder=job.folder, texts=_to_learn_from(survivors))
    (work / tokenizers.FILE_NAME).write_text(built.content, "utf-8")
    progress(f"tokenizer: {job.tokenizer.kind}, {built.vocab_size:,} entries, in {lap()}")
    prepared = tuple(_written(source, built, work) for source in survivors)
    for entry in prepared:
        progress(f"{entry.name}: {_tokens(entry.train)} to train on, {_tokens(entry.held_out)} held out")
    progress(f"tokenized in {lap()}")
    with (work / EXCLUSIONS).open("w", encoding="utf-8") as stream:
        for source in survivors:
            stream.writelines(json.dumps(asdict(exclusion), ensure_ascii=False) + "\n" for exclusion in source.excluded)
    digest = hashlib.sha256("\n".join(file for part in gathered for file in part.digests).encode()).hexdigest()
    size = sum(file.size for own in files for file in own)
    entries = {path.name: entry_of(path) for path in sorted(work.iterdir())}
    identity = {"configuration": job.configuration(), "files": {name: entry.sha256 for name, entry in entries.items()}}
    Manifest(
        schema=SCHEMA,
        configuration=job.configuration(),
        fingerprint=recipe.fingerprint(identity),
        inputs=Inputs(sum(map(len, files)), size, job.listing(files), digest),
        tokenizer=TokenizerUsed(job.tokenizer.kind, tokenizers.FILE_NAME, built.vocab_size, built.eod, built.fingerprint),
        dtype=str(indexed.dtype_for(built.vocab_size)),
        sources=prepared,
        files=entries,
    ).save(work)


def _to_learn_from(survivors: Sequence[_Source]) -> Iterator[str]:
    """Training documents for a tokenizer, in an order that mixes the sources evenly and does not depend on file names."""
    pool = [(source.gathered.keys[number], source.gathered.documents[number].text) for source in survivors for number in source.train]
    return (text for _, text in sorted(pool))


class _Lap:
    """Seconds since the last call."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def __call__(self) -> str:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return f"{seconds:.1f} s"


def _duplicates(data: recipe.Data, gathered: Sequence[Gathered]) -> list[dict[int, Exclusion]]:
    """For each source: number of a duplicate among its documents -> its exclusion.

    Of documents with the same text the one in the source that the recipe names first stays, then the longest, then the lowest id.
    """
    documents = [(number, index, document) for number, part in enumerate(gathered) for index, document in enumerate(part.documents)]
    keys = [key for part in gathered for key in part.keys]
    ranks = [(number, -len(document.text), document.id) for number, _, document in documents]
    out: list[dict[int, Exclusion]] = [{} for _ in gathered]
    exact = dedup.exact_duplicates(keys, ranks)
    for position, kept in exact.items():
        number, index, document = documents[position]
        out[number][index] = exclude(document, "duplicate", "same text", f"as {_address(documents[kept][2])}")
    if data.dedup.near:
        left = [position for position in range(len(documents)) if position not in exact]
        bands = np.concatenate([block for part in gathered for block in part.bands])[left]
        texts = [documents[position][2].text for position in left]
        for place, match in dedup.near_duplicates(texts, [keys[position] for position in left], bands, data.dedup.jaccard).items():
            number, index, document = documents[left[place]]
            kept_document = documents[left[match.kept]][2]
            out[number][index] = exclude(
                document, "near-duplicate", "similar text", f"to {_address(kept_document)}, Jaccard {match.similarity:.2f}"
            )
    return out


def _address(document: Document) -> str:
    return f"{document.source}: {document.id}"


def _divided(spec: recipe.Source, gathered: Gathered, gone: dict[int, Exclusion], data: recipe.Data) -> _Source:
    """A source without its duplicates, divided into training and held-out documents.

    Raises:
        PreheatError: nothing is left, or most records cannot be read.
    """
    left = [number for number in range(len(gathered.documents)) if number not in gone]
    excluded = gathered.reading.excluded + [gone[number] for number in sorted(gone)]
    source = _Source(spec, gathered, excluded, [], [])
    unreadable = sum(e.step == "read" and e.reason != "empty" for e in excluded)
    if spec.format == "jsonl" and unreadable > MAX_UNREADABLE * gathered.reading.documents:
        reason, count = Counter(e.reason for e in excluded if e.step == "read").most_common(1)[0]
        got = f"source {spec.name}: {unreadable:,} of {gathered.reading.documents:,} records cannot be read ({count:,}: {reason})"
        refuse("data.unreadable", got, f"at most {MAX_UNREADABLE:.0%}", "Correct `format` or `text_field`", key="data.source")
    if not left:
        funnel = _funnel(source)
        refuse(
            "data.empty", f"source {spec.name}: nothing is left; {funnel}", "", "Correct its paths, `format` or `policy`", key="data.source"
        )
    held = split.held_out(spec.name, [gathered.keys[number] for number in left], data.held_out)
    for position, number in enumerate(left):
        (source.held_out if position in held else source.train).append(number)
    return source


def _funnel(source: _Source) -> Funnel:
    dropped: dict[str, Counter[str]] = defaultdict(Counter)
    for exclusion in source.excluded:
        dropped[exclusion.step][exclusion.reason] += 1
    reading = source.gathered.reading
    return Funnel(
        documents=reading.documents,
        bytes=reading.bytes,
        repaired=dict(sorted(reading.repaired.items())),
        edited=dict(sorted(source.gathered.edited.items())),
        dropped={step: dict(sorted(dropped[step].items())) for step in STEPS if step in dropped},
        kept=reading.documents - len(source.excluded),
    )


def _written(source: _Source, built: Tokenizer, work: Path) -> PreparedSource:
    """Tokenize and write both sides of a source."""
    spec = source.spec
    return PreparedSource(
        name=spec.name,
        licence=spec.licence,
        format=spec.format,
        policy=spec.policy,
        funnel=_funnel(source),
        train=_write_side(spec.name, "train", [source.gathered.documents[n] for n in source.train], built, work),
        held_out=_write_side(spec.name, "held_out", [source.gathered.documents[n] for n in source.held_out], built, work),
    )


def _write_side(name: str, side: str, documents: Sequence[Document], built: Tokenizer, work: Path) -> Split:
    """Write `NAME_SIDE.bin` and `.idx`, and a line a document into `documents.jsonl`."""
    prefix = f"{name}_{side}"
    encoded = [np.append(ids, np.uint32(built.eod)) for ids in built.encode_batch([document.text for document in documents])]
    indexed.write(work / prefix, encoded, indexed.dtype_for(built.vocab_size))
    sizes = [len(document.text.encode()) for document in documents]
    with (work / DOCUMENTS).open("a", encoding="utf-8") as stream:
        for document, ids, size in zip(documents, encoded, sizes, strict=True):
            row = {"source": name, "split": side, "id": document.id, "bytes": size, "tokens": len(ids)}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return Split(prefix, len(documents), sum(map(len, encoded)), sum(sizes))


def _tokens(side: Split) -> str:
    return f"{side.documents:,} documents, {side.tokens:,} tokens"
