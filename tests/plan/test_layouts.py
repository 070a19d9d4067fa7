"""Layouts that are known to fit or not, and the shape of what a plan says of them."""

from math import isclose
from pathlib import Path

import pytest

from preheat.errors import PreheatError
from preheat.hardware import Cluster
from preheat.plan import LayoutPlan, Planner, Way, layout_json, program, refusals, whole_run
from preheat.plan.picture import memory_bars, time_bars
from preheat.plan.planner import number_format
from preheat.recipe import Precision, load

GUIDE_405B = """extends = "llama3.1-405b"
name = "guide-405b"
[batch]
seq_len = 4096
[schedule]
length = "15T tokens"
decay = "cosine"
final_lr = 8e-6
segment = []
[[stage]]
name = "main"
mix = { general = 1 }
[parallel]
tensor = 8
pipeline = 8
pipeline_layers = [15, 16, 16, 16, 16, 16, 16, 15]
context = 2
"""


def own(name: str, gpus: str, *sets: str, by: str = "megatron") -> LayoutPlan:
    recipe = load(name, sets).recipe
    return Planner(recipe, Cluster.parse(gpus), program(by)).plan(Way.of(recipe))


@pytest.fixture
def guide(tmp_path: Path) -> str:
    file = tmp_path / "guide.toml"
    file.write_text(GUIDE_405B)
    return str(file)


def test_the_guide_s_128_gpus_are_half_of_what_its_layout_takes(guide: str) -> None:
    """Tensor 8 x pipeline 8 x data 2 x context 2 is 256: with pipeline 16 the product is so without replicas."""
    loaded = load(guide, ("parallel.pipeline=16", "parallel.pipeline_layers=[7,8,8,8,8,8,8,8,8,8,8,8,8,8,8,7]"))
    [problem] = refusals(loaded, Cluster.parse("128xH100"))
    assert problem.rule == "layout.ranks"
    assert "= 256" in problem.got


def test_and_on_128_gpus_without_replicas_it_does_not_fit(guide: str) -> None:
    """405.9B / 64 x 12 bytes of master weights and moments over context 2, and 6 more of weights and gradients: 71 GB of state."""
    assert not refusals(load(guide), Cluster.parse("128xH100"))
    plan = own(guide, "128xH100")
    assert not plan.fits
    assert plan.fullest.states > 405.9e9 / 64 * (6 + 12 / 2)
    assert own(guide, "1024xH100").fullest.optimizer < plan.fullest.optimizer / 7


def test_nvidia_s_70b_fits() -> None:
    """TP4 PP4 CP2 on 64 H100 of 80 GB is a published recipe that runs."""
    assert own("llama3-70b", "64xH100", "parallel.tensor=4", "parallel.pipeline=4", "parallel.context=2").fits


def test_the_toy_takes_hours_and_tens_of_dollars() -> None:
    for by in ("megatron", "preheat"):
        recipe = load("toy-124m").recipe
        planner = Planner(recipe, Cluster.parse("4xA100"), program(by))
        run = whole_run(planner, planner.plan(Way.of(recipe)))
        assert 1 < run.days * 24 < 12
        assert run.cost is not None
        assert 10 < run.cost < 100


@pytest.mark.parametrize(("name", "gpus"), [("llama3-70b", "64xH100"), ("mixtral-8x7b", "64xH100"), ("toy-124m", "4xA100")])
def test_breakdowns_add_up(name: str, gpus: str) -> None:
    recipe = load(name).recipe
    planner = Planner(recipe, Cluster.parse(gpus), program("megatron"))
    plan = planner.plan(Way.of(recipe))
    found = layout_json(plan, whole_run(planner, plan))
    memory = found["memory"]
    assert isclose(sum(memory["breakdown"].values()), memory["max_gib"])
    assert len(memory["per_stage"]) == recipe.parallel.pipeline
    assert max(stage["total_gib"] for stage in memory["per_stage"]) == memory["max_gib"]
    assert isclose(sum(found["step_time_breakdown"].values()), found["step_time_s"])
    tokens = recipe.batch.global_size * recipe.batch.seq_len
    assert isclose(found["throughput"]["tokens_per_s"], tokens / found["step_time_s"])


def test_mfu_and_hfu_are_flops_over_the_peak() -> None:
    """Of 8B at 8,192 tokens with everything recomputed: 51.5 GFLOP a token (hand calculation), and about a third of it again."""
    step = own("llama3-8b", "64xH100", "parallel.recompute.kind=full").main.step
    assert isclose(step.mfu(), 51.5e9 * step.tokens_per_s_per_gpu / 989.4e12, rel_tol=2e-3)
    assert 1.25 < step.hfu / step.mfu() < 4 / 3


def test_auto_is_what_the_gpu_multiplies() -> None:
    assert number_format(Precision(), Cluster.parse("1xA100").gpu) == "bf16"
    assert number_format(Precision(), Cluster.parse("1xV100").gpu) == "fp32"
    assert number_format(Precision(compute="fp8", fp8_recipe="mxfp8"), Cluster.parse("1xB200").gpu) == "mxfp8"
    with pytest.raises(PreheatError, match="A100-80 has no peak for fp8"):
        own("llama3-8b-fp8", "64xA100")


def test_a_stage_with_a_context_size_of_its_own_counts() -> None:
    """Llama 3's last stage has 16 context ranks for 131,072 tokens: as many tokens a rank as the first has with one."""
    plan = own("llama3.1-405b", "8192xH100")
    by_name = {phase.segment.stage.name: phase for phase in plan.phases}
    assert by_name["context-128k"].micro_batches == 128 // (8192 // (8 * 16 * 16))
    assert isclose(by_name["context-128k"].memory.activations, by_name["main-16m"].memory.activations, rel_tol=0.02)


def test_the_bars_show_what_the_numbers_say() -> None:
    plan = own("llama3-70b", "64xH100")
    lines = memory_bars(plan)
    assert len([line for line in lines if line.startswith("rank")]) == 4
    first = lines[0]
    cells = first[first.index("w") : first.index("|")]
    share = cells.count("a") / 60 * max(plan.gpu.usable, plan.fullest.total) / plan.per_rank[0].activations
    assert 0.9 < share < 1.1
    assert "<- fullest" in lines[plan.fullest.rank]
    rows = time_bars(plan.main.step)
    assert rows[0].startswith("matrix products")
    assert rows[0].endswith("#" * 24)


def test_many_ranks_are_shown_by_some() -> None:
    plan = own("llama3.1-405b", "16384xH100", "parallel.pipeline=32", f"parallel.pipeline_layers=[3,{','.join(['4'] * 30)},3]")
    lines = memory_bars(plan)
    assert len([line for line in lines if line.startswith("rank")]) < 12
    assert any("not shown" in line for line in lines)
