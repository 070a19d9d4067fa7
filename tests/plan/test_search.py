"""Searches against trying everything, and their results against `preheat check`."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from preheat.check import check
from preheat.errors import PreheatError
from preheat.hardware import Cluster
from preheat.plan import Planner, Search, Way, program, refusals, search, whole_run
from preheat.plan.candidates import candidates
from preheat.plan.limits import Limits
from preheat.plan.text import search_lines
from preheat.recipe import Recompute, load

CATALOG = {
    "toy-124m": "4xA100",
    "gpt3-15b": "64xA100",
    "gpt3-175b": "512xH100",
    "llama3-8b": "8xH100",
    "llama3-70b": "64xH100",
    "llama3.1-405b": "8192xH100",
    "mixtral-8x22b": "64xH100",
    "tiny": "2xA100",
}


def searched(name: str, gpus: str, *sets: str, by: str = "megatron", top: int = 10) -> tuple[Planner, Search]:
    loaded = load(name, sets)
    planner = Planner(loaded.recipe, Cluster.parse(gpus), program(by))
    return planner, search(planner, loaded, top)


@pytest.mark.parametrize(("name", "gpus"), CATALOG.items())
def test_what_is_found_passes_check_and_plans_as_it_says(name: str, gpus: str) -> None:
    """The settings, read from the command line into the recipe file anew."""
    planner, found = searched(name, gpus, top=5)
    assert found.best
    for layout in (*found.best, *found.front):
        loaded = load(name, layout.settings)
        errors = [problem for problem in check(loaded, planner.cluster) if problem.severity == "error"]
        assert not errors, (layout.settings, errors)
        again = Planner(loaded.recipe, planner.cluster, planner.program).plan(Way.of(loaded.recipe))
        assert again.seconds == pytest.approx(layout.plan.seconds)
        assert again.fullest.total == layout.plan.fullest.total
        assert again.fits


def test_preheat_s_own_layouts_are_ones_that_it_trains() -> None:
    planner, found = searched("mixtral-8x22b", "64xH100", by="preheat", top=4)
    for layout in found.best:
        problems = check(load("mixtral-8x22b", layout.settings), planner.cluster)
        assert not [problem for problem in problems if problem.rule.startswith("engine.")]


def test_the_best_is_the_best_of_everything_that_can_be_said() -> None:
    """All layouts of a small model on 4 GPUs, tried one by one through the recipe file and `preheat check`."""
    sets = ("batch.global_size=16", "batch.seq_len=512", "schedule.length=100 steps", "schedule.warmup=10 steps")
    sets += ("checkpoint.every=50 steps", "evaluation.every=50 steps")
    planner, found = searched("toy-124m", "4xA100", *sets)
    best = None
    for tensor, pipeline, virtual, micro, sharding, again in product(
        (1, 2, 4), (1, 2, 4), (1, 2, 3), (1, 2, 4, 8, 16), ("optimizer", "full", "none"), ("none", "full")
    ):
        schedule = "interleaved" if virtual > 1 else "1f1b"
        tried = [f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", f"parallel.virtual_pipeline={virtual}"]
        tried += [f"parallel.schedule={schedule}", f"parallel.sharding={sharding}", f"batch.micro_size={micro}"]
        tried += [f"parallel.sequence={str(tensor > 1).lower()}", f"parallel.recompute.kind={again}"]
        loaded = load("toy-124m", (*sets, *tried))
        if any(problem.severity == "error" for problem in check(loaded, planner.cluster)):
            continue
        plan = Planner(loaded.recipe, planner.cluster, planner.program).plan(Way.of(loaded.recipe))
        if plan.fits and (best is None or plan.seconds < best.seconds):
            best = plan
    assert best is not None
    assert found.best[0].plan.seconds <= best.seconds * (1 + 1e-9)


def test_as_little_is_recomputed_as_fits() -> None:
    """One layer less and it no longer fits."""
    planner, found = searched("llama3-70b", "64xA100", "batch.micro_size=2", top=10)
    ways = [layout.plan.way for layout in found.best if layout.plan.way.parallel.recompute.layers]
    assert ways
    for way in ways:
        layers = way.parallel.recompute.layers
        assert layers is not None
        less = Recompute(kind="full", layers=layers - 1) if layers > 1 else Recompute()
        other = Way(way.parallel.model_copy(update={"recompute": less}), way.micro_size)
        assert planner.plan(way).fits
        assert not planner.plan(other).fits


@pytest.mark.parametrize(("gpus", "by"), [("16xH100", "megatron"), ("24xA100", "preheat")], ids=["plain", "some-as-fast-as-others"])
def test_nothing_on_the_front_beats_another(gpus: str, by: str) -> None:
    _, found = searched("llama3-8b", gpus, by=by)
    ends = [(layout.plan.seconds, layout.plan.fullest.total) for layout in found.front]
    assert len(ends) > 3
    assert [end[0] for end in ends] == sorted({end[0] for end in ends})
    assert [end[1] for end in ends] == sorted({end[1] for end in ends}, reverse=True)
    fastest, smallest = ends[0], ends[-1]
    assert fastest[0] == found.best[0].plan.seconds
    assert smallest[1] < fastest[1] / 2


def test_the_recipe_s_own_layout_is_judged_with_the_others() -> None:
    """In a single process a ramp may start below one micro-batch: no combination that is tried says so, and the recipe does."""
    planner, found = searched("tiny", "1xCPU")
    own = planner.plan(Way.of(planner.recipe))
    assert own.fits
    assert found.best[0].plan.seconds <= own.seconds
    assert found.best[0].settings == ()


def test_what_was_left_out_is_counted_and_named() -> None:
    left_out: Counter[str] = Counter()
    loaded = load("toy-124m")
    ways = list(candidates(Planner(loaded.recipe, Cluster.parse("32xH100"), program("megatron")), left_out))
    # 12 heads: of the divisors of 32 these leave heads over.
    assert left_out["tensor does not divide heads, key/value heads or inner width"] == len({8, 16, 32})
    assert {way.parallel.tensor for way in ways} == {1, 2, 4}


def test_tensor_ranks_stay_where_links_are_fast() -> None:
    loaded = load("llama3-8b")
    for gpus, most in (("32xH100", 8), ("32xGB200", 32)):
        ways = candidates(Planner(loaded.recipe, Cluster.parse(gpus), program("megatron")), Counter())
        assert max(way.parallel.tensor for way in ways) == most


def test_experts_are_spread_in_every_way_that_divides() -> None:
    loaded = load("mixtral-8x7b")
    ways = candidates(Planner(loaded.recipe, Cluster.parse("16xH100"), program("megatron")), Counter())
    spread = {(way.parallel.expert, way.parallel.expert_tensor) for way in ways if way.parallel.pipeline == 1 and way.parallel.tensor == 2}
    assert spread == {(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2)}


def test_nothing_fits_is_said(tmp_path: Path) -> None:
    planner, found = searched("llama3-70b", "8xA100-40")
    assert not found.best
    lines = search_lines(planner, found, [], None, Limits())
    assert lines[0].startswith("none of ")
    assert found.left_out["does not fit, even with everything recomputed"] > 0


def test_limits_cut_and_say_what_would_do() -> None:
    planner, found = searched("llama3-8b", "64xH100", top=3)
    run = whole_run(planner, found.best[0].plan)
    assert run.cost is not None
    assert Limits(days=run.days / 2).over(run) is not None
    assert Limits(days=run.days * 2, cost=run.cost * 2).over(run) is None
    assert Limits(cost=run.cost / 2).over(run) is not None
    half = Limits(days=found.best[0].plan.seconds / 86_400 / 2)
    lines = search_lines(planner, found, [], None, half)
    assert "128 GPUs would do" in lines[0]


def test_a_recipe_that_no_layout_mends_is_refused() -> None:
    from preheat.plan import other_layouts_would_do

    cluster = Cluster.parse("64xH100")
    bad_layout, bad_model = load("llama3-8b", ("parallel.tensor=3",)), load("llama3-8b", ("model.heads=31",))
    assert refusals(bad_layout, cluster)
    assert other_layouts_would_do(bad_layout, cluster)
    assert not other_layouts_would_do(bad_model, cluster)
    with pytest.raises(PreheatError, match="no program is called"):
        program("deepspeed")
