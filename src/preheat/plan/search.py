"""The best layouts of a recipe on a cluster: all that are legal, ranked by the time of the whole run, with as little recomputed as fits."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from preheat.arithmetic import pipeline_split
from preheat.arithmetic.memory import HEADROOM
from preheat.check import RULES, Rule, Subject, check
from preheat.errors import Problem
from preheat.hardware import Cluster
from preheat.plan.candidates import candidates
from preheat.plan.planner import LayoutPlan, Planner, Way
from preheat.recipe import Loaded, Origin, Parallel, Recipe, Recompute

_SHOWN_FRONT = 12
_MOST_REFUSED = 200
"""Layouts in a row that `preheat check` does not accept, after which the search gives up."""
_FAMILY = ("tensor", "pipeline", "context", "expert", "expert_tensor", "sharding", "replicate")
"""Of layouts alike in these the fastest is shown: the rest differ in pieces of the pipeline, micro-batch and what is recomputed."""
_KEYS = (
    "tensor",
    "pipeline",
    "virtual_pipeline",
    "pipeline_layers",
    "schedule",
    "context",
    "expert",
    "expert_tensor",
    "sequence",
    "sharding",
    "replicate",
    "compile",
    "offload_optimizer",
)


@dataclass(frozen=True)
class Found:
    """A layout that fits and that `preheat check` accepts."""

    plan: LayoutPlan
    settings: tuple[str, ...]
    """What `--set` takes to make the recipe so; empty for the recipe's own layout."""


@dataclass(frozen=True)
class Search:
    """What a search found."""

    best: tuple[Found, ...]
    """Fastest first."""
    front: tuple[Found, ...]
    """Layouts that no other one beats in both time and memory, fastest first; evenly chosen where there are many."""
    considered: int
    """Layouts that the rules allow, each counted once for all ways to recompute."""
    left_out: dict[str, int]
    """Reason -> combinations that were not considered, or considered and left out."""


@dataclass
class _Searching:
    """A search under way."""

    planner: Planner
    loaded: Loaded
    ways: list[tuple[float, Way]]
    """Seconds of the run without recomputation, and the way, fastest first."""
    left_out: Counter[str]
    room: float

    def best(self, top: int) -> Iterator[Found]:
        """The fastest of each family that fit. What recomputes nothing is a bound for all that does, so that most need not be looked at."""
        order = count()
        heap = [(seconds, next(order), way, False) for seconds, way in self.ways]
        heapq.heapify(heap)
        families: set[tuple[object, ...]] = set()
        refused = 0
        while heap and len(families) < top and refused < _MOST_REFUSED:
            _, _, way, known = heapq.heappop(heap)
            if family(way) in families:
                continue
            if not known and not fits_within(self.planner, way, self.room):
                again = self._least_recomputed(way)
                if again is None:
                    self.left_out["does not fit, even with everything recomputed"] += 1
                else:
                    heapq.heappush(heap, (self.planner.run_seconds(again), next(order), again, True))
                continue
            layout = self._accepted(way)
            if layout is None:
                refused += 1
                continue
            families.add(family(way))
            refused = 0
            yield layout

    def front(self, best: list[Found]) -> Iterator[Found]:
        """From fastest to smallest: each takes less memory than all that are faster."""
        ends = [(found.plan.seconds, found.plan.way) for found in best]
        fastest = {(family(way), way.micro_size): (seconds, way) for seconds, way in reversed(self.ways)}
        recomputed = [(self.planner.run_seconds(way), way) for way in (full(way) for _, way in fastest.values())]
        smallest = self.room
        held: Found | None = None
        for _, way in sorted([*ends, *fastest.values(), *recomputed], key=lambda end: end[0]):
            if fits_within(self.planner, way, smallest - 1):
                layout = self._accepted(way)
                if layout is not None:
                    smallest = layout.plan.fullest.total
                    if held is not None and held.plan.seconds < layout.plan.seconds:  # else it is as fast, and smaller
                        yield held
                    held = layout
        if held is not None:
            yield held

    def _least_recomputed(self, way: Way) -> Way | None:
        """With the fewest layers recomputed that make it fit; None where even all of them do not."""
        if not fits_within(self.planner, full(way), self.room):
            return None
        layers = most_layers(self.planner.recipe, way.parallel)
        low, high = 0, layers  # of so many layers: low does not fit, high does
        while high - low > 1:
            middle = (low + high) // 2
            if fits_within(self.planner, full(way, middle), self.room):
                high = middle
            else:
                low = middle
        return full(way) if high == layers else full(way, high)

    def _accepted(self, way: Way) -> Found | None:
        plan = self.planner.plan(way)
        settings = tuple(changes(self.planner.recipe, way))
        problem = refusal(self.planner, changed(self.loaded, way, settings))
        if problem is not None:
            self.left_out[f"preheat check: {problem.rule}"] += 1
            return None
        return Found(plan, settings)


def search(planner: Planner, loaded: Loaded, top: int = 10) -> Search:
    """Rank all layouts of the recipe in `loaded` that fit.

    Stages with a context-parallel or micro-batch size of their own keep it; everything else of a layout may change. Weights are sharded
    ("full") without a pipeline only, and tensor-parallel ranks stay where fast links join them.
    """
    left_out: Counter[str] = Counter()
    allowed, own = list(candidates(planner, left_out)), Way.of(planner.recipe)
    if own not in allowed and refusal(planner, loaded, memory=False) is None:
        allowed.append(own)  # it may be of a kind that is not made here, such as a last micro-batch that is smaller
    ways = sorted(((planner.run_seconds(way), way) for way in allowed), key=lambda bound: bound[0])
    searching = _Searching(planner, loaded, ways, left_out, (1 - HEADROOM) * planner.cluster.gpu.usable)
    best = list(searching.best(top))
    front = list(searching.front(best)) if best else []
    return Search(tuple(best), tuple(_some(front)), len(ways), dict(left_out.most_common()))


def _some(front: list[Found]) -> list[Found]:
    if len(front) <= _SHOWN_FRONT:
        return front
    return [front[place * (len(front) - 1) // (_SHOWN_FRONT - 1)] for place in range(_SHOWN_FRONT)]


def family(way: Way) -> tuple[object, ...]:
    """What layouts have in common of which one is shown."""
    return tuple(getattr(way.parallel, key) for key in _FAMILY)


def fits_within(planner: Planner, way: Way, room: float) -> bool:
    """Whether the run takes at most `room` bytes at every moment; ends at the first that takes more."""
    return all(planner.memory(way, segment).total <= room for segment in planner.fullest_kinds)


def full(way: Way, layers: int | None = None) -> Way:
    """The way with so many layers a pipeline rank recomputed, all when None."""
    return Way(way.parallel.model_copy(update={"recompute": Recompute(kind="full", layers=layers)}), way.micro_size)


def most_layers(recipe: Recipe, parallel: Parallel) -> int:
    """Layers of the pipeline rank that has most."""
    return max(sum(len(chunk.layers) for chunk in chunks) for chunks in pipeline_split(recipe.model.layers, parallel))


def refusals(loaded: Loaded, cluster: Cluster) -> list[Problem]:
    """The errors of `preheat check` but those about memory, which a plan answers with more."""
    return _errors(loaded, cluster, lambda rule: rule.severity == "error" and not rule.name.startswith("memory."))


def other_layouts_would_do(loaded: Loaded, cluster: Cluster) -> bool:
    """Whether nothing is wrong but the layout: no error is left when every rank is a replica."""
    recipe = loaded.recipe
    batch = recipe.batch.model_copy(update={"micro_size": 1})
    one = Cluster(1, cluster.gpu)
    origins = {key: origin for key, origin in loaded.origins.items() if not key.startswith("parallel.")}
    return not refusals(replace(loaded, recipe=recipe.model_copy(update={"parallel": Parallel(), "batch": batch}), origins=origins), one)


def refusal(planner: Planner, loaded: Loaded, *, memory: bool = True) -> Problem | None:
    """The first error of `preheat check`, or where preheat is to train it what its engine does not do.

    Args:
        memory: whether errors about memory count.
    """

    def counts(rule: Rule[Subject]) -> bool:
        if rule.name.startswith("memory.") and not memory:
            return False
        return rule.severity == "error" or (planner.program.name == "preheat" and rule.name.startswith("engine."))

    return next(iter(_errors(loaded, planner.cluster, counts)), None)


def _errors(loaded: Loaded, cluster: Cluster, counts: Callable[[Rule[Subject]], bool]) -> list[Problem]:
    return [problem for problem in check(loaded, cluster, wanted=counts) if problem.rule in RULES]


def changed(loaded: Loaded, way: Way, settings: tuple[str, ...]) -> Loaded:
    """The recipe with another layout, whose values come from the command line."""
    recipe = loaded.recipe
    batch = recipe.batch.model_copy(update={"micro_size": way.micro_size})
    keys = {setting.partition("=")[0]: Origin("set") for setting in settings}
    return replace(loaded, recipe=recipe.model_copy(update={"parallel": way.parallel, "batch": batch}), origins={**loaded.origins, **keys})


def changes(recipe: Recipe, way: Way) -> Iterator[str]:
    """What `--set` takes for a way of another layout."""
    for key in _KEYS:
        value = getattr(way.parallel, key)
        if value != getattr(recipe.parallel, key):
            yield f"parallel.{key}={_toml(value)}"
    own, again = recipe.parallel.recompute, way.parallel.recompute
    if again.kind != own.kind:
        yield f"parallel.recompute.kind={again.kind}"
    if again.layers is not None and again != own:
        yield f"parallel.recompute.layers={again.layers}"
    if again.layers is None and again.kind == own.kind and own.layers is not None:
        yield f"parallel.recompute.layers={most_layers(recipe, way.parallel)}"
    if way.micro_size != recipe.batch.micro_size:
        yield f"batch.micro_size={way.micro_size}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)).replace(" ", "") if isinstance(value, tuple) else str(value)
