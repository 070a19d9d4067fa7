"""What the report reads from a run folder, and the shapes it needs there. Missing files are absent, damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from preheat.errors import refuse
from preheat.monitor import read_lines
from preheat.report.scale import LARGEST

SCHEMA = "preheat.run/1"
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]


class Shape(BaseModel):
    """The keys that the report reads; others are left alone, for later versions write more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Origin(Shape):
    """Where a value of the recipe comes from."""

    kind: str
    file: str | None = None
    line: int | None = None
    note: str = ""


class Identity(Shape):
    """`recipe.json`."""

    name: str
    fingerprint: str
    recipe: dict[str, Any]
    origins: dict[str, Origin]


class Segment(Shape):
    """Consecutive steps of a stage that look alike."""

    name: str
    start_tokens: Whole
    tokens: Whole
    steps: Whole
    batch_size: Whole
    seq_len: Whole
    rope_theta: Number | None = None
    mix: dict[str, Number] = {}


class Usage(Shape):
    """What the run takes from a source."""

    tokens: Whole
    epochs: Number


class Foreseen(Shape):
    """What `preheat plan` said of the run where it is."""

    gpus: Whole
    gpu: str
    tokens_per_s: Number
    mfu: Number
    memory_bytes: Whole
    days: Number
    cost_usd: Number | None


class Plan(Shape):
    """`plan.json`."""

    total_tokens: Annotated[Whole, Field(ge=1)]
    total_steps: Whole
    segments: list[Segment]
    sources: dict[str, Usage] = {}
    foreseen: Foreseen | None = None


class Measured(Shape):
    """A held-out measurement of one source."""

    loss: Number
    bits_per_byte: Number
    tokens: Whole
    bytes: Whole


class Metric(Shape):
    """A line of `metrics.jsonl`: one optimizer step. Null stands for a number that was not finite."""

    tokens: Whole
    step: Whole
    stage: str
    lr: Number
    loss: Number | None
    grad_norm: Number | None
    batch_size: Whole
    seq_len: Whole
    step_time_s: Number
    tokens_per_s: Number
    mfu: Number
    held_out: dict[str, Measured] = {}


class Event(Shape):
    """A line of `events.jsonl`. `time` is in seconds since 1970."""

    time: Number
    tokens: Whole
    step: Whole
    kind: str
    cause: str = ""
    evidence: str = ""
    action: str = ""


class BitsPerByte(Shape):
    """A figure that models of any tokenizer share."""

    bits_per_byte: Number


class Choices(Shape):
    """A multiple-choice task: shares of 1; `accuracy_bytes` compares continuations per byte of their text."""

    n: Whole
    accuracy: Share
    accuracy_bytes: Share
    stderr: Share
    chance: Share


class Sample(Shape):
    """Text that the model wrote."""

    prompt: str
    text: str


class Evaluation(Shape):
    """`evaluation.json`."""

    step: Whole
    tokens: Whole
    held_out: dict[str, Measured]
    overall: BitsPerByte
    baselines: dict[str, BitsPerByte] = {}
    choices: dict[str, Choices] = {}
    samples: list[Sample] = []


class Funnel(Shape):
    """A source's way from the files to its training text, in documents; `bytes` are those of the files."""

    documents: Whole
    bytes: Whole
    repaired: dict[str, Whole] = {}
    """What was mended while reading -> how often."""
    edited: dict[str, Whole] = {}
    """Cleaning step -> documents it changed."""
    dropped: dict[str, dict[str, Whole]] = {}
    """Step -> reason -> documents."""
    kept: Whole


class Split(Shape):
    """The training part or the held-out part of a source."""

    documents: Whole
    tokens: Whole


class Source(Shape):
    """What became of a source."""

    name: str
    licence: str = ""
    funnel: Funnel
    train: Split
    held_out: Split


class Manifest(Shape):
    """`data.json`."""

    sources: list[Source]


@dataclass(frozen=True)
class Run:
    """A run folder as it is now."""

    path: Path
    identity: Identity
    plan: Plan | None
    environment: dict[str, Any] | None
    metrics: list[Metric]
    events: list[Event]
    evaluation: Evaluation | None
    data: Manifest | None
    torn: tuple[str, ...]
    """Files whose last line was only half written."""

    @property
    def finished(self) -> bool:
        """Every step of the plan is done."""
        return self.plan is not None and bool(self.metrics) and self.metrics[-1].tokens >= self.plan.total_tokens

    @property
    def x_end(self) -> float:
        """Tokens at the right end of every chart: the planned length, or what there is of it."""
        planned = self.plan.total_tokens if self.plan else 1
        return float(max(planned, self.metrics[-1].tokens if self.metrics else 1))


def load(path: Path) -> Run:
    """Read a run folder.

    Raises:
        PreheatError: `path` is no run folder, or a file in it is damaged.
    """
    recipe = path / "recipe.json"
    if not recipe.is_file():
        refuse("run.folder", f"{path} is no run folder: it has no recipe.json", "", "Give the folder that `preheat train` wrote")
    identity = _object(recipe)
    if identity.get("schema") != SCHEMA:
        refuse("run.folder", f"{recipe} has schema {identity.get('schema')!r}", f"this version reads {SCHEMA!r}")
    metrics, metrics_torn = _shaped_lines(path / "metrics.jsonl", Metric)
    events, events_torn = _shaped_lines(path / "events.jsonl", Event)
    for line, (before, after) in enumerate(pairwise(metrics), start=2):
        if after.tokens <= before.tokens:
            got = f"step {after.step:,} stands at {after.tokens:,} tokens, the step before it at {before.tokens:,}"
            fix = "Resume the run once to mend it"
            refuse("run.broken-line", got, "tokens grow with every step", fix, file=path / "metrics.jsonl", line=line)
    return Run(
        path,
        _shaped(recipe, identity, Identity),
        _optional(path / "plan.json", Plan),
        _object(path / "environment.json") if (path / "environment.json").is_file() else None,
        metrics,
        events,
        _optional(path / "evaluation.json", Evaluation),
        _optional(path / "data.json", Manifest),
        tuple(name for name, torn in (("metrics.jsonl", metrics_torn), ("events.jsonl", events_torn)) if torn),
    )


S = TypeVar("S", bound=Shape)


def _optional(path: Path, shape: type[S]) -> S | None:
    return _shaped(path, _object(path), shape) if path.is_file() else None


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        refuse("run.damaged", f"{path} is no JSON: {error}", "", "Take the file from a backup, or remove it if it can be made again")
    if not isinstance(value, dict):
        refuse("run.damaged", f"{path} holds a {type(value).__name__}", "an object belongs there", "Take the file from a backup")
    return value


def _shaped_lines(path: Path, shape: type[S]) -> tuple[list[S], bool]:
    lines = read_lines(path)
    return [_shaped(path, record, shape, line) for line, record in enumerate(lines.records, start=1)], lines.torn


def _shaped(path: Path, value: dict[str, Any], shape: type[S], line: int | None = None) -> S:
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        got = f"{first['msg']}: {str(first['input'])[:80]!r}"
        refuse("run.damaged", got, "", "Take the file from a backup", file=path, line=line, key=key)
