"""The sentences and tables of the page, from the records of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from statistics import median
from typing import Any

from preheat.report.figures import token_mean
from preheat.report.folder import Event, Foreseen, Run, Source
from preheat.report.scale import number
from preheat.units import duration

BASELINES = {"unigram": "unigram model", "kneser_ney_4gram": "4-gram model (Kneser-Ney)"}
_MAX_EVENTS = 300
"""More events than this are cut in the middle, and the page says so."""


@dataclass(frozen=True)
class Tile:
    """A headline figure."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Bar:
    """A row of the comparison in bits per byte; `share` of the longest, 0 to 1."""

    label: str
    value: str
    share: float
    own: bool


@dataclass(frozen=True)
class Row:
    """A value of the recipe."""

    key: str
    value: str
    origin: str
    default: bool
    note: str


@dataclass(frozen=True)
class Table:
    """A table of the recipe. `note` is the source that all its values share, and is empty in the rows then."""

    name: str
    note: str
    rows: list[Row]


def status(run: Run) -> str:
    """How far the run is; empty when it is finished."""
    if not run.metrics:
        return "No step is recorded yet."
    if run.finished:
        return ""
    last = run.metrics[-1]
    if run.plan is None:
        return f"The run stands at step {last.step:,}; it has no plan.json, so its end is unknown."
    share = last.tokens / run.plan.total_tokens
    return f"Not finished: step {last.step:,} of {run.plan.total_steps:,}, {share:.0%} of the tokens. The run goes on or was stopped."


def verdict(run: Run) -> str:
    """What was trained and how good it is, in two sentences."""
    parts = []
    if run.metrics:
        seconds = sum(metric.step_time_s for metric in run.metrics)
        size = _parameters(run)
        model = f"A model of {number(size, 3)} parameters" if size else "A model"
        parts.append(f"{model}, trained on {number(run.metrics[-1].tokens, 3)} tokens in {duration(seconds)}.")
    if run.evaluation:
        own = run.evaluation.overall.bits_per_byte
        parts.append(f"It needs {own:.3f} bits for a byte of held-out text{_comparison(run, own)}.")
    return " ".join(parts)


def _comparison(run: Run, own: float) -> str:
    assert run.evaluation
    phrases = []
    for name, label in BASELINES.items():
        baseline = run.evaluation.baselines.get(name)
        if baseline and baseline.bits_per_byte > 0:
            change = own / baseline.bits_per_byte - 1
            sign = "less" if change < 0 else "more"
            phrases.append(f"{abs(change):.0%} {sign} than the {baseline.bits_per_byte:.3f} of a {label.split(' (')[0]}")
    return ": " + " and ".join(phrases) if phrases else ""


def unevaluated(run: Run) -> str:
    """What stands in for an evaluation that is missing or older than the run; empty when there is nothing to say."""
    if run.evaluation:
        if run.metrics and run.evaluation.step < run.metrics[-1].step:
            return f"The evaluation is of step {run.evaluation.step:,}; the run has gone on to step {run.metrics[-1].step:,} since."
        return ""
    measured = [metric for metric in run.metrics if metric.held_out]
    if not measured:
        return "Not evaluated yet."
    last = measured[-1]
    value = token_mean(last.held_out)
    return f"Not evaluated yet. The last measurement within the run, at step {last.step:,}: held-out loss {value:.3f} nats per token."


def tiles(run: Run) -> list[Tile]:
    """The headline figures that are known."""
    found = []
    if size := _parameters(run):
        found.append(Tile("Parameters", number(size, 3)))
    if run.metrics:
        last = run.metrics[-1]
        planned = f"of {number(run.plan.total_tokens, 3)} planned" if run.plan and not run.finished else f"{last.step:,} steps"
        found.append(Tile("Tokens", number(last.tokens, 3), planned))
        found.append(Tile("Training time", duration(sum(metric.step_time_s for metric in run.metrics)), "in optimizer steps"))
        expected = f", planned {number(foreseen.tokens_per_s, 3)}" if (foreseen := _foreseen(run)) else ""
        found.append(Tile("Throughput", number(median(metric.tokens_per_s for metric in run.metrics), 3), f"tokens/s, median{expected}"))
        convention = (run.environment or {}).get("mfu_convention")
        counted = f"median, {convention} FLOPs" if convention else "median"
        found.append(Tile("MFU", f"{median(metric.mfu for metric in run.metrics):.0%}", counted))
    if foreseen := _foreseen(run):
        cost = f"${foreseen.cost_usd:,.0f}, " if foreseen.cost_usd is not None else ""
        memory = f"{foreseen.memory_bytes / 2**30:.1f} GiB a GPU"
        found.append(Tile("Planned", duration(foreseen.days * 86_400), f"{cost}{memory} on {foreseen.gpus} {foreseen.gpu}"))
    if run.evaluation:
        found.append(Tile("Held-out", f"{run.evaluation.overall.bits_per_byte:.3f}", "bits per byte"))
    return found


def _foreseen(run: Run) -> Foreseen | None:
    return run.plan.foreseen if run.plan is not None else None


def _parameters(run: Run) -> float | None:
    counts = (run.environment or {}).get("parameters")
    total = counts.get("total") if isinstance(counts, dict) else None
    return total if isinstance(total, int) and total > 0 else None


def bars(run: Run) -> list[Bar]:
    """This model among the baselines."""
    if not run.evaluation:
        return []
    values = [(BASELINES.get(name, name), figure.bits_per_byte, False) for name, figure in run.evaluation.baselines.items()]
    values.append(("this model", run.evaluation.overall.bits_per_byte, True))
    longest = max(value for _, value, _ in values) or 1.0
    return [Bar(label, f"{value:.3f}", max(0.0, value / longest), own) for label, value, own in values]


def mixture(run: Run) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """Names of the sources, and for each stage of the plan the share of its samples that each source gives, 0 to 1."""
    if not run.plan:
        return [], []
    names = list(dict.fromkeys(name for segment in run.plan.segments for name in segment.mix))
    rows = []
    for stage, group in groupby(run.plan.segments, key=lambda segment: segment.name):
        mix = next(group).mix
        whole = sum(mix.values()) or 1.0
        rows.append((stage, [mix.get(name, 0.0) / whole for name in names]))
    return names, rows


@dataclass(frozen=True)
class Funnel:
    """A source's way from files to tokens."""

    source: str
    documents: str
    megabytes: str
    changes: list[str]
    kept: str
    train: str
    held_out: str
    licence: str


def funnels(run: Run) -> list[Funnel]:
    """A row for each source of the data manifest."""
    return [] if run.data is None else [_funnel(source) for source in run.data.sources]


def _funnel(source: Source) -> Funnel:
    funnel = source.funnel
    dropped = [f"{count:,} {reason} ({step})" for step, reasons in funnel.dropped.items() for reason, count in reasons.items() if count]
    repaired = [f"{count:,} {what}" for what, count in funnel.repaired.items() if count]
    edited = [f"{count:,} {what}" for what, count in funnel.edited.items() if count]
    changes = [("dropped", dropped), ("mended while reading", repaired), ("documents cleaned", edited)]
    return Funnel(
        source.name,
        f"{funnel.documents:,}",
        f"{funnel.bytes / 1e6:,.1f}",
        [f"{name}: {', '.join(parts)}" for name, parts in changes if parts],
        f"{funnel.kept:,}",
        f"{source.train.tokens:,}",
        f"{source.held_out.tokens:,}",
        source.licence,
    )


@dataclass(frozen=True)
class EventRow:
    """One event, or a row of saved checkpoints."""

    time: str
    step: str
    tokens: str
    kind: str
    text: str
    detail: str


def events(run: Run) -> tuple[list[EventRow], int]:
    """The events in order, checkpoints on end as one row; and how many rows were cut out of the middle."""
    rows = []
    for kind, group in groupby(run.events, key=lambda event: event.kind):
        parts = list(group)
        if kind == "checkpoint" and len(parts) > 1:
            rows.append(_event_row(parts[-1], f"{len(parts)} checkpoints saved, from step {parts[0].step:,} on"))
        else:
            rows += [_event_row(event, event.cause) for event in parts]
    cut = max(0, len(rows) - _MAX_EVENTS)
    return (rows[: _MAX_EVENTS // 2] + rows[-_MAX_EVENTS // 2 :] if cut else rows), cut


def _event_row(event: Event, text: str) -> EventRow:
    try:
        when = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        when = number(event.time)
    detail = " → ".join(part for part in (event.evidence, event.action) if part)
    return EventRow(when, f"{event.step:,}", number(event.tokens), event.kind, text, detail)


def recipe(run: Run) -> list[Table]:
    """Every value of the resolved recipe with its origin, by table of the file."""
    rows = [_recipe_row(run, key, value) for key, value in _leaves(run.identity.recipe)]
    return [_table(name, list(group)) for name, group in groupby(rows, key=lambda row: row.key.split(".")[0] if "." in row.key else "")]


def _table(name: str, rows: list[Row]) -> Table:
    notes = {row.note for row in rows if not row.default}
    if len(notes) != 1:
        return Table(name, "", rows)
    return Table(name, notes.pop(), [replace(row, note="") for row in rows])


def _recipe_row(run: Run, key: str, value: object) -> Row:
    origin = run.identity.origins.get(key)
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if origin is None or origin.kind == "default":
        return Row(key, text, "default" if origin else "unknown", True, "")
    place = "--set" if origin.kind == "set" else f"{origin.file}:{origin.line}" if origin.line else str(origin.file)
    return Row(key, text, place, False, origin.note)


def _leaves(value: object, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Dotted keys and values as the recipe's origins name them: tables and lists of tables are opened, other lists are one value."""
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _leaves(entry, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{prefix}.{index}")
    else:
        yield prefix, value


def flat(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Any JSON object as rows of dotted key and value."""
    return [(key, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)) for key, value in _leaves(values)]
