"""Bytes on a GPU against figures of published runs, and properties that hold for any layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.arithmetic import RankParameters, rank_states, states
from preheat.arithmetic.memory import MemoryModel, Step
from preheat.arithmetic.programs import LEAST, MEGATRON, PREHEAT
from preheat.recipe import Experts, Model, Optimizer, Parallel, Precision, Recompute, load

BF16 = Precision(compute="bf16")


def test_eighteen_bytes_a_parameter_in_mixed_precision() -> None:
    """bf16 weight 2, fp32 gradient 4, fp32 master weight and two moments 12; fp32 training 16."""
    held = states(RankParameters(1000, 0), BF16, Parallel(), 4, 1)
    assert (held.weights, held.gradients, held.optimizer) == (2000, 4000, 12_000)
    assert states(RankParameters(1000, 0), Precision(compute="fp8"), Parallel(), 4, 1) == held
    assert states(RankParameters(1000, 0), Precision(compute="fp32"), Parallel(), 4, 1).total == 16_000


def test_a_sharded_optimizer_divides_twelve_of_them() -> None:
    """Megatron-LM: 6 + 12 / replicas; 9 with four. FSDP2 shards an fp32 weight, its gradient and two moments, Megatron a bf16 weight."""
    assert states(RankParameters(1000, 0), BF16, Parallel(sharding="optimizer"), 4, 1).total == 9000
    assert states(RankParameters(1000, 0), BF16, Parallel(sharding="full"), 4, 1).total == 4000
    assert states(RankParameters(1000, 0), BF16, Parallel(sharding="full"), 4, 1, program=MEGATRON).total == 4500


def test_offloaded_moments_take_no_room_on_the_gpu() -> None:
    """This engine's masters are its weights and stay; Megatron-LM's --optimizer-cpu-offload takes them along."""
    offloaded = Parallel(offload_optimizer=True)
    assert states(RankParameters(1000, 0), BF16, offloaded, 4, 1).optimizer == 4000
    assert states(RankParameters(1000, 0), BF16, offloaded, 4, 1, program=MEGATRON).optimizer == 0
    assert states(RankParameters(1000, 0), Precision(compute="fp32"), offloaded, 4, 1).total == 8000


def test_fp8_copies_are_kept_by_rows_and_by_columns() -> None:
    """Transformer Engine without fp8 parameters: a copy of each kind for every weight of a layer, none of the tables."""
    held = states(RankParameters(1000, 0, tables=400), Precision(compute="fp8"), Parallel(), 1, 1, program=MEGATRON)
    assert held.weights == 2 * 1000 + 2 * 600


def test_muon_keeps_two_moments_of_what_lies_outside_of_the_layers() -> None:
    assert states(RankParameters(1000, 0, tables=400), BF16, Parallel(), 1, 1, Optimizer(name="muon")).optimizer == 1000 * 8 + 400 * 4


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


SMALL = Model(
    layers=12,
    hidden=512,
    heads=8,
    ffn_hidden=2048,
    vocab_size=50_257,
    activation="gelu",
    norm="layernorm",
    bias=True,
    position="learned",
    max_positions=1024,
    dropout=0.1,
)
SEVEN = Model(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn_hidden=16_384,
    vocab_size=131_073,
    activation="gelu",
    norm="layernorm",
    rope_theta=1e4,
    tied_embeddings=False,
    dropout=0.1,
)
PUBLISHED = [
    (SMALL, 8, Parallel(sharding="optimizer"), (4, 1024, 1), True, 2.555),
    (SMALL, 8, Parallel(sharding="optimizer"), (4, 1024, 1), False, 4.379),
    (SMALL, 8, Parallel(recompute=Recompute(kind="full")), (4, 1024, 1), True, 2.385),
    (SMALL, 8, Parallel(pipeline=2), (4, 1024, 2), True, 2.42),
    (SMALL, 8, Parallel(pipeline=4, virtual_pipeline=3, schedule="interleaved"), (4, 1024, 4), False, 3.875),
    (SMALL, 8, Parallel(tensor=2, pipeline=2), (4, 1024, 4), True, 1.282),
    (SMALL, 8, Parallel(tensor=4, sharding="optimizer"), (4, 1024, 4), True, 0.971),
    (SEVEN, 8, Parallel(pipeline=4, virtual_pipeline=8, schedule="interleaved", sharding="optimizer"), (1, 8192, 4), True, 56.551),
]
"""GPUs, layout, micro-batch, tokens, micro-batches, whether attention is fused, and the peak in GiB that torch allocated on the last rank:
golden values of Megatron-LM's functional tests on H100 (NVIDIA/Megatron-LM at d98e8a64)."""


@pytest.mark.parametrize(("model", "ranks", "parallel", "step", "fused", "gibibytes"), PUBLISHED)
def test_peaks_of_megatron_s_functional_tests(
    model: Model, ranks: int, parallel: Parallel, step: tuple[int, int, int], fused: bool, gibibytes: float
) -> None:
    program = replace(MEGATRON, fused_attention=fused)
    last = MemoryModel(model, BF16, program=program).per_rank(parallel, ranks, Step(*step))[-1]
    assert last.allocated / 2**30 == pytest.approx(gibibytes, rel=0.04)


def test_70b_as_nvidia_lays_it_out_fits_80_gb() -> None:
    """Tensor 4, pipeline 4 x 5, context 2 on 64 H100 at 8,192 tokens ran (NeMo 25.02); Megatron-LM's own estimator says 97 GiB."""
    recipe = load("llama3-70b").recipe
    fullest = MemoryModel(recipe.model, BF16, program=MEGATRON).fullest(recipe.parallel, 64, Step(1, 8192, 16))
    assert fullest.fits(round(79.1 * 2**30))


def test_the_guide_s_405b_has_no_room_on_128_gpus() -> None:
    model = load("llama3.1-405b").recipe.model
    parallel = Parallel(tensor=8, pipeline=8, context=2, pipeline_layers=(15, *[16] * 6, 15), sharding="optimizer", sequence=True)
    for program in (MEGATRON, PREHEAT):
        fullest = MemoryModel(model, BF16, program=program).fullest(parallel, 128, Step(1, 4096, 64))
        assert fullest.total > 80 * 2**30
        assert dict(fullest.parts())["optimizer"] == pytest.approx(38e9, rel=0.02)  # 6.3B x 12 / 2


LAYOUTS = st.builds(
    Parallel,
    tensor=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2, 4]),
    sequence=st.booleans(),
    sharding=st.sampled_from(["none", "optimizer", "full"]),
    replicate=st.sampled_from([1, 2]),
    recompute=st.builds(Recompute, kind=st.sampled_from(["none", "selective", "full"])),
    offload_optimizer=st.booleans(),
    context_exchange=st.sampled_from(["gather", "ring"]),
).flatmap(
    lambda parallel: st.sampled_from(
        [("1f1b", 1, 1), ("1f1b", 4, 1), ("interleaved", 4, 2), ("zero-bubble-v", 2, 2), ("dualpipe", 4, 1), ("dualpipe-v", 2, 2)]
    ).map(lambda how: parallel.model_copy(update=dict(zip(("schedule", "pipeline", "virtual_pipeline"), how, strict=True))))
)
MODELS = [
    SMALL.model_copy(update={"layers": 8}),
    Model(
        layers=8, hidden=256, heads=4, ffn_hidden=512, vocab_size=1000, rope_theta=1e4, experts=Experts(count=8, active=2, ffn_hidden=128)
    ),
]


@settings(max_examples=200, deadline=None)
@given(LAYOUTS, st.sampled_from(MODELS), st.sampled_from([PREHEAT, MEGATRON]), st.sampled_from(["bf16", "fp32", "fp8"]))
def test_parts_add_up_and_nothing_goes_below_the_least(parallel: Parallel, model: Model, program: object, compute: str) -> None:
    precision, step = Precision.model_validate({"compute": compute}), Step(2, 512, 8)
    estimate = MemoryModel(model, precision, program=program)  # type: ignore[arg-type]
    per_rank = estimate.per_rank(parallel, 64, step)
    assert len(per_rank) == parallel.pipeline
    for memory, least in zip(per_rank, MemoryModel(model, precision, program=LEAST).per_rank(parallel, 64, step), strict=True):
        assert sum(size for _, size in memory.parts()) == memory.total == memory.allocated + memory.fragmentation + memory.context
        assert all(size >= 0 for _, size in memory.parts())
        assert least.states + least.activations <= memory.states + memory.activations + memory.gathered
    assert estimate.fullest(parallel, 64, step).total == max(memory.total for memory in per_rank)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"recompute": Recompute(kind="full")}, {"recompute": Recompute(kind="selective")}),
        ({"sharding": "full"}, {"sharding": "optimizer"}),
        ({"sharding": "optimizer"}, {"sharding": "none"}),
        ({"sharding": "full"}, {"sharding": "full", "replicate": 2}),
        ({"tensor": 4, "sequence": True}, {"tensor": 4}),
        ({"tensor": 4}, {"tensor": 2}),
        ({"context": 2}, {}),
        ({"offload_optimizer": True}, {}),
        (
            {"pipeline": 2, "virtual_pipeline": 2, "schedule": "zero-bubble-v"},
            {"pipeline": 2, "virtual_pipeline": 2, "schedule": "dualpipe-v"},
        ),
    ],
)
@pytest.mark.parametrize("program", [PREHEAT, MEGATRON])
def test_memory_moves_as_it_must(less: dict[str, object], more: dict[str, object], program: object) -> None:
    estimate = MemoryModel(load("llama3-8b").recipe.model, BF16, program=program)  # type: ignore[arg-type]
    smaller, larger = (estimate.fullest(Parallel.model_validate(values), 64, Step(1, 8192, 16)).total for values in (less, more))
    assert smaller < larger
