"""How wrong the planner has been on published runs: by source and overall, with the constants that ship or fitted without each source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, expm1, log
from statistics import median
from typing import Any

from preheat.plan.constants import Constants, read, shipped, tables
from preheat.plan.fit import fit
from preheat.plan.rows import Run, Runs
from preheat.plan.step import StepModel


@dataclass(frozen=True)
class Error:
    """One prediction beside what was measured."""

    run: Run
    predicted: float
    measured: float

    @property
    def signed(self) -> float:
        """Predicted over measured, less one: above 0 the prediction is too much."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Accuracy:
    """Errors of some predictions."""

    n: int
    median_abs_error: float
    p90_abs_error: float
    bias: float
    """Median of the signed errors."""

    @classmethod
    def of(cls, errors: Sequence[Error]) -> Accuracy | None:
        """None where nothing was predicted."""
        if not errors:
            return None
        sizes = sorted(abs(error.signed) for error in errors)
        return cls(len(errors), median(sizes), sizes[ceil(0.9 * len(sizes)) - 1], expm1(median(log(1 + error.signed) for error in errors)))


@dataclass(frozen=True)
class Calibration:
    """Predictions of all rows of a table."""

    rows_used: int
    rows_skipped: Counter[str]
    """Reason -> rows; a row whose memory alone is used is under `rows_used` too."""
    rows_assumed: Counter[str]
    """What stands for something that a used row does not say -> rows."""
    throughput: tuple[Error, ...]
    memory: tuple[Error, ...]
    left_out: bool
    """Whether each source was predicted by constants fitted without it."""


def calibrate(
    runs: Runs,
    *,
    leave_one_out: bool = False,
    memory: Callable[[Run], float | None] | None = None,
    progress: Callable[[str], None] = lambda source: None,
) -> Calibration:
    """Predict every row.

    Args:
        leave_one_out: fit the constants again for each source, without its rows.
        memory: bytes on a GPU that are predicted for a row, None where its kind of figure is not.
        progress: called with each source before its turn.
    """
    timed = [run for run in runs.used if run.tokens_per_s_per_gpu is not None]
    skipped = runs.skipped + Counter(run.no_throughput for run in runs.used if run.tokens_per_s_per_gpu is None)
    assumed = Counter(one for run in timed for one in run.assumed)
    taught = [run for run in timed if not run.guessed]
    fitted: dict[frozenset[str], Constants] = {}
    throughput: list[Error] = []
    if not leave_one_out:
        throughput = predict(timed, shipped())
    else:
        for source in dict.fromkeys(run.source for run in timed):
            progress(source)
            others = frozenset(run.source for run in taught if run.source != source)
            if others not in fitted:
                fitted[others] = read(fit([run for run in taught if run.source in others], tables()))
            throughput += predict([run for run in timed if run.source == source], fitted[others])
    weighed = [(run, memory(run)) for run in runs.used if run.memory] if memory is not None else []
    held = tuple(Error(run, bytes_held, run.memory) for run, bytes_held in weighed if bytes_held is not None and run.memory is not None)
    return Calibration(len(runs.used), skipped, assumed, tuple(throughput), held, leave_one_out)


def predict(runs: Sequence[Run], constants: Constants) -> list[Error]:
    """Throughput of each run whose own is known."""
    models: dict[str, StepModel] = {}
    errors = []
    for run in runs:
        if run.tokens_per_s_per_gpu is None:
            continue
        key = f"{run.model!r} {run.seq_len} {run.gpu.name} {run.precision} {run.software}"
        if key not in models:
            models[key] = StepModel(run.model, run.seq_len, run.gpu, run.precision, run.software, constants)
        seconds = models[key].seconds(run.parallel, run.micro_batch, run.global_batch, run.ranks)
        errors.append(Error(run, run.global_batch * run.seq_len / run.ranks / seconds, run.tokens_per_s_per_gpu))
    return errors


def calibration_json(calibration: Calibration, worst: int = 10) -> dict[str, Any]:
    """The calibration as plain values, of the shape that `--json` promises."""
    groups: dict[str, Callable[[Run], bool]] = {
        "dense_a100_h100": lambda run: run.gpu.generation in ("ampere", "hopper") and not run.sparse,
        "experts_a100_h100": lambda run: run.gpu.generation in ("ampere", "hopper") and run.sparse,
        "dense": lambda run: not run.sparse,
        "experts": lambda run: run.sparse,
    }
    sources = dict.fromkeys(error.run.source for error in (*calibration.throughput, *calibration.memory))
    largest = sorted(calibration.throughput, key=lambda error: -abs(log(error.predicted / error.measured)))[:worst]
    return {
        "rows_used": calibration.rows_used,
        "rows_skipped": dict(calibration.rows_skipped.most_common()),
        "rows_assumed": dict(calibration.rows_assumed.most_common()),
        "left_out": calibration.left_out,
        "overall": _both(calibration, lambda run: True),
        "by_group": {name: _both(calibration, chosen) for name, chosen in groups.items()},
        "by_source": {source: _both(calibration, lambda run, source=source: run.source == source) for source in sources},  # type: ignore[misc]
        "worst": [_row(error) for error in largest],
    }


def _both(calibration: Calibration, chosen: Callable[[Run], bool]) -> dict[str, Any]:
    found = {}
    for name in ("throughput", "memory"):
        accuracy = Accuracy.of([error for error in getattr(calibration, name) if chosen(error.run)])
        found[name] = None if accuracy is None else vars(accuracy)
    return found


def _row(error: Error) -> dict[str, Any]:
    run = error.run
    return {
        "id": run.id,
        "source": run.source,
        "model": run.name,
        "gpus": f"{run.ranks}x{run.gpu.name}",
        "predicted": error.predicted,
        "measured": error.measured,
        "error": error.signed,
        "assumed": list(run.assumed),
        "notes": run.notes,
    }
