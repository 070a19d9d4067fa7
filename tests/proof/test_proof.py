"""Plans against the real engine at more ranks than any test machine has."""

import pytest

from preheat.errors import PreheatError, RunFailed
from preheat.proof import Figure, Proof, RankProof, prove
from preheat.recipe import Recompute, load

SMALL = ("model.layers=4", "batch.global_size=4096", "schedule.length=100 steps", "schedule.warmup=10 steps")


def test_a_recipe_of_the_catalog_at_its_own_size() -> None:
    """405,853,388,800 parameters over tensor 8, pipeline 16 and 64 replicas that shard them: 8,192 ranks."""
    proof = prove(load("llama3.1-405b").recipe, 8192)
    assert proof.agrees
    assert [rank.rank for rank in proof.ranks] == [0, 15 * 512]
    for rank in proof.ranks:
        assert rank.parameters.built == pytest.approx(405_853_388_800 / 8192, rel=0.04)  # the ends have a layer less, and a table more
        assert rank.kept is not None
        assert abs(rank.kept.apart) < 0.01


@pytest.mark.parametrize(
    ("name", "sets", "world"),
    [
        ("toy-124m", ("parallel.sharding=full",), 16),
        ("llama3-8b", ("parallel.tensor=4", "parallel.sequence=true", "parallel.context=2"), 64),
        ("toy-124m", ("parallel.recompute.kind=full", "parallel.recompute.layers=2"), 8),
    ],
    ids=["sharded", "tensor-context", "recomputed"],
)
def test_axes_of_a_small_model(name: str, sets: tuple[str, ...], world: int) -> None:
    proof = prove(load(name, (*SMALL, *sets)).recipe, world)
    [rank] = proof.ranks
    assert rank.kept is not None
    assert proof.agrees, proof.lines()


def test_products_that_the_engine_does_not_do_are_refused_before_it_is_built() -> None:
    with pytest.raises(PreheatError, match='fp8_recipe = "blockwise"'):
        prove(load("deepseek-v3").recipe, 2048)


def test_a_wrong_plan_is_not_proven() -> None:
    right = RankProof(0, 0, Figure(1000, 1000), Figure(2000, 2010), "")
    assert Proof(8, (right,)).agrees
    half = RankProof(0, 0, Figure(1000, 500), None, "not run")
    proof = Proof(8, (right, half))
    assert not proof.agrees
    assert "NOT AS PLANNED" in proof.lines()[0]
    assert "not measured: not run" in proof.lines()[2]


def test_a_rank_that_can_t_be_built_is_a_failure() -> None:
    recipe = load("toy-124m").recipe
    broken = recipe.model_copy(update={"parallel": recipe.parallel.model_copy(update={"tensor": 5, "recompute": Recompute()})})
    with pytest.raises(RunFailed, match="could not be built"):
        prove(broken, 5)
