"""What a rule looks at: a recipe, what follows from it, and where it shall run. Derived numbers are computed once for all rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

from preheat.arithmetic import Parameters, Timeline, Unrunnable, parameters
from preheat.check.machine import Machine
from preheat.hardware import Cluster
from preheat.recipe import Loaded, Model, Parallel, Recipe, Stage
from preheat.units import Quantity


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, rising."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


@dataclass(frozen=True)
class Batches:
    """A kind of step that the recipe asks for."""

    key: str
    """The key that sets the size of the batch."""
    global_size: int
    micro_size: int
    replicas: int
    """Data-parallel replicas; 1 when the number of ranks is unknown or does not fit the layout."""

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one replica runs in a step; at least one, rounded down."""
        return max(1, self.global_size // (self.micro_size * self.replicas))


class Subject:
    """A recipe under examination."""

    def __init__(self, loaded: Loaded, gpus: Cluster | None, machine: Machine) -> None:
        self.loaded = loaded
        self.recipe: Recipe = loaded.recipe
        self.model: Model = loaded.recipe.model
        self.parallel: Parallel = loaded.recipe.parallel
        self.gpus = gpus
        self.machine = machine

    def given(self, key: str) -> bool:
        """Whether somebody wrote this key, as against the schema's default."""
        origin = self.loaded.origins.get(key)
        return origin is not None and origin.kind != "default"

    @property
    def ranks(self) -> int | None:
        """How many ranks there are: `--gpus`, else what the recipe says about its own run."""
        return self.gpus.count if self.gpus else self.parallel.gpus

    @property
    def ranks_key(self) -> str:
        """Where the number of ranks stands, for a report."""
        return "parallel" if self.gpus else "parallel.gpus"

    def context(self, stage: Stage | None) -> int:
        """Context-parallel size of a stage."""
        return (stage.context if stage else None) or self.parallel.context

    def replicas(self, stage: Stage | None = None) -> int | None:
        """Data-parallel replicas of the dense layers; None when the ranks are unknown or no multiple of the layout."""
        dense = self.parallel.tensor * self.parallel.pipeline * self.context(stage)
        return None if self.ranks is None or self.ranks % dense else self.ranks // dense

    @cached_property
    def _run(self) -> Timeline | Unrunnable:
        try:
            return Timeline(self.recipe)
        except Unrunnable as fault:
            return fault

    @property
    def timeline(self) -> Timeline | None:
        """The run; None when the recipe describes none."""
        return self._run if isinstance(self._run, Timeline) else None

    @property
    def timeline_fault(self) -> Unrunnable | None:
        """Why the recipe describes no run."""
        return self._run if isinstance(self._run, Unrunnable) else None

    def end(self, unit: str) -> int | None:
        """The length of the run in tokens, samples or steps; None for another unit, or when there is no run."""
        clock = self.timeline.end if self.timeline else None
        return {"tokens": clock.tokens, "samples": clock.samples, "steps": clock.steps}.get(unit) if clock else None

    def ends_with_the_run(self, until: Quantity) -> bool:
        """Whether a moment is the end of the run, in whatever unit it is written."""
        whole = until.unit == "%" and until.amount == 1
        return whole or until == self.recipe.schedule.length or until.amount == self.end(until.unit)

    @cached_property
    def parameters(self) -> Parameters:
        """Parameter counts of the model."""
        return parameters(self.model)

    def stages(self) -> Iterator[tuple[int, Stage, str, int]]:
        """Number of the stage, the stage, the key that sets its sequence length, and that length in tokens."""
        for index, stage in enumerate(self.recipe.stage):
            yield index, stage, f"stage.{index}.seq_len" if stage.seq_len else "batch.seq_len", stage.seq_len or self.recipe.batch.seq_len

    @cached_property
    def batches(self) -> tuple[Batches, ...]:
        """The steps of the run: the full batch, every entry of the ramp, every stage with a batch or a layout of its own."""
        batch, whole = self.recipe.batch, self.replicas() or 1
        found = [Batches("batch.global_size", batch.global_size, batch.micro_size, whole)]
        found += [Batches(f"batch.ramp.{i}.size", entry.size, batch.micro_size, whole) for i, entry in enumerate(batch.ramp)]
        for i, stage in enumerate(self.recipe.stage):
            field = next((name for name in ("global_size", "micro_size", "context") if getattr(stage, name)), None)
            if field:
                sizes = stage.global_size or batch.global_size, stage.micro_size or batch.micro_size
                found.append(Batches(f"stage.{i}.{field}", *sizes, self.replicas(stage) or 1))
        return tuple(found)
