"""A preparation from its plan to the outputs of its last step, by whatever does the tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from preheat.data.pipeline.local import InProcess, Processes
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import CHECK
from preheat.data.pipeline.stages import in_order
from preheat.data.pipeline.tasks import Context, Stage, is_done
from preheat.errors import PreheatError, Problem, RunFailed
from preheat.units import duration

PARALLEL_FROM = 8_000_000
"""Bytes below which starting processes takes longer than it saves."""
REPORT_SECONDS, REPORT_SHARE = 5.0, 0.05
"""A step says how far it is after so many seconds, then again and again when so many, or this share of its time, have passed."""

Progress = Callable[[str], None]
Bar = Callable[[str, float, str], None]
"""Shows how far a step is: its name, the share that is done, and that in words."""
PHASES = {
    "read": "read and cleaned",
    "check": "",
    "sign": "hashed",
    "exact": "",
    "band": "",
    "group": "",
    "compare": "compared similar documents",
    "divide": "",
    "paragraph": "",
    "repeated": "",
    "shorten": "removed repeated paragraphs",
    "settle": "",
    "tokenizer": "tokenizer ready",
    "encode": "tokenized",
    "merge": "",
    "list": "written",
}
"""What is said when a step is done; the steps without words are short and count to the next one that has some."""
BY_SHARD = frozenset({"read", "sign", "paragraph", "shorten", "encode"})
"""The steps with a task for each shard, in whose bytes they are measured; others may have as many tasks by chance."""


class Backend(Protocol):
    """What does the tasks of a step: processes here, or machines elsewhere that see the same folder."""

    @property
    def description(self) -> str:
        """How many of what."""

    @property
    def at_once(self) -> int:
        """How many tasks are done at the same time."""

    def run(self, context: Context, stage: str, numbers: Sequence[int]) -> Iterator[int]:
        """Do tasks of a stage, in any order; the number of each as it is done."""

    def close(self) -> None:
        """End what was started."""


def local_backend(plan: Plan, workers: int | None) -> Backend:
    """Processes on this machine, as many as it has cores unless told otherwise.

    Parquet is never read in this process: a library that a damaged file crashes takes a worker with it, and we live to name the file.
    """
    size = sum(shard.size for shard in plan.shards)
    count = min(workers or os.cpu_count() or 1, max(len(plan.shards), 1))
    crashes = any(source.format == "parquet" for source in plan.data.source)
    return Processes(count) if crashes or (count > 1 and (workers or size >= PARALLEL_FROM)) else InProcess()


def perform_all(context: Context, backend: Backend, progress: Progress, bar: Bar | None = None) -> None:
    """Do every task that is not done yet. How far a step is goes to `bar`; without one it is now and then a line for `progress`.

    Raises:
        PreheatError: something is wrong with the input.
        RunFailed: a task failed, or said it was done and left nothing.
    """
    lap = time.perf_counter()
    for stage in in_order(context.plan):
        everything = range(stage.count(context.plan))
        left = _left(context, stage)
        if len(left) < len(everything):
            progress(f"{stage.name}: {len(everything) - len(left):,} of {len(everything):,} tasks were done before")
        meter = Meter(context.plan, stage, left, backend.at_once, progress, bar)
        # These are short, and one wants to hear of every source that is refused.
        for number in _with_every_problem(context, stage, left) if stage is CHECK else backend.run(context, stage.name, left):
            meter.count(number)
        missing = [number for number in left if not (context.folder(stage.name, number)).is_dir()]
        if missing:
            got = f"{len(missing):,} tasks of the step {stage.name} left nothing, the first is {missing[0]}"
            raise RunFailed(Problem("data.task", got, "all workers must see the same folder", "Prepare again: what is done stays done"))
        if PHASES[stage.name] and left:
            now = time.perf_counter()
            progress(f"{PHASES[stage.name]}{meter.amount} in {now - lap:.1f} s")
            lap = now


def _left(context: Context, stage: Stage) -> list[int]:
    """The tasks of a stage that are not done. What is there is read once for its checksums, by as many threads as there are cores."""
    numbers = range(stage.count(context.plan))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda number: is_done(context, stage, number), numbers)
        return [number for number, whole in zip(numbers, done, strict=True) if not whole]


def _with_every_problem(context: Context, stage: Stage, numbers: Sequence[int]) -> Iterator[int]:
    """Do tasks in this process; what is wrong with the input of any of them is raised at the end."""
    problems: list[Problem] = []
    for number in numbers:
        try:
            yield from InProcess().run(context, stage.name, [number])
        except RunFailed:
            raise
        except PreheatError as error:
            problems += error.problems
    if problems:
        raise PreheatError(*problems)


class Meter:
    """Says how far a step is, how fast, and how long it will take."""

    def __init__(self, plan: Plan, stage: Stage, left: Sequence[int], at_once: int, progress: Progress, bar: Bar | None) -> None:
        by_shard = stage.name in BY_SHARD and stage.count(plan) == len(plan.shards)
        self._sizes = {number: plan.shards[number].size if by_shard else 1 for number in left}
        self._total, self._done = max(sum(self._sizes.values()), 1), 0
        self._by_shard, self._name, self._progress, self._bar = by_shard, stage.name, progress, bar
        self._left, self._at_once = len(left), at_once
        self._start = self._said = time.perf_counter()
        self.amount = f" {self._total / 1e6:.1f} MB" if by_shard and stage.name == "read" else ""

    def count(self, number: int) -> None:
        """A task is done."""
        self._done += self._sizes[number]
        self._left -= 1
        now = time.perf_counter()
        if self._bar is not None:
            self._bar(self._name, self._done / self._total, self._amount(now - self._start))
        elif self._left and now - self._said >= max(REPORT_SECONDS, REPORT_SHARE * (now - self._start)):
            self._said = now
            self._progress(f"{self._name}: {self._amount(now - self._start)}")

    def _amount(self, seconds: float) -> str:
        # Of the tasks that are being done about half is done.
        begun = max(self._done + (self._total - self._done) * min(self._at_once, self._left) / max(self._left, 1) / 2, 1)
        rest = duration(seconds * (self._total - begun) / begun)
        if self._by_shard:
            return f"{self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB, {begun / max(seconds, 1e-3) / 1e6:.1f} MB/s, {rest} left"
        return f"{self._done:,} of {self._total:,} tasks, {rest} left"
