"""From sources to a prepared folder: read, clean, deduplicate, split, tokenize, write. The folder is there whole or not at all.

The bytes depend only on the configuration and the texts. Work that was interrupted goes on where it was: see `preheat.data.pipeline`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from preheat import recipe
from preheat.data import indexed, tasks
from preheat.data.clean import STEP_NAMES
from preheat.data.manifest import FILE_NAME, SCHEMA, FileEntry, Funnel, Inputs, Manifest, PreparedSource, Split
from preheat.data.pipeline import Backend, Context, Plan, divided, local_backend, perform_all, shard_size
from preheat.data.pipeline.index import against, index_of
from preheat.data.pipeline.learning import TOKENIZER, tokenizer_content
from preheat.data.pipeline.paragraphs import refuse_sources
from preheat.data.pipeline.plan import RULES_VERSION
from preheat.data.pipeline.reading import CHECK, READ, Counts, benchmarks
from preheat.data.pipeline.run import Bar, Progress
from preheat.data.pipeline.tasks import entries
from preheat.data.pipeline.writing import DOCUMENTS, ENCODE, EXCLUSIONS, LIST, MERGE
from preheat.data.sources import File, resolve, split_file
from preheat.data.tokenizer import Tokenizer
from preheat.data.workspace import CONTENT, made_work_folder, work_folder, workspace
from preheat.errors import PreheatError, Problem, RunFailed, refuse

STEPS = ("read", *STEP_NAMES, "duplicate", "near-duplicate", "paragraph")
"""Where a document can go, in this order."""


def prepare(
    data: recipe.Data,
    tokenizer: recipe.Tokenizer,
    vocab_size: int,
    *,
    folder: Path,
    out: Path,
    progress: Progress,
    task_globs: Sequence[str] = (),
    workers: int | None = None,
    backend: Backend | None = None,
    bar: Bar | None = None,
) -> Manifest:
    """Prepare `data` in the folder `out`, or find it prepared there; relative paths start at `folder`.

    Prepared data is found by its configuration and by the names and sizes of the sources' files, without reading them. The work is done by
    `backend`, or by processes of this machine: `workers`, or one a core. `task_globs`, the recipe's `evaluation.tasks`, name what is kept
    out of the text. `bar`, if there is one, shows how far each step is.

    Raises:
        PreheatError: a source is missing, empty or unreadable, the tokenizer does not fit, or `out` holds something else.
        RunFailed: the disk is full or a worker died. Prepared again, the work goes on where it was.
    """
    refuse_names(data)
    refuse_tokens(data)
    refuse_sources(data)
    found = existing(data, tokenizer, vocab_size, folder, out, progress, task_globs)
    if found is not None:
        return found
    start = time.perf_counter()
    files = [resolve(source, folder) for source in data.source]
    before, kept_out = against(data.dedup, folder), tasks.checksums(tasks.kept_out(data, task_globs, folder))
    try:
        with workspace(out) as work:
            context = Context(work, _plan(data, tokenizer, vocab_size, folder, files, task_globs))
            context.plan.save(work)
            chosen = backend or local_backend(context.plan, workers)
            size = sum(file.size for own in files for file in own)
            what = f"{len(files)} sources, {sum(map(len, files)):,} files, {size / 1e6:.1f} MB in {len(context.plan.shards):,} shards"
            progress(f"preparing {what}; {chosen.description}")
            _tell_kept_out(context, kept_out, progress)
            try:
                perform_all(context, chosen, progress, bar)
            finally:
                chosen.close()
            _finish(context, files, before, kept_out, progress)
    except BrokenPipeError:
        raise  # Whoever read what we print is gone: no fault of the disk.
    except OSError as error:
        got = f"the prepared data cannot be written: {error.strerror or error}"
        raise RunFailed(Problem("data.write", got, "", "Make room, and prepare again: what is done stays done")) from error
    progress(f"prepared in {time.perf_counter() - start:.1f} s")
    return Manifest.load(out)


def planned(
    data: recipe.Data, tokenizer: recipe.Tokenizer, vocab_size: int, *, folder: Path, out: Path, task_globs: Sequence[str] = ()
) -> Context:
    """The plan of a preparation that other machines will work on, in the work folder of `out`.

    Raises:
        PreheatError: a source or a task is missing, `out` exists, or nothing can be made there.
    """
    refuse_names(data)
    refuse_tokens(data)
    refuse_sources(data)
    if out.exists():
        refuse("data.out", "the folder exists", "there is nothing left to plan", "Choose another folder, or delete this one", file=out)
    against(data.dedup, folder)
    tasks.kept_out(data, task_globs, folder)
    files = [resolve(source, folder) for source in data.source]
    context = Context(made_work_folder(out), _plan(data, tokenizer, vocab_size, folder, files, task_globs))
    context.plan.save(context.work)
    return context


def configuration(data: recipe.Data, tokenizer: recipe.Tokenizer, vocab_size: int) -> str:
    """A hash of everything but the texts."""
    asked = {"data": data.model_dump(mode="json"), "tokenizer": tokenizer.model_dump(mode="json"), "vocab_size": vocab_size}
    return recipe.fingerprint({"rules": RULES_VERSION, **asked})


def listing(data: recipe.Data, tokenizer: recipe.Tokenizer, folder: Path, files: Sequence[Sequence[File]]) -> str:
    """A hash of names and sizes of the inputs, and of the content of a tokenizer file."""
    rows: list[list[object]] = [[s.name, f.id, f.size] for s, own in zip(data.source, files, strict=True) for f in own]
    content = tokenizer_content(tokenizer, folder)
    return recipe.fingerprint({"rows": [*rows, ["tokenizer", content]] if content else rows})


def _plan(
    data: recipe.Data,
    tokenizer: recipe.Tokenizer,
    vocab_size: int,
    folder: Path,
    files: Sequence[Sequence[File]],
    task_globs: Sequence[str],
) -> Plan:
    """The plan, with files that are larger than a shard in parts where their format allows that."""
    largest = shard_size(files)
    parts = [[part for file in own for part in split_file(spec, file, largest)] for spec, own in zip(data.source, files, strict=True)]
    return Plan(data, tokenizer, vocab_size, str(folder.absolute()), divided(parts, largest), tuple(task_globs))


def refuse_names(data: recipe.Data) -> None:
    """Refuse data without sources, and names that differ in nothing but case."""
    if not data.source:
        refuse("data.source", "the recipe names no source of text", "", "Add a [[data.source]]", key="data.source")
    for name, count in Counter(source.name.casefold() for source in data.source).items():
        if count > 1:
            got = f"{count} sources are called {name!r}"
            refuse("data.source", got, "names differ, also in lower case", "Rename one", key="data.source.name")


def refuse_tokens(data: recipe.Data) -> None:
    """Refuse sources that hold token ids: there is nothing to prepare in them."""
    ready = [source.name for source in data.source if source.format == "tokens"]
    if ready:
        got = f"the sources {', '.join(ready)} are token ids"
        refuse("data.source", got, "only text is prepared", "Import them: preheat data import RECIPE", key="data.source.format")


def existing(
    data: recipe.Data,
    tokenizer: recipe.Tokenizer,
    vocab_size: int,
    folder: Path,
    out: Path,
    progress: Progress,
    task_globs: Sequence[str] = (),
) -> Manifest | None:
    """What `out` holds, if it is what we were about to make; None if there is nothing."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / FILE_NAME).is_file():
        refuse("data.out", "this exists and is no prepared data", "", "Choose another folder", file=out)
    manifest = Manifest.load(out)
    fix = "Choose another folder, or delete this one"
    if manifest.configuration != configuration(data, tokenizer, vocab_size):
        want = "`data`, `tokenizer` and `model.vocab_size` were different then"
        refuse("data.out", "the folder holds data prepared by another configuration", want, fix, file=out)
    kept_out = tasks.checksums(tasks.kept_out(data, task_globs, folder))
    try:
        files = [resolve(source, folder) for source in data.source]
        before = {name: Manifest.load(folder / name).fingerprint for name in data.dedup.against}
    except PreheatError as error:
        progress(f"using the prepared data in {out}; what it was made from is no longer there ({error.problems[0].got})")
        return manifest
    if listing(data, tokenizer, folder, files) != manifest.inputs.listing:
        got = f"the sources have changed ({sum(map(len, files)):,} files now)"
        refuse("data.changed", got, f"they had {manifest.inputs.files:,} files, or other sizes, when prepared", fix, file=out)
    for name, fingerprint in before.items():
        if fingerprint != manifest.inputs.against[name]:
            want = f"its fingerprint was {manifest.inputs.against[name][:12]} when this was prepared"
            refuse("data.changed", f"{name} holds other data now ({fingerprint[:12]})", want, fix, key="data.dedup.against", file=out)
    changed = tasks.changes(manifest.inputs.tasks, kept_out, fix)
    if changed:
        raise PreheatError(*changed)
    progress(f"using the prepared data in {out}")
    shutil.rmtree(work_folder(out), ignore_errors=True)  # It is there if we were killed at the very end.
    return manifest


def _tell_kept_out(context: Context, files: Mapping[str, str], progress: Progress) -> None:
    """Say what is kept out of the text, and what of it is too short to be looked for."""
    found = benchmarks(context)
    if found is not None:
        few = f"; records that are not looked for, without {found.shortest} words in a row: {found.too_short:,}" if found.too_short else ""
        what = f"{found.size:,} runs of up to {found.ngram} words of {len(found.places):,} records in {', '.join(files)}"
        progress(f"keeping out evaluation text: {what}{few}")


def _finish(
    context: Context, files: Sequence[Sequence[File]], before: Mapping[str, str], kept_out: Mapping[str, str], progress: Progress
) -> None:
    """Put the outputs together in the content folder, with a manifest."""
    plan, content = context.plan, context.work / CONTENT
    fix = "Prepare again when it rests: what is done stays done"
    changed = tasks.changes(kept_out, tasks.checksums(tasks.kept_out(plan.data, plan.tasks, Path(plan.folder))), fix)
    if changed:
        raise RunFailed(*changed)
    outputs = [(TOKENIZER.name, 0), (LIST.name, 0), *((MERGE.name, task) for task in range(MERGE.count(plan)))]
    found: dict[str, FileEntry] = {}
    sizes: dict[tuple[str, str], tuple[int, int, int]] = _sizes(context.folder(LIST.name) / DOCUMENTS)
    for stage, number in outputs:
        for name, entry in entries(context, stage, number).items():
            if stage == MERGE.name and name == DOCUMENTS:
                continue
            found[name] = FileEntry(int(entry["size"]), str(entry["sha256"]))
            shutil.move(context.folder(stage, number) / name, content / name)
    built = Tokenizer.load(content)
    prepared = tuple(_source(context, number, sizes) for number in range(len(plan.data.source)))
    for entry_of in prepared:
        progress(f"{entry_of.name}: {entry_of.funnel}")
        progress(f"{entry_of.name}: {_tokens(entry_of.train)} to train on, {_tokens(entry_of.held_out)} held out")
    digests = [digest for shard in range(len(plan.shards)) for digest in Counts.load([context.folder(READ.name, shard)]).digests]
    asked = configuration(plan.data, plan.tokenizer, plan.vocab_size)
    identity = {"configuration": asked, "files": {name: found[name].sha256 for name in sorted(found)}}
    identity |= {"tasks": kept_out} if kept_out else {}
    Manifest(
        schema=SCHEMA,
        configuration=asked,
        fingerprint=recipe.fingerprint(identity),
        inputs=Inputs(
            sum(map(len, files)),
            sum(file.size for own in files for file in own),
            listing(plan.data, plan.tokenizer, Path(plan.folder), files),
            hashlib.sha256("\n".join(digests).encode()).hexdigest(),
            before,
            kept_out,
        ),
        tokenizer=built.used(plan.tokenizer.kind),
        dtype=str(indexed.dtype_for(built.vocab_size)),
        sources=prepared,
        files={name: found[name] for name in sorted(found)},
        index=index_of(plan.data.dedup),
    ).save(content)


def _sizes(path: Path) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(source, split) -> documents, tokens and bytes."""
    out: dict[tuple[str, str], tuple[int, int, int]] = {}
    with path.open(encoding="utf-8") as stream:
        for row in map(json.loads, stream):
            documents, tokens, size = out.get((row["source"], row["split"]), (0, 0, 0))
            out[row["source"], row["split"]] = documents + 1, tokens + row["tokens"], size + row["bytes"]
    return out


def _source(context: Context, number: int, sizes: dict[tuple[str, str], tuple[int, int, int]]) -> PreparedSource:
    """What became of a source."""
    spec = context.plan.data.source[number]
    counts = Counts.load([context.folder(CHECK.name, number), *(context.folder(ENCODE.name, n) for n in context.plan.shards_of(number))])
    sides = []
    for task, side in enumerate(("train", "held_out"), start=2 * number):
        name = f"{spec.name}_{side}"
        files = sorted(file.removesuffix(".idx") for file in entries(context, MERGE.name, task) if file.endswith(".idx"))
        sides.append(Split(name, *sizes.get((spec.name, side), (0, 0, 0)), () if files == [name] else tuple(files)))
    funnel = Funnel(
        documents=counts.documents,
        bytes=counts.bytes,
        repaired=dict(sorted(counts.repaired.items())),
        edited=dict(sorted(counts.edited.items())),
        dropped={step: dict(sorted(counts.dropped[step].items())) for step in STEPS if counts.dropped.get(step)},
        kept=counts.documents - sum(reasons.total() for reasons in counts.dropped.values()),
    )
    return PreparedSource(spec.name, spec.licence, spec.format, spec.policy, funnel, *sides)


def _tokens(side: Split) -> str:
    return f"{side.documents:,} document{'s' * (side.documents != 1)}, {side.tokens:,} tokens"


__all__ = ["DOCUMENTS", "EXCLUSIONS", "configuration", "prepare"]
