"""Each advice against the same change written into the recipe and planned by itself."""

import pytest

from preheat.hardware import Cluster
from preheat.plan import Advised, LayoutPlan, Planner, Way, advise, program
from preheat.recipe import load

SHORT = ("batch.micro_size=2", "parallel.sharding=none")


def advised(name: str, gpus: str, *sets: str, by: str = "megatron") -> tuple[LayoutPlan, Advised]:
    loaded = load(name, sets)
    planner = Planner(loaded.recipe, Cluster.parse(gpus), program(by))
    own = planner.plan(Way.of(loaded.recipe))
    return own, advise(planner, loaded, own)


@pytest.mark.parametrize(
    ("name", "gpus", "sets"),
    [
        ("llama3-70b", "64xH100", ("parallel.recompute.kind=full",)),
        ("llama3-8b", "64xH100", SHORT),
        ("gpt3-175b", "512xA100", ("parallel.sequence=false",)),
        ("llama3.1-405b", "8192xH100", ()),
    ],
)
def test_gains_are_what_the_changed_recipe_comes_to(name: str, gpus: str, sets: tuple[str, ...]) -> None:
    own, found = advised(name, gpus, *sets)
    trials = [trial for trial in (*found.memory, *found.speed) if trial.settings and "host" not in trial.what]
    assert trials
    for trial in trials:
        recipe = load(name, (*sets, *trial.settings)).recipe
        plan = Planner(recipe, Cluster.parse(gpus), program("megatron")).plan(Way.of(recipe))
        assert plan.fullest.total == trial.memory
        assert plan.fits == trial.fits
        assert plan.main.step.seconds == pytest.approx(trial.seconds)
        assert 1 - plan.seconds / own.seconds == pytest.approx(trial.speedup, abs=1e-9)


def test_short_of_memory_is_told_what_takes_less() -> None:
    own, found = advised("llama3-8b", "64xH100", *SHORT)
    assert not own.fits
    assert found.memory_short
    fitting = [trial for trial in found.memory if trial.fits]
    assert [trial.fits for trial in found.memory] == sorted((trial.fits for trial in found.memory), reverse=True)
    assert fitting[0].speedup == max(trial.speedup for trial in fitting)
    told = " ".join(trial.what for trial in found.memory)
    for word in ("expandable_segments", "recomputed", "smaller micro-batches", "sharded", "host"):
        assert word in told, word


def test_memory_is_no_matter_where_it_suffices() -> None:
    _, found = advised("toy-124m", "4xA100")
    assert not found.memory_short
    assert found.memory == ()


def test_too_much_tensor_parallelism_is_seen() -> None:
    """An 8B model on 8 tensor ranks joined by PCIe: exchange takes most of a step, and fewer ranks come first."""
    _, found = advised("llama3-8b", "8xA100-PCIe", "parallel.tensor=8", "parallel.sequence=true", "parallel.context=1")
    assert found.exchange_share > 0.3
    first = next(trial for trial in found.speed if trial.settings)
    assert "tensor-parallel" in first.what
    assert first.speedup > 0.1


def test_a_bubble_is_answered_by_interleaving() -> None:
    sets = ("batch.global_size=16", "schedule.length=1T tokens", "parallel.virtual_pipeline=1", "parallel.schedule=1f1b")
    own, found = advised("llama3-70b", "64xH100", *sets)
    assert own.main.bubble > 0.2
    [trial] = [trial for trial in found.speed if trial.what.startswith("interleaved")]
    assert trial.speedup > 0.1


def test_a_faster_network_helps_only_where_there_is_one() -> None:
    _, one_server = advised("llama3-8b", "8xH100")
    assert not any("network" in trial.what for trial in one_server.speed)
    _, spread = advised("llama3-8b", "64xH100", "parallel.tensor=16", "parallel.sequence=true", "parallel.context=1", "model.kv_heads=16")
    [network] = [trial for trial in spread.speed if "network" in trial.what]
    assert network.speedup > 0.01


def test_moments_on_the_host_cost_the_way_there_and_back() -> None:
    """8 bytes a parameter each way at 20 GB/s: 8.03B whole parameters on each GPU take 2 x 8.03e9 x 8 / 20e9 = 6.4 s."""
    sets = ("parallel.sharding=none", "parallel.recompute.kind=full", "optimizer.state_precision=fp32", "parallel.context=1")
    own, found = advised("llama3-8b", "8xH100", *sets, by="preheat")
    [trial] = [trial for trial in found.memory if "host" in trial.what]
    assert trial.seconds - own.main.step.seconds == pytest.approx(6.42, rel=0.01)
    assert own.fullest.total - trial.memory == pytest.approx(8 * 8.03e9, rel=0.01)
