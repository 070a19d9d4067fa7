"""Days, dollars, failures, checkpoints and data of whole runs: against published cases and sums done by hand."""

from math import isclose

import pytest

from preheat.hardware import Cluster
from preheat.plan import LayoutPlan, Planner, Way, program, whole_run
from preheat.plan.run import best_interval, expected_loss
from preheat.recipe import load

TOY = ("batch.global_size=64", "schedule.length=1000 steps", "schedule.warmup=10 steps", "checkpoint.every=100 steps")


def planned(name: str, gpus: str, *sets: str) -> tuple[Planner, LayoutPlan]:
    recipe = load(name, sets).recipe
    planner = Planner(recipe, Cluster.parse(gpus), program("megatron"))
    return planner, planner.plan(Way.of(recipe))


@pytest.mark.parametrize(
    ("save", "between", "recovery", "step", "steps"),
    [
        (10.0, 6000.0, 600.0, 15.0, 24),  # changlan.org, "Checkpointing at scale"
        (40.0, 7 * 86_400.0, 0.0, 105.0, 66),  # BLOOM: 40 s a save, a failure a week, 105 s a step
    ],
)
def test_intervals_of_published_examples(save: float, between: float, recovery: float, step: float, steps: int) -> None:
    assert int(best_interval(save, between, recovery) / step) == steps


def test_no_other_interval_loses_less() -> None:
    """Time for each second of use: an interval with its save, and of one in so many intervals half is lost."""

    def needed(interval: float, save: float = 60.0, between: float = 11_160.0, recovery: float = 600.0) -> float:
        return interval / (interval - save) * (1 + interval / (2 * (between + recovery)))

    best = best_interval(60.0, 11_160.0, 600.0)
    assert needed(best) < min(needed(best * factor) for factor in (0.5, 0.8, 0.95, 0.99, 1.01, 1.05, 1.25, 2.0))


def test_llama_s_failures() -> None:
    """54 days of 16,384 H100 had 419 unexpected interruptions (arXiv 2407.21783, table 5): one in 3.1 hours."""
    planner, plan = planned("llama3.1-405b", "16384xH100")
    run = whole_run(planner, plan)
    assert isclose(run.saving.failures / run.days * 54, 419, rel_tol=1e-9)
    assert isclose(run.saving.mean_time_between / 3600, 3.09, rel_tol=2e-3)
    assert run.saving.goodput > 0.9  # the paper: more than 90 % effective training time


def test_days_and_dollars_are_sums_of_steps() -> None:
    planner, plan = planned("toy-124m", "4xA100", *TOY)
    run = whole_run(planner, plan)
    [phase] = plan.phases
    assert phase.segment.steps == 1000
    assert isclose(run.days * 86_400 * run.saving.goodput, 1000 * phase.step.seconds)
    assert run.cost is not None
    assert isclose(run.cost, run.days * 24 * 4 * 1.30)


def test_each_step_of_a_ramp_has_its_own_bubble() -> None:
    """p = 4 stages, m micro-batches: (p - 1) / m of the time of the micro-batches is waited (arXiv 2104.04473)."""
    sets = ("parallel.pipeline=4", "batch.micro_size=8", "batch.global_size=64")
    ramp = 'batch.ramp=[{at="0 tokens", size=16}, {at="100M tokens", size=64}]'
    _, plan = planned("toy-124m", "4xA100", *sets, ramp)
    first, second = plan.phases
    assert (first.micro_batches, second.micro_batches) == (2, 8)
    assert isclose(first.step.parts["bubble"], second.step.parts["bubble"])
    assert first.bubble > 1.5 * second.bubble
    assert first.segment.end.tokens == second.segment.start.tokens >= 100_000_000


def test_a_goodput_by_hand() -> None:
    """Saves of 10 s that training waits for, every 100 steps; nearly no failures on 4 GPUs: one in 12,669 hours."""
    planner, plan = planned("toy-124m", "4xA100", *TOY)
    run = whole_run(planner, plan, save_wait=10.0)
    between = 100 * plan.main.step.seconds
    flush = run.saving.bytes / 4 / (2e12 / 24_000)
    lost = 10 / between + (between / 2 + flush + 600) / (50_677 / 4 * 3600)
    assert isclose(run.saving.goodput_of_recipe, 1 / (1 + lost), rel_tol=1e-6)
    assert run.saving.goodput > run.saving.goodput_of_recipe


def test_checkpoints_and_tokens_on_disk() -> None:
    """124,439,808 parameters x (4 + 4 + 4) bytes, 2 kept; 65,536,000 tokens of 2 bytes, for the vocabulary is below 65,536."""
    planner, plan = planned("toy-124m", "4xA100", *TOY)
    run = whole_run(planner, plan)
    assert run.saving.bytes == 124_439_808 * 12
    assert run.checkpoint_disk == 2 * run.saving.bytes
    assert run.data_disk == 1000 * 64 * 1024 * 2
    kept = whole_run(*planned("toy-124m", "4xA100", *TOY, "checkpoint.keep_every=25%", "checkpoint.keep_best=3"))
    assert kept.checkpoint_disk == (2 + 4 + 3) * kept.saving.bytes


def test_passes_over_sources() -> None:
    """Of 65,536,000 tokens three quarters from one source of 10M: 4.9 passes; each token is on disk once."""
    planner, plan = planned("toy-124m", "4xA100", *TOY, 'stage=[{name="main", mix={web=3, code=1}}]')
    run = whole_run(planner, plan, {"web": 10_000_000, "code": 10**9})
    web, code = run.sources["web"], run.sources["code"]
    assert web.epochs is not None
    assert code.epochs is not None
    assert (round(web.epochs, 4), round(code.epochs, 6)) == (4.9152, 0.016384)
    assert run.data_disk == (10_000_000 + 16_384_000) * 2
    assert whole_run(planner, plan).sources["web"].epochs is None


def test_chinchilla_s_own_loss() -> None:
    """70B parameters on 1.4T tokens: 1.69 + 0.083 + 0.163 by the paper's fit, 1.817 + 0.082 + 0.075 by the other one."""
    band = expected_loss(70_000_000_000, 1_400_000_000_000)
    assert round(band.low, 2) == 1.94
    assert round(band.high, 2) == 1.97
    assert band.extrapolated
    assert not expected_loss(124_439_808, 10_000_000_000).extrapolated


def test_no_loss_is_promised_of_experts_and_of_runs_below_the_fits() -> None:
    assert whole_run(*planned("mixtral-8x7b", "64xH100")).loss is None
    assert whole_run(*planned("tiny", "1xA100")).loss is None
    assert whole_run(*planned("toy-124m", "4xA100")).loss is not None


def test_a_gpu_without_a_price_has_no_cost() -> None:
    run = whole_run(*planned("toy-124m", "4xA100-PCIe"))
    assert run.cost is None
    assert run.days > 0
