"""One layout of a recipe on a cluster through the whole run: whether it fits at its fullest moment, and seconds of each kind of step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from preheat.arithmetic import Segment, Timeline, stage_parallel
from preheat.arithmetic.memory import HEADROOM, Memory, MemoryModel, Step
from preheat.hardware import Cluster, Gpu
from preheat.plan.programs import PlannedProgram
from preheat.plan.step import StepModel, StepTime
from preheat.recipe import Parallel, Precision, Recipe

GIB = 2**30


@dataclass(frozen=True)
class Way:
    """What a search may change of a recipe: the layout, and samples of a forward pass where a stage does not name its own."""

    parallel: Parallel
    micro_size: int

    @classmethod
    def of(cls, recipe: Recipe) -> Way:
        """The recipe's own."""
        return cls(recipe.parallel, recipe.batch.micro_size)


@dataclass(frozen=True)
class Phase:
    """Consecutive steps of a run that look alike: a stage, or a step of the batch ramp within it."""

    segment: Segment
    micro_batches: int
    """Per step and data-parallel replica."""
    step: StepTime
    memory: Memory
    """Of the fullest rank."""

    @property
    def bubble(self) -> float:
        """Share of a step in which pipeline ranks have nothing to compute."""
        return self.step.parts["bubble"] / self.step.seconds

    @property
    def seconds(self) -> float:
        return self.segment.steps * self.step.seconds


@dataclass(frozen=True)
class LayoutPlan:
    """What one layout comes to."""

    way: Way
    gpu: Gpu
    ranks: int
    phases: tuple[Phase, ...]
    per_rank: tuple[Memory, ...]
    """Each pipeline rank in the phase that is fullest."""
    fullest_phase: Phase

    @property
    def fullest(self) -> Memory:
        """The rank that takes most."""
        return max(self.per_rank, key=lambda memory: memory.total)

    @property
    def fits(self) -> bool:
        return self.fullest.fits(self.gpu.usable)

    @property
    def room(self) -> float:
        """Bytes that may be taken."""
        return (1 - HEADROOM) * self.gpu.usable

    @cached_property
    def main(self) -> Phase:
        """The phase that takes most of the run's time."""
        return max(self.phases, key=lambda phase: phase.seconds)

    @property
    def seconds(self) -> float:
        """Of all steps, were nothing ever to fail."""
        return sum(phase.seconds for phase in self.phases)


class Planner:
    """Plans layouts of one recipe on one cluster under one program; whatever they share is computed once.

    Raises:
        PreheatError: the GPU does not compute in the recipe's number format, or nothing is known of its speed.
    """

    def __init__(self, recipe: Recipe, cluster: Cluster, program: PlannedProgram, *, speed: Gpu | None = None) -> None:
        """`speed` is another GPU than the cluster's to take time of, for questions such as what faster links would give."""
        self.recipe, self.cluster, self.program = recipe, cluster, program
        self.timeline = Timeline(recipe)
        self.format = number_format(recipe.precision, cluster.gpu)
        compute = "fp8" if self.format in ("fp8", "mxfp8") else self.format
        precision = recipe.precision.model_copy(update={"compute": compute})
        self.memory_model = MemoryModel(recipe.model, precision, recipe.optimizer, program.memory)
        lengths = {segment.seq_len for segment in self.timeline.segments}
        self._steps = {
            length: StepModel(recipe.model, length, speed or cluster.gpu, self.format, program.software) for length in sorted(lengths)
        }
        self.kinds = tuple({_kind(segment): segment for segment in self.timeline.segments}.values())
        """A segment for each kind of step: a ramp may come back to what it was."""
        largest = sorted(self.timeline.segments, key=lambda segment: segment.batch_size)
        fullest = {(segment.seq_len, segment.stage.micro_size, segment.stage.context): segment for segment in largest}
        self.fullest_kinds = tuple(sorted(fullest.values(), key=lambda segment: -segment.seq_len))
        """Those that memory is decided by, for with more micro-batches a pipeline holds no less of them."""

    def replicas(self, parallel: Parallel) -> int:
        """Copies of the dense layers that read different samples."""
        return self.cluster.count // (parallel.tensor * parallel.pipeline * parallel.context)

    def step(self, way: Way, segment: Segment) -> StepTime:
        """A step of a segment."""
        parallel = stage_parallel(way.parallel, segment.stage)
        return self._steps[segment.seq_len].step(parallel, micro_size(way, segment), segment.batch_size, self.cluster.count)

    def seconds(self, way: Way, segment: Segment) -> float:
        """Its seconds alone, which are quicker to have."""
        parallel = stage_parallel(way.parallel, segment.stage)
        return self._steps[segment.seq_len].seconds(parallel, micro_size(way, segment), segment.batch_size, self.cluster.count)

    def run_seconds(self, way: Way) -> float:
        """Seconds of all steps of the run, were nothing ever to fail."""
        found = {_kind(segment): self.seconds(way, segment) for segment in self.kinds}
        return sum(segment.steps * found[_kind(segment)] for segment in self.timeline.segments)

    def micro_batches(self, way: Way, segment: Segment) -> int:
        """Per step and data-parallel replica; a last incomplete one counts."""
        replicas = self.replicas(stage_parallel(way.parallel, segment.stage))
        return max(1, -(-segment.batch_size // (micro_size(way, segment) * replicas)))

    def plan(self, way: Way) -> LayoutPlan:
        """The whole run in one layout.

        Raises:
            ValueError: the layout does not divide the ranks or the layers; `preheat check` says the same with file and line.
        """
        found = {_kind(segment): self._phase(way, segment) for segment in self.kinds}
        fullest = max(found.values(), key=lambda phase: phase.memory.total)
        phases = tuple(replace(found[_kind(segment)], segment=segment) for segment in self.timeline.segments)
        parallel = stage_parallel(way.parallel, fullest.segment.stage)
        per_rank = self.memory_model.per_rank(parallel, self.cluster.count, self._of_batch(way, fullest.segment))
        return LayoutPlan(way, self.cluster.gpu, self.cluster.count, phases, per_rank, fullest)

    def _phase(self, way: Way, segment: Segment) -> Phase:
        return Phase(segment, self.micro_batches(way, segment), self.step(way, segment), self.memory(way, segment))

    def memory(self, way: Way, segment: Segment) -> Memory:
        """The fullest rank in a step of a segment."""
        parallel = stage_parallel(way.parallel, segment.stage)
        return self.memory_model.fullest(parallel, self.cluster.count, self._of_batch(way, segment))

    def _of_batch(self, way: Way, segment: Segment) -> Step:
        return Step(micro_size(way, segment), segment.seq_len, self.micro_batches(way, segment))


def micro_size(way: Way, segment: Segment) -> int:
    """Samples of a forward pass: the stage's own number where it names one."""
    return segment.stage.micro_size or way.micro_size


def number_format(precision: Precision, gpu: Gpu) -> str:
    """The format of matrix products, as `hardware.Gpu` names it; `auto` is bf16 where the GPU multiplies it, else fp32."""
    if precision.compute == "auto":
        return "bf16" if "bf16" in gpu.peaks else "fp32"
    return "mxfp8" if precision.compute == "fp8" and precision.fp8_recipe == "mxfp8" else precision.compute


def _kind(segment: Segment) -> tuple[int, int, int | None, int | None]:
    return segment.seq_len, segment.batch_size, segment.stage.micro_size, segment.stage.context
