"""The first step: read the files of a shard and clean their documents."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from preheat.data import tasks
from preheat.data.clean import Benchmarks, Cleaner
from preheat.data.pipeline.tasks import Context, Stage
from preheat.data.pipeline.texts import LabelsWriter, TextsWriter
from preheat.data.sources import Exclusion, File, Reading, open_file, read_file, refuse_unreadable
from preheat.errors import Problem, RunFailed, Where, refuse

COUNTS, EXCLUDED = "counts.json", "excluded.jsonl"
AT_ONCE = 1000
"""Exclusions in memory at a time."""


@dataclass
class Counts:
    """What happened to the documents of a shard, or of several."""

    documents: int = 0
    bytes: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    edited: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    """SHA-256 of each file."""

    def save(self, folder: Path) -> None:
        """Write `counts.json`."""
        (folder / COUNTS).write_text(json.dumps(vars(self)), "utf-8")

    @classmethod
    def load(cls, folders: Iterable[Path]) -> Counts:
        """The sum of what happened in several shards."""
        out = cls()
        for folder in folders:
            part: dict[str, Any] = json.loads((folder / COUNTS).read_bytes())
            out.documents += part["documents"]
            out.bytes += part["bytes"]
            for name in ("repaired", "edited", "unreadable"):
                getattr(out, name).update(part[name])
            for step, reasons in part["dropped"].items():
                out.dropped.setdefault(step, Counter()).update(reasons)
            out.digests += part["digests"]
        return out

    def drop(self, exclusions: Iterable[Exclusion]) -> None:
        """Count documents that went; the record of an edit is none."""
        for exclusion in exclusions:
            if exclusion.step != "edit":
                self.dropped.setdefault(exclusion.step, Counter())[exclusion.reason] += exclusion.count


def write_lines(path: Path, rows: Iterable[Exclusion]) -> None:
    """Append records to a JSONL file."""
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)


def _run(context: Context, number: int, folder: Path) -> None:
    """Texts that cleaning let through, their labels, the exclusions, the counts."""
    shard = context.plan.shards[number]
    source = context.plan.data.source[shard.source]
    cleaner, counts = _cleaner(context, shard.source), Counts()
    (folder / EXCLUDED).touch()
    with TextsWriter(folder) as texts, LabelsWriter(folder) as labels:
        for file in shard.files:
            reading = Reading()
            for document in read_file(source, file, reading):
                cleaned = cleaner(document)
                counts.edited.update(edit.reason for edit in cleaned.altered)
                reading.excluded += cleaned.altered
                if cleaned.exclusion is not None:
                    reading.excluded.append(cleaned.exclusion)
                if cleaned.document is not None:
                    texts.add(cleaned.document.text)
                    labels.add(document.id)
                if len(reading.excluded) >= AT_ONCE:
                    _write_excluded(reading, counts, folder)
            counts.documents += reading.documents
            counts.bytes += reading.bytes
            counts.repaired += reading.repaired
            counts.unreadable += reading.unreadable
            _write_excluded(reading, counts, folder)
            if file.start == 0:
                counts.digests.append(_digest(file))
            _refuse_changed(file)
    counts.save(folder)


def _write_excluded(reading: Reading, counts: Counts, folder: Path) -> None:
    """Count and write the exclusions that there are, and forget them."""
    counts.drop(reading.excluded)
    write_lines(folder / EXCLUDED, reading.excluded)
    reading.excluded.clear()


def _cleaner(context: Context, source: int) -> Cleaner:
    return context.once(("cleaner", source), lambda: Cleaner(context.plan.data.source[source], benchmarks(context)))


def benchmarks(context: Context) -> Benchmarks | None:
    """What is kept out of all sources, or None if that is nothing."""
    plan = context.plan

    def read() -> Benchmarks | None:
        files = tasks.kept_out(plan.data, plan.tasks, Path(plan.folder))
        return Benchmarks(files, plan.data.decontaminate.ngram) if files else None

    return context.once("benchmarks", read)


def _refuse_changed(file: File) -> None:
    """Refuse a file that is not what it was when the work was planned: half of it may be of the one kind and half of the other."""
    if file.changed is None:
        return
    path = Path(file.path)
    if not path.exists() or path.stat().st_mtime_ns != file.changed:
        fix = "Prepare again when it rests: what is done stays done"
        raise RunFailed(Problem("data.changed", "the file changed while the data was prepared", "", fix, Where(file.path)))


def _digest(file: File) -> str:
    try:
        with open_file(file) as stream:
            return hashlib.file_digest(cast(io.BufferedIOBase, stream), "sha256").hexdigest()
    except OSError:
        return ""  # Reading it has told.


def _settings(context: Context, number: int) -> object:
    """What a shard's texts depend on: its source as the recipe has it, and the files, down to the time of their last change."""
    shard = context.plan.shards[number]
    source = context.plan.data.source[shard.source].model_dump(mode="json", exclude={"paths", "exclude", "licence", "max_unreadable"})
    return [source, _cleaner(context, shard.source).fingerprint, [list(asdict(file).values()) for file in shard.files]]


READ = Stage("read", lambda plan: len(plan.shards), _run, _settings, lambda plan, number: [])


def _check(context: Context, number: int, folder: Path) -> None:
    """Refuse a source that could hardly be read, and one of which nothing is left."""
    plan = context.plan
    source = plan.data.source[number]
    counts = Counts.load(context.folder(READ.name, shard) for shard in plan.shards_of(number))
    unreadable = Reading(documents=counts.documents, unreadable=counts.unreadable)
    refuse_unreadable(source, unreadable, _example(context, number, counts.unreadable))
    reasons = sum(counts.dropped.values(), Counter[str]())
    if counts.documents == reasons.total():
        refuse_empty(source.name, counts, _example(context, number, reasons))
    counts.save(folder)


def _example(context: Context, source: int, reasons: Counter[str]) -> str:
    """The first document of a source that went for the most frequent of some reasons, and the details of its case."""
    for shard in context.plan.shards_of(source) if reasons else ():
        with (context.folder(READ.name, shard) / EXCLUDED).open(encoding="utf-8") as stream:
            for row in map(json.loads, stream):
                if row["reason"] == reasons.most_common(1)[0][0]:
                    return f"{row['id']}: {row['reason']}" + f" ({row['detail']})" * bool(row["detail"])
    return ""


def refuse_empty(source: str, counts: Counts, example: str) -> NoReturn:
    """Refuse a source of which nothing is left; `example` is a document that went."""
    lists = {
        step: ", ".join(f"{count:,} {reason}" for reason, count in sorted((+reasons).items())) for step, reasons in counts.dropped.items()
    }
    steps = "; ".join(f"{step}: {reasons}" for step, reasons in lists.items() if reasons)
    dropped = sum(reasons.total() for reasons in counts.dropped.values())
    why = f" ({steps})" * bool(steps)
    got = f"source {source}: nothing is left; documents: {counts.documents:,} read, {dropped:,} dropped{why}, 0 kept"
    want = f"for example {example}" if example else "its files are empty"
    refuse("data.empty", got, want, "Correct its paths, `format` or `policy`", key="data.source")


def _check_settings(context: Context, number: int) -> list[str]:
    source = context.plan.data.source[number]
    return [source.name, str(source.max_unreadable)]


CHECK = Stage(
    "check",
    lambda plan: len(plan.data.source),
    _check,
    _check_settings,
    lambda plan, number: [(READ.name, shard) for shard in plan.shards_of(number)],
)
