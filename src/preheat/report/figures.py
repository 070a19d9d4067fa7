"""The charts of the page, from the records of a run. Every one has tokens along x, up to the planned end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, groupby
from typing import Literal

from preheat.report.chart import Band, Chart, Line, Mark
from preheat.report.folder import Measured, Metric, Run

_LOG_RATIO = 2.0
"""Values that span more than this factor are drawn on a logarithmic axis, so that the low end keeps its detail."""
_SMOOTHED_STEPS = 1 / 40
"""Window of the smoothed loss, as a share of the steps so far."""
_MAX_LEVELS = 6
"""A staircase of no more values than this has its ticks at them: 256 and 512 rather than 200 and 400."""
ALARMS = frozenset({"spike", "non-finite", "checkpoint-damaged"})
"""Kinds of events that tell of trouble."""


def stage_bands(run: Run) -> list[Band]:
    """Each stage as it is planned, or without a plan as far as it was trained."""
    if run.plan:
        spans = [(segment.name, segment.start_tokens, segment.start_tokens + segment.tokens) for segment in run.plan.segments]
    else:
        ends = [0, *(metric.tokens for metric in run.metrics)]
        spans = [(metric.stage, start, metric.tokens) for metric, start in zip(run.metrics, ends, strict=False)]
    bands: list[Band] = []
    for name, group in groupby(spans, key=lambda span: span[0]):
        parts = list(group)
        bands.append(Band(name, parts[0][1], parts[-1][2], len(bands)))
    return bands


def token_mean(held_out: dict[str, Measured], value: Callable[[Measured], float] = lambda measured: measured.loss) -> float:
    """The mean over sources, each weighing as many tokens as were measured."""
    return sum(value(measured) * measured.tokens for measured in held_out.values()) / sum(measured.tokens for measured in held_out.values())


def loss(run: Run, bands: list[Band]) -> Chart:
    """Training loss, its smoothed course in the colour of each stage, and the held-out measurements."""
    raw = Line("training loss of the step", [(metric.tokens, metric.loss) for metric in run.metrics])
    lines = [raw, *_smoothed(run.metrics, bands)]
    measured = [(metric.tokens, token_mean(metric.held_out)) for metric in run.metrics if _measures(metric)]
    if measured:
        lines.append(Line("held-out loss, mean over sources", measured, dots=True, line=False))
    gaps = sum(metric.loss is None for metric in run.metrics)
    note = f"{gaps:,} steps had a loss that is not finite; they are gaps in the curve." if gaps else ""
    return Chart("Training loss", "nats per token", lines, run.x_end, bands, _marks(run), note, y=_axis(raw), height=330, legend="bands")


def _smoothed(metrics: list[Metric], bands: list[Band]) -> list[Line]:
    """The course of the loss within each stage: a mean that looks as far ahead as back, so that it does not lag behind a fall."""
    colours = {band.label: band.colour for band in bands}
    half = max(2, int(len(metrics) * _SMOOTHED_STEPS / 2))
    lines = []
    for stage, group in groupby(metrics, key=lambda metric: metric.stage):
        points = [(metric.tokens, metric.loss) for metric in group]
        means = iter(centred_mean([value for _, value in points if value is not None], half))
        course = [(x, None if value is None else next(means)) for x, value in points]
        lines.append(Line(f"smoothed, {stage}", course, colours.get(stage, len(bands))))
    return lines


def centred_mean(values: list[float], half: int) -> list[float]:
    """The mean of each value and `half` neighbours on either side; towards the ends fewer on both sides, but never under a quarter."""
    sums = [0.0, *accumulate(values)]
    means = []
    for index in range(len(values)):
        reach = max(min(half, index, len(values) - 1 - index), half // 4)
        first, end = max(0, index - reach), min(len(values), index + reach + 1)
        means.append((sums[end] - sums[first]) / (end - first))
    return means


def held_out(run: Run, bands: list[Band]) -> Chart:
    """Bits per byte of each source over the run."""
    names = list(dict.fromkeys(name for metric in run.metrics for name in metric.held_out))
    measured = [metric for metric in run.metrics if metric.held_out]
    courses = {
        name: [(metric.tokens, metric.held_out[name].bits_per_byte) for metric in measured if name in metric.held_out] for name in names
    }
    lines = [Line(name, course, index, dots=True) for index, (name, course) in enumerate(courses.items())]
    return Chart("Held-out loss by source", "bits per byte", lines, run.x_end, bands, height=280, legend="lines")


def schedule(run: Run, bands: list[Band]) -> list[Chart]:
    """Learning rate, batch size and sequence length."""
    return [
        _plain(run, bands, "Learning rate", "per step", lambda metric: metric.lr),
        _plain(run, bands, "Batch", "tokens per step", lambda metric: metric.batch_size * metric.seq_len, step=True),
        _plain(run, bands, "Batch size", "samples per step", lambda metric: metric.batch_size, step=True),
        _plain(run, bands, "Sequence length", "tokens per sample", lambda metric: metric.seq_len, step=True),
    ]


def stability(run: Run, bands: list[Band]) -> Chart:
    """Norm of the gradient before clipping."""
    line = Line("gradient norm", [(metric.tokens, metric.grad_norm) for metric in run.metrics], 0)
    return Chart("Gradient norm", "before clipping", [line], run.x_end, bands, _marks(run), y=_axis(line), height=220)


def speed(run: Run, bands: list[Band]) -> list[Chart]:
    """Tokens per second and model FLOPs utilization."""
    return [
        _plain(run, bands, "Throughput", "tokens per second", lambda metric: metric.tokens_per_s),
        _plain(run, bands, "MFU", "share of the measured matmul peak", lambda metric: metric.mfu, percent=True),
    ]


def _plain(
    run: Run, bands: list[Band], title: str, unit: str, value: Callable[[Metric], float], *, step: bool = False, percent: bool = False
) -> Chart:
    points = [(metric.tokens, value(metric)) for metric in run.metrics]
    line = Line(title.lower() if title != "MFU" else title, points, 0, step=step)
    levels = sorted({0.0, *(y for _, y in points)}) if step else []
    return Chart(title, unit, [line], run.x_end, bands, y="zero", percent=percent, levels=levels if len(levels) <= _MAX_LEVELS else ())


def _measures(metric: Metric) -> bool:
    return any(measured.tokens for measured in metric.held_out.values())


def _axis(line: Line) -> Literal["fit", "log"]:
    values = [y for _, y in line.points if y is not None]
    return "log" if values and min(values) > 0 and max(values) / min(values) > _LOG_RATIO else "fit"


def _marks(run: Run) -> list[Mark]:
    return [
        Mark(
            event.tokens,
            "\n".join(filter(None, (f"{event.kind} at step {event.step:,}", event.cause, event.evidence))),
            event.kind in ALARMS,
        )
        for event in run.events
        if event.kind in ALARMS or event.kind == "resume"
    ]
