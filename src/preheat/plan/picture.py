"""Plans as text for a terminal: bars of memory and of time."""

from __future__ import annotations

from collections.abc import Sequence

from preheat.arithmetic.memory import Memory
from preheat.plan.planner import GIB, LayoutPlan
from preheat.plan.step import StepTime

_WIDTH = 60
_MOST_RANKS = 16
_LETTERS = {
    "weights": "w",
    "gradients": "g",
    "optimizer": "o",
    "activations": "a",
    "loss": "l",
    "working": "k",
    "gathered": "h",
    "buffers": "b",
    "workspace": "s",
    "fragmentation": "f",
    "context": "c",
}
PART_NAMES = {
    "matrix": "matrix products",
    "attention": "attention",
    "elementwise": "norms, activations",
    "experts": "experts",
    "tensor": "tensor-parallel exchange",
    "context": "context-parallel exchange",
    "exchange": "expert all-to-all",
    "host": "waiting for the host",
    "head": "head and loss",
    "recompute": "recomputing",
    "transfer": "between pipeline stages",
    "bubble": "pipeline bubble",
    "data": "gradients and weights of replicas",
    "optimizer": "optimizer",
    "outside": "outside of the model",
    "waiting": "waiting for the slowest",
}
"""What each part of a step is called on a screen; exchanges are what computation does not hide."""


def memory_bars(plan: LayoutPlan) -> list[str]:
    """A bar for each pipeline rank, a letter for each part, and what the letters mean with the fullest rank's GiB.

    `|` is what a process finds on the GPU, `:` what is left free of it. Of many ranks those between stand for their neighbours.
    """
    scale = max(plan.gpu.usable, plan.fullest.total) / _WIDTH
    shown = _some(plan.per_rank)
    lines = [
        f"rank {memory.rank:>3} {_bar(memory, scale, plan)} {memory.total / GIB:6.1f} GiB"
        + ("  <- fullest" if memory.rank == plan.fullest.rank and len(plan.per_rank) > 1 else "")
        for memory in shown
    ]
    if len(shown) < len(plan.per_rank):
        lines.append(f"({len(plan.per_rank) - len(shown)} ranks between are not shown)")
    parts = [f"{_LETTERS[name]} {name} {size / GIB:.1f}" for name, size in plan.fullest.parts() if size >= 0.05 * GIB]
    return [*lines, *_wrapped(parts)]


def time_bars(step: StepTime) -> list[str]:
    """A line for each part of a step that takes a thousandth of it or more, longest first."""
    longest = max(step.parts.values())
    rows = sorted(step.parts.items(), key=lambda part: -part[1])
    return [
        f"{PART_NAMES[name]:<34} {seconds:9.3f} s {seconds / step.seconds:6.1%}  {'#' * max(1, round(24 * seconds / longest))}"
        for name, seconds in rows
        if seconds >= step.seconds / 1000
    ]


def _bar(memory: Memory, scale: float, plan: LayoutPlan) -> str:
    cells, done, drawn = "", 0, 0
    for name, size in memory.parts():
        done += size
        upto = round(done / scale)
        cells += _LETTERS[name] * (upto - drawn)
        drawn = upto
    cells = cells.ljust(_WIDTH)
    for mark, at in ((":", plan.room), ("|", plan.gpu.usable)):
        place = min(_WIDTH - 1, round(at / scale) - 1)
        cells = cells[:place] + mark + cells[place + 1 :]
    return cells


def _some(ranks: Sequence[Memory]) -> list[Memory]:
    """All of few ranks; of many the first and last, the fullest, and some evenly between."""
    if len(ranks) <= _MOST_RANKS:
        return list(ranks)
    fullest = max(range(len(ranks)), key=lambda rank: ranks[rank].total)
    chosen = {0, len(ranks) - 1, fullest} | {rank * len(ranks) // 8 for rank in range(8)}
    return [ranks[rank] for rank in sorted(chosen)]


def _wrapped(words: Sequence[str], width: int = 84) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + word
    return lines
