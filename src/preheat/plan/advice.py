"""What to change first: each change is planned anew, so that its gain is a number for this recipe on this cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from preheat.plan.candidates import pipelines
from preheat.plan.planner import LayoutPlan, Planner, Way
from preheat.plan.programs import PROGRAMS
from preheat.plan.search import changed, changes, fits_within, full, most_layers, refusal
from preheat.recipe import Loaded, Parallel, Recompute

EXCHANGES = ("tensor", "context", "exchange", "transfer", "data")
"""Parts of a step in which GPUs exchange data and nothing hides it."""
MUCH_EXCHANGE = 0.3
"""Share of a step above which exchange is what to look at first."""
_LEAST_GAIN = 0.005


@dataclass(frozen=True)
class Advice:
    """One change and what it would give."""

    what: str
    settings: tuple[str, ...]
    """For `--set`; empty where the change is not one of the recipe."""
    seconds: float
    """Of a step of the phase that takes most of the run."""
    speedup: float
    """Share by which the run is shorter; below 0 it is longer."""
    mfu: float
    memory: int
    """Bytes on the fullest GPU."""
    fits: bool


@dataclass(frozen=True)
class Advised:
    """All advice, and the state that it is for."""

    memory_short: bool
    exchange_share: float
    """Of a step, what exchange takes that computation does not hide."""
    memory: tuple[Advice, ...]
    """What takes less memory; what fits comes first, and of that the fastest. Empty where memory is not short."""
    speed: tuple[Advice, ...]
    """What is faster and fits, most gain first."""


@dataclass
class _Adviser:
    planner: Planner
    loaded: Loaded
    own: LayoutPlan

    def trial(self, what: str, way: Way, planner: Planner | None = None) -> Iterator[Advice]:
        """A change planned anew; nothing where rules forbid it.

        Args:
            planner: of another program or cluster.
        """
        settings = tuple(changes(self.planner.recipe, way))
        by = planner or self.planner
        if settings and refusal(by, changed(self.loaded, way, settings), memory=False) is not None:
            return
        yield self.advice(what, settings, by.plan(way))

    def advice(self, what: str, settings: tuple[str, ...], plan: LayoutPlan, extra: float = 0.0) -> Advice:
        """A plan beside the recipe's own; `extra` is seconds of a step that it does not count."""
        main = plan.main
        seconds = main.step.seconds + extra
        whole = plan.seconds + extra * sum(phase.segment.steps for phase in plan.phases)
        mfu = main.step.mfu() * main.step.seconds / seconds
        return Advice(what, settings, seconds, 1 - whole / self.own.seconds, mfu, plan.fullest.total, plan.fits)

    def speed(self) -> Iterator[Advice]:
        """What may make a step shorter."""
        way = self.own.way
        parallel, size = way.parallel, way.micro_size
        yield from self.trial("larger micro-batches", Way(parallel, 2 * size))
        yield from self._less_recomputed()
        if parallel.tensor > 1 and not parallel.sequence:
            yield from self.trial("sequence parallelism", _with(way, sequence=True))
        if parallel.tensor > 1:
            half = parallel.tensor // 2
            yield from self.trial("half as many tensor-parallel ranks", _with(way, tensor=half, sequence=half > 1))
            wider = {"pipeline": 2 * parallel.pipeline, "virtual_pipeline": 1, "pipeline_layers": None}
            for piped in pipelines(self.planner, parallel.model_copy(update={"tensor": half, "sequence": half > 1} | wider)):
                yield from self.trial("half as many tensor-parallel ranks, twice as many pipeline stages", Way(piped, size))
        if parallel.context > 1:
            yield from self.trial("half as many context-parallel ranks", _with(way, context=parallel.context // 2))
        if parallel.pipeline > 1:
            for piped in pipelines(self.planner, parallel):
                if piped.virtual_pipeline != parallel.virtual_pipeline:
                    pieces = f"{piped.virtual_pipeline} piece{'s' if piped.virtual_pipeline > 1 else ''} a pipeline rank"
                    yield from self.trial(f"interleaved schedule: {pieces}" if piped.virtual_pipeline > 1 else pieces, Way(piped, size))
        yield from self._elsewhere()

    def _less_recomputed(self) -> Iterator[Advice]:
        way = self.own.way
        if way.parallel.recompute.kind == "none":
            return
        yield from self.trial("nothing recomputed", _with(way, recompute=Recompute()))
        most = most_layers(self.planner.recipe, way.parallel)
        for layers in range(1, most):
            less = full(way, layers)
            if fits_within(self.planner, less, self.own.room):
                yield from self.trial(f"{layers} of {most} layers a pipeline rank recomputed", less)
                return

    def _elsewhere(self) -> Iterator[Advice]:
        """What no recipe says: kernels, links, overlap."""
        planner, way = self.planner, self.own.way
        if planner.program.name != "megatron":
            fused = Planner(planner.recipe, planner.cluster, PROGRAMS["megatron"])
            yield from self.trial(
                "fused kernels of attention, norms and activations, as in Megatron-LM with Transformer Engine", way, fused
            )
        gpu = planner.cluster.gpu
        if planner.cluster.count > gpu.domain:
            faster = replace(gpu, network_bandwidth=2 * gpu.network_bandwidth)
            linked = Planner(planner.recipe, planner.cluster, planner.program, speed=faster)
            yield from self.trial(f"a network of twice {gpu.network_bandwidth / 1e9:g} GB/s a GPU", way, linked)
        if planner.cluster.count > 1:
            shown = sum(self.own.main.step.parts[name] for name in EXCHANGES)
            share = shown / self.own.main.step.seconds
            if share > 0:
                bound = self.advice("all exchange hidden behind computation (overlap flags): at most", (), self.own, -shown)
                yield replace(bound, speedup=share)

    def memory(self) -> Iterator[Advice]:
        """What takes less memory."""
        way = self.own.way
        parallel, size = way.parallel, way.micro_size
        yield self._allocator()
        most = most_layers(self.planner.recipe, parallel)
        if parallel.recompute.kind != "full":
            yield from self.trial("all layers recomputed", full(way))
            for layers in range(1, most):
                if fits_within(self.planner, full(way, layers), self.own.room):
                    yield from self.trial(f"{layers} of {most} layers a pipeline rank recomputed", full(way, layers))
                    break
        if size > 1:
            yield from self.trial("smaller micro-batches", Way(parallel, size // 2))
        if parallel.sharding == "none":
            yield from self.trial("optimizer state sharded over replicas", _with(way, sharding="optimizer"))
        if parallel.sharding != "full" and parallel.pipeline == 1:
            yield from self.trial("weights, gradients and optimizer state sharded (FSDP)", _with(way, sharding="full"))
        yield from self._offload()
        if parallel.tensor > 1 and not parallel.sequence:
            yield from self.trial("sequence parallelism", _with(way, sequence=True))
        if 2 * parallel.tensor <= self.planner.cluster.gpu.domain:
            yield from self.trial("twice as many tensor-parallel ranks", _with(way, tensor=2 * parallel.tensor, sequence=True))
        wider = parallel.model_copy(update={"pipeline": 2 * parallel.pipeline, "virtual_pipeline": 1, "pipeline_layers": None})
        for piped in pipelines(self.planner, wider):
            if piped.virtual_pipeline == 1:
                yield from self.trial("twice as many pipeline stages", Way(piped, size))
        yield from self.trial("twice as many context-parallel ranks", _with(way, context=2 * parallel.context))

    def _allocator(self) -> Advice:
        """Segments that grow leave no holes."""
        what = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: at most"
        plan = self.own
        tight = replace(plan, per_rank=tuple(replace(memory, fragmentation=0) for memory in plan.per_rank))
        return self.advice(what, (), tight)

    def _offload(self) -> Iterator[Advice]:
        """Moments visit the GPU once a step, both ways."""
        way = self.own.way
        if way.parallel.offload_optimizer:
            return
        yield from self.trial("the optimizer's state on the host", _with(way, offload_optimizer=True))


def advise(planner: Planner, loaded: Loaded, own: LayoutPlan) -> Advised:
    """What to change first in the recipe's own layout."""
    adviser = _Adviser(planner, loaded, own)
    main = own.main.step
    share = sum(main.parts[name] for name in EXCHANGES) / main.seconds
    smaller: list[Advice] = []
    if not own.fits:
        trials = [trial for trial in adviser.memory() if trial.memory < 0.99 * own.fullest.total]
        smaller = sorted(trials, key=lambda trial: (not trial.fits, -trial.speedup if trial.fits else trial.memory))
    faster = [trial for trial in adviser.speed() if trial.speedup > _LEAST_GAIN and (trial.fits or not trial.settings)]
    faster.sort(key=lambda trial: -trial.speedup)
    return Advised(not own.fits, share, tuple(smaller), tuple(_one_of_each(faster)))


def _one_of_each(trials: list[Advice]) -> Iterator[Advice]:
    """The best of trials that say the same."""
    seen: set[str] = set()
    for trial in trials:
        what = trial.what.partition(":")[0]
        if what not in seen:
            seen.add(what)
            yield trial


def _with(way: Way, **changes: object) -> Way:
    parallel: Parallel = way.parallel.model_copy(update=changes)
    return Way(parallel, way.micro_size)
