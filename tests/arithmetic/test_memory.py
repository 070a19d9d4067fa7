"""Bytes of weights, gradients and optimizer state against figures of published runs."""

import pytest

from preheat.arithmetic import RankParameters, rank_states, states
from preheat.arithmetic.programs import MEGATRON
from preheat.recipe import Optimizer, Parallel, Precision, load

BF16 = Precision(compute="bf16")


def test_eighteen_bytes_a_parameter_in_mixed_precision() -> None:
    """bf16 weight 2, fp32 gradient 4, fp32 master weight and two moments 12; fp32 training 16."""
    held = states(RankParameters(1000, 0), BF16, Parallel(), 4, 1)
    assert (held.weights, held.gradients, held.optimizer) == (2000, 4000, 12_000)
    assert states(RankParameters(1000, 0), Precision(compute="fp8"), Parallel(), 4, 1) == held
    assert states(RankParameters(1000, 0), Precision(compute="fp32"), Parallel(), 4, 1).total == 16_000


def test_a_sharded_optimizer_divides_twelve_of_them() -> None:
    """Megatron-LM: 6 + 12 / replicas; 9 with four. FSDP2 shards an fp32 weight, its gradient and two moments; Megatron's also a bf16 weight."""
    assert states(RankParameters(1000, 0), BF16, Parallel(sharding="optimizer"), 4, 1).total == 9000
    assert states(RankParameters(1000, 0), BF16, Parallel(sharding="full"), 4, 1).total == 4000
    assert states(RankParameters(1000, 0), BF16, Parallel(sharding="full"), 4, 1, program=MEGATRON).total == 4500


@pytest.mark.parametrize(
    ("name", "state", "moments"), [("adamw", "fp32", 8), ("adamw", "bf16", 4), ("muon", "fp32", 4), ("muon", "bf16", 2)]
)
def test_moments_are_as_many_and_as_wide_as_the_optimizer_says(name: str, state: str, moments: int) -> None:
    """AdamW has two (arXiv 1711.05101, algorithm 2), Muon one (arXiv 2502.16982, section 2.1); DeepSeek-V3 keeps them in bf16."""
    optimizer = Optimizer.model_validate({"name": name, "state_precision": state})
    assert states(RankParameters(1000, 0), BF16, Parallel(), 1, 1, optimizer).optimizer == 1000 * (4 + moments)
    assert states(RankParameters(1000, 0), Precision(compute="fp32"), Parallel(), 1, 1, optimizer).optimizer == 1000 * moments


def test_experts_are_divided_over_their_own_replicas() -> None:
    held = states(RankParameters(1000, 1000), BF16, Parallel(sharding="optimizer"), 4, 2)
    assert held.total == 1000 * (6 + 3) + 1000 * (6 + 6)


def test_405b_on_128_gpus_leaves_nothing_of_80_gb() -> None:
    """6.34B parameters a GPU x 12 bytes = 76 GB with the optimizer over context 2 (the guide calls this layout fit)."""
    model = load("llama3.1-405b").recipe.model
    parallel = Parallel(tensor=8, pipeline=8, context=2, pipeline_layers=(15, *[16] * 6, 15), sharding="optimizer")
    sizes = [held.total / 1e9 for held in rank_states(model, parallel, BF16, 128)]
    assert sum(sizes) / 8 == pytest.approx(76.1, abs=0.2)
    assert max(sizes) == pytest.approx(76.5, abs=0.1)


@pytest.mark.parametrize(("sharding", "gigabytes"), [("none", 79.4), ("optimizer", 39.7)])
def test_70b_on_64_gpus_takes_more_than_30_gb(sharding: str, gigabytes: float) -> None:
    """70.55B / 16 = 4.41B parameters a GPU; 18 bytes each, or 9 with the optimizer over 2 replicas x context 2."""
    model = load("llama3-70b").recipe.model
    parallel = Parallel(tensor=4, pipeline=4, context=2, sharding=sharding)  # type: ignore[arg-type]
    sizes = [held.total / 1e9 for held in rank_states(model, parallel, BF16, 64)]
    assert sum(sizes) / 4 == pytest.approx(gigabytes, rel=2e-3)


def test_mixtrals_weights_by_expert_parallelism() -> None:
    """90.2 of 93.4 GB of bf16 weights are experts: 22.5 + 3.2 GB with expert 4, 11.3 + 3.2 GB with expert 8 (the guide: 14 GB)."""
    model = load("mixtral-8x7b").recipe.model
    for expert, gigabytes in [(1, 93.4), (4, 22.5 + 3.2), (8, 11.3 + 3.2)]:
        held = rank_states(model, Parallel(expert=expert), BF16, expert)[0]
        assert held.weights / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_groups_that_hold_everything_shard_less() -> None:
    """8B on 64 GPUs, everything sharded: 16 bytes / 64 a parameter; in 8 groups of 8, 16 bytes / 8."""
    model = load("llama3-8b").recipe.model
    for groups, copies in ((1, 64), (8, 8)):
        held = rank_states(model, Parallel(sharding="full", replicate=groups), BF16, 64)[0]
        assert held.total == pytest.approx(8_030_261_248 * 16 / copies, rel=1e-6)
