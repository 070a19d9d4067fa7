"""Fitting the planner's constants to published runs: few numbers, each with what is believed before any run is read."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from preheat.plan.constants import Constants, read
from preheat.plan.rows import Run
from preheat.plan.step import StepModel

_TURN = 0.1
"""Error (natural logarithm) from which it counts linearly: half of the rows are meant to be nearer."""
_ROUNDS = 9
_FINEST = 0.01


@dataclass(frozen=True)
class Belief:
    """A fitted number before any run is read: `spread` is how far it is believed to be off, in logarithms or, for shares, as they are."""

    value: float
    spread: float
    share: bool = False
    """It lies between 0 and 1 and is changed by adding."""


_KERNELS = {
    "volta": {"matrix": Belief(0.6, 0.2)},
    "ampere": {"matrix": Belief(0.83, 0.1), "attention": Belief(0.6, 0.15)},
    "hopper": {
        "matrix": Belief(0.70, 0.1),
        "matrix_fp8": Belief(0.60, 0.15),
        "attention": Belief(0.45, 0.2),
    },
    "blackwell": {
        "matrix": Belief(0.70, 0.15),
        "matrix_fp8": Belief(0.60, 0.15),
        "matrix_mxfp8": Belief(0.55, 0.15),
        "matrix_fp4": Belief(0.40, 0.2),
        "attention": Belief(0.45, 0.2),
    },
}
_DENSE = {
    "matrix": Belief(0.95, 0.1),
    "elementwise": Belief(1.6, 0.3),
    "tensor_overlap": Belief(0.2, 0.3, share=True),
    "data_overlap": Belief(0.5, 0.3, share=True),
    "step": Belief(0.03, 0.4),
}
_OLDER_FLASH = Belief(0.5, 0.1)
"""FlashAttention-2 reaches 35 % of an H100's peak and FlashAttention-3 75 % (arXiv 2407.08608, abstract)."""
_EXPERTS = {"expert": Belief(2.5, 0.5), "exchange_overlap": Belief(0.3, 0.3, share=True), "launch_expert": Belief(3e-3, 0.7)}
_SOFTWARE = {
    "megatron-2021": {"matrix": Belief(0.8, 0.15), "elementwise": Belief(2.0, 0.3), "step": Belief(0.03, 0.4)},
    "megatron": {name: belief for name, belief in (_DENSE | _EXPERTS).items() if name != "matrix"}
    | {"launch_each": Belief(1e-4, 0.5), "step_tensor": Belief(2e-4, 0.5)},
    "megatron-2026": _EXPERTS | {"launch_expert": Belief(1e-3, 0.7)},
    "pytorch": {name: belief for name, belief in _DENSE.items() if name != "tensor_overlap"} | {"attention_rate": _OLDER_FLASH},
}
_COMMON = {
    "wave": Belief(0.5, 0.5),
    "depth": Belief(150.0, 0.5),
    "misaligned": Belief(1.3, 0.15),
    "odd_heads": Belief(3.5, 0.3),
    "link": Belief(0.75, 0.1, share=True),
    "network": Belief(0.75, 0.1, share=True),
    "network_latency": Belief(15e-6, 0.7),
    "jitter": Belief(0.008, 0.5),
}
BELIEFS: dict[tuple[str, ...], Belief] = {
    **{("common", name): belief for name, belief in _COMMON.items()},
    **{("kernels", kind, name): belief for kind, table in _KERNELS.items() for name, belief in table.items()},
    **{("software", kind, name): belief for kind, table in _SOFTWARE.items() for name, belief in table.items()},
}


@dataclass
class _Job:
    """A prediction and the measurements that it answers to."""

    model: StepModel
    arguments: tuple[Any, ...]
    factor: float
    """Tokens of a step over ranks: throughput times seconds."""
    measured: list[tuple[float, float]] = field(default_factory=list)
    """(logarithm of the throughput, weight)."""

    def loss(self, constants: Constants) -> float:
        seconds = self.model.under(constants).seconds(*self.arguments)
        predicted = math.log(self.factor / seconds)
        return sum(weight * _huber(predicted - observed) for observed, weight in self.measured)


def fit(runs: Iterable[Run], tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of constants under which the runs are predicted best: a pattern search from the beliefs, without chance.

    Sources weigh by the square root of their rows, so that a table of 160 rows doesn't drown one of ten.

    Args:
        tables: what is not fitted stays as it is here.
    """
    found = copy.deepcopy(tables)
    for path, belief in BELIEFS.items():
        _put(found, path, belief.value)
    jobs = _jobs(runs, read(found))
    touched = {path: [index for index, job in enumerate(jobs) if _touches(path, job.model)] for path in BELIEFS}
    constants = read(found)
    losses = [job.loss(constants) for job in jobs]
    strides = {path: belief.spread / 2 for path, belief in BELIEFS.items() if touched[path]}
    for _ in range(_ROUNDS):
        for path in strides:
            if strides[path] >= _FINEST * BELIEFS[path].spread * 2:
                strides[path] = _improve(found, path, strides[path], jobs, touched[path], losses)
    return found


def _improve(
    tables: dict[str, Any], path: tuple[str, ...], stride: float, jobs: Sequence[_Job], touched: Sequence[int], losses: list[float]
) -> float:
    """Move one number up or down where that helps; the stride to try next."""
    belief, before = BELIEFS[path], value_at(tables, path)
    best, at = sum(losses[index] for index in touched) + _surprise(belief, before), before
    kept: list[float] | None = None
    for value in (_moved(belief, before, stride), _moved(belief, before, -stride)):
        if value == before:
            continue
        _put(tables, path, value)
        constants = read(tables)
        tried = [jobs[index].loss(constants) for index in touched]
        total = sum(tried) + _surprise(belief, value)
        if total < best - 1e-9:
            best, at, kept = total, value, tried
            break
    _put(tables, path, at)
    if kept is None:
        return stride / 2
    for index, loss in zip(touched, kept, strict=True):
        losses[index] = loss
    return stride * 1.3


def _jobs(runs: Iterable[Run], constants: Constants) -> list[_Job]:
    usable = [run for run in runs if run.tokens_per_s_per_gpu is not None and not run.guessed]
    rows: dict[str, int] = defaultdict(int)
    for run in usable:
        rows[run.source] += 1
    models: dict[str, StepModel] = {}
    jobs: dict[str, _Job] = {}
    for run in usable:
        assert run.tokens_per_s_per_gpu is not None
        key = f"{run.model!r} {run.seq_len} {run.gpu.name} {run.precision} {run.software}"
        if key not in models:
            models[key] = StepModel(run.model, run.seq_len, run.gpu, run.precision, run.software, constants)
        name = f"{key} {run.parallel!r} {run.micro_batch} {run.global_batch} {run.ranks}"
        factor = run.global_batch * run.seq_len / run.ranks
        job = jobs.setdefault(name, _Job(models[key], (run.parallel, run.micro_batch, run.global_batch, run.ranks), factor))
        job.measured.append((math.log(run.tokens_per_s_per_gpu), rows[run.source] ** -0.5))
    return list(jobs.values())


def _touches(path: tuple[str, ...], model: StepModel) -> bool:
    if path[0] == "kernels":
        formats = {"matrix_fp8": "fp8", "matrix_mxfp8": "mxfp8", "matrix_fp4": "fp4"}
        return path[1] == model.gpu.generation and formats.get(path[2], model.precision) == model.precision
    if path[0] == "software":
        sparse = path[2] in _EXPERTS or path[2] == "launch_each"
        heirs = (path[1], "megatron-2026") if path[1] == "megatron" and path[2] not in _EXPERTS else (path[1],)
        return model.software in heirs and (not sparse or model.model.experts is not None)
    return True


def _huber(error: float) -> float:
    size = abs(error) / _TURN
    return size * size / 2 if size < 1 else size - 0.5


def _surprise(belief: Belief, value: float) -> float:
    """How far a number has gone from what was believed, in spreads, squared; it counts as much as a good row."""
    away = value - belief.value if belief.share else math.log(value / belief.value)
    return 0.05 * (away / belief.spread) ** 2


def _moved(belief: Belief, value: float, stride: float) -> float:
    return min(0.95, max(0.0, value + stride)) if belief.share else value * math.exp(stride)


def value_at(tables: dict[str, Any], path: tuple[str, ...]) -> float:
    """The number that stands at a path in the tables."""
    for name in path[:-1]:
        tables = tables[name]
    return float(tables[path[-1]])


def _put(tables: dict[str, Any], path: tuple[str, ...], value: float) -> None:
    for name in path[:-1]:
        tables = tables[name]
    tables[path[-1]] = value
