"""The rehearsal itself: one process, then the layout until it is killed, another layout, and one process again, step by step alike."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preheat.arithmetic import Timeline, layout
from preheat.errors import Problem, RunFailed
from preheat.interop.toml_text import document
from preheat.monitor import read_lines
from preheat.recipe import Recipe
from preheat.rehearse.course import checkpoint_step
from preheat.rehearse.ranks import Ranks
from preheat.rehearse.text import write_text
from preheat.rehearse.twin import Twin

TOLERANCES = {"adamw": 1e-5, "muon": 2e-4}
"""Optimizer -> the relative difference from one process up to which a run agrees, in fp32. PyTorch's Muon orthogonalises in bf16: a last
bit of fp32 that rounds the other way there is off by 4e-5 after ten steps, where AdamW is by 1e-6."""

Record = dict[str, Any]
Records = Mapping[int, Record]
"""Step -> line of `metrics.jsonl`."""


@dataclass(frozen=True)
class Difference:
    """The largest relative difference from one process, and the step that has it."""

    largest: float
    step: int


@dataclass(frozen=True)
class Leg:
    """A piece of the rehearsal: some steps in one layout."""

    name: str
    processes: int
    split: dict[str, int]
    """Axis -> size, of those above 1."""
    first: int
    last: int
    end: str
    """How it ended."""
    seconds: float
    tolerance: float
    """The largest difference that agrees."""
    differences: dict[str, Difference]
    """Of `loss`, `grad_norm` and `held_out`; empty for what the others are compared with."""

    @property
    def agrees(self) -> bool:
        return all(found.largest <= self.tolerance for found in self.differences.values())


def rehearse(twin: Twin, folder: Path, progress: Callable[[str], None]) -> list[Leg]:
    """Run the twin in an empty folder; `progress` is told what is done.

    Raises:
        RunFailed: a run did not get through; the message has its last words.
    """
    rehearsal = _Rehearsal(twin, folder, progress)
    rehearsal.prepare()
    return rehearsal.legs()


class _Rehearsal:
    def __init__(self, twin: Twin, folder: Path, progress: Callable[[str], None]) -> None:
        self.twin, self.folder, self.progress = twin, folder, progress
        self.end = Timeline(twin.recipe).end.steps
        self.saved = checkpoint_step(twin.recipe)
        self.reference: Records = {}

    def prepare(self) -> None:
        """Write recipes and text, and make tokens of it."""
        twin = self.twin
        for name, recipe in (("twin", twin.recipe), ("one-process", twin.alone), ("other-layout", twin.elsewhere)):
            (self.folder / f"{name}.toml").write_text(document(recipe.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
        (self.folder / "text").mkdir()
        largest = max(segment.batch_size * segment.seq_len for segment in Timeline(twin.recipe).segments)
        for place, source in enumerate(twin.recipe.data.source):
            write_text(self.folder / "text" / f"{place}.jsonl", largest, source.name)
        with Ranks(["data", "prepare", self.folder / "one-process.toml", "--data", self._data], 1, self.folder / "prepare") as ranks:
            ranks.wait()
            self._refuse_failure(ranks, "preparing the text")

    def legs(self) -> list[Leg]:
        """One process for comparison; then the run that is killed and goes on elsewhere."""
        twin = self.twin
        whole = self._train("one process", twin.alone, 1, "one-process", "reference", 0)
        self.reference = {record["step"]: record for record in self._lines("reference")}
        rehearsed = [whole, self._killed()]
        middle = self.saved + (self.end - self.saved) // 2
        moved = self._train("another layout", twin.elsewhere, twin.other.ranks, "other-layout", "run", self.saved, stop_after=middle)
        rehearsed.append(moved)
        if moved.last < self.end:
            rehearsed.append(self._train("one process again", twin.alone, 1, "one-process", "run", moved.last))
        return rehearsed

    def _killed(self) -> Leg:
        """The layout of the twin, killed shortly before its end. It goes on from the checkpoint past the middle."""
        recipe, begin = self.twin.recipe, time.monotonic()
        with self._start("twin", "run", self.twin.axes.ranks) as ranks:
            late = ranks.wait(lambda: self._last_step("run") >= self.end - 2)
            finished = all(worker.poll() == 0 for worker in ranks.workers)
            if not late:
                self._refuse_failure(ranks, "the layout")
            ranks.kill()
        lines = self._lines("run")
        how = "killed (SIGKILL) without a warning"
        if finished:  # no process was quick enough to see the moment
            how = "it was over before it could be killed: its last checkpoint was taken away"
        for checkpoint in (self.folder / "run" / "checkpoints").glob("step-*"):
            if int(checkpoint.name.removeprefix("step-").partition(".")[0]) > self.saved:
                shutil.rmtree(checkpoint)
        return self._leg("the layout", recipe, self.twin.axes.ranks, lines, how, begin)

    def _train(self, name: str, recipe: Recipe, processes: int, file: str, run: str, done: int, *, stop_after: int | None = None) -> Leg:
        """Train after `done` steps to the end, or until a stop is asked for."""
        begin, end, resumes = time.monotonic(), "complete", self._resumes(run)
        with self._start(file, run, processes) as ranks:
            # Until the run has resumed, its lines are those of the process that was killed.
            if stop_after is not None and ranks.wait(lambda: self._resumes(run) > resumes and self._last_step(run) >= stop_after):
                ranks.stop()
                end = "asked to stop (SIGTERM): saved and ended"
            ranks.wait()
            self._refuse_failure(ranks, name)
        lines = [record for record in self._lines(run) if record["step"] > done]
        if lines and lines[-1]["step"] == self.end:
            end = "complete"
        return self._leg(name, recipe, processes, lines, end, begin)

    def _start(self, file: str, run: str, processes: int) -> Ranks:
        paths: list[str | Path] = [self.folder / f"{file}.toml", "--data", self._data, "--run", self.folder / run]
        return Ranks(["train", *paths], processes, self.folder / f"{run}-{file}")

    def _refuse_failure(self, ranks: Ranks, name: str) -> None:
        if ranks.failed is None:
            return
        said = ranks.last_words(ranks.failed)
        self.progress(said)
        what = f"{name}: process {ranks.failed} of {len(ranks.workers)} ended with an error"
        fix = "`preheat rehearse --keep FOLDER` leaves everything there to look at"
        raise RunFailed(Problem("rehearse.failed", what, said.rpartition("\n")[2], fix))

    def _leg(self, name: str, recipe: Recipe, processes: int, lines: list[Record], end: str, begin: float) -> Leg:
        seconds = time.monotonic() - begin
        if not lines:
            raise RunFailed(Problem("rehearse.failed", f"{name}: the run took no step", "", "Look at it with --keep FOLDER"))
        parallel, replicas = recipe.parallel, layout(recipe.parallel, processes).dense_dp
        axes = {axis: getattr(parallel, axis) for axis in ("tensor", "pipeline", "context", "expert", "expert_tensor")} | {"data": replicas}
        leg = Leg(
            name=name,
            processes=processes,
            split={axis: size for axis, size in axes.items() if size > 1},
            first=lines[0]["step"],
            last=lines[-1]["step"],
            end=end,
            seconds=seconds,
            tolerance=TOLERANCES[recipe.optimizer.name],
            differences=differences(self.reference, lines) if self.reference else {},
        )
        self.progress(f"{name}: steps {leg.first} to {leg.last} in {seconds:.0f} s, {end}")
        return leg

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _lines(self, run: str) -> list[Record]:
        return read_lines(self.folder / run / "metrics.jsonl").records

    def _last_step(self, run: str) -> int:
        return max((record["step"] for record in self._lines(run)), default=0)

    def _resumes(self, run: str) -> int:
        return sum(event["kind"] == "resume" for event in read_lines(self.folder / run / "events.jsonl").records)


def differences(reference: Records, lines: Sequence[Record]) -> dict[str, Difference]:
    """The largest relative differences of loss, gradient norm and held-out losses between lines and those of the same steps."""
    found: dict[str, Difference] = {}
    for line in lines:
        other = reference[line["step"]]
        pairs = {name: [(line[name], other[name])] for name in ("loss", "grad_norm")}
        if "held_out" in other:
            pairs["held_out"] = [(line["held_out"][source]["loss"], score["loss"]) for source, score in other["held_out"].items()]
        for name, values in pairs.items():
            difference = max(abs(value - expected) / abs(expected) for value, expected in values)
            if name not in found or difference > found[name].largest:
                found[name] = Difference(difference, line["step"])
    return found
