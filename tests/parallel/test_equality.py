"""Every layout comes to what one process comes to: loss, gradient norm, weights, router state and score, rank by rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Apart
from layout_run import MODELS, Bars, Training, assert_equal, train
from rank_pool import RankFailed, RankPool

from preheat.arithmetic import layout
from preheat.recipe import MultiTokenPrediction, Optimizer, Parallel, Recompute, WidthTransfer

ALL = ("dense", "gpt2", "mixtral", "deepseek")
PLAIN, SPARSE = ALL[:2], ALL[2:]
SP = {"tensor": 2, "sequence": True}
V = {"pipeline": 2, "virtual_pipeline": 2}
FULL = Recompute(kind="full")
SELECTIVE = Recompute(kind="selective")
TWO_AHEAD = MultiTokenPrediction(layers=2, loss_weight=0.3)

Layouts = dict[str, tuple[int, dict[str, Any], tuple[str, ...]]]
ALONE: Layouts = {
    "tensor": (2, {"tensor": 2}, PLAIN),
    "sequence": (2, SP, ALL),
    "sequence-4": (4, {**SP, "tensor": 4}, ("dense", "deepseek")),
    "1f1b": (2, {"pipeline": 2}, ALL),
    "1f1b-4": (4, {"pipeline": 4}, ("gpt2", "deepseek")),
    "uneven": (2, {"pipeline": 2, "pipeline_layers": (1, 3)}, ("gpt2", "deepseek")),
    "embedding-alone": (2, {"pipeline": 2, "pipeline_layers": (0, 4)}, ("gpt2", "deepseek")),
    "head-alone": (2, {"pipeline": 2, "pipeline_layers": (4, 0)}, ("gpt2", "deepseek")),
    "interleaved": (2, {**V, "schedule": "interleaved"}, ALL),
    "interleaved-uneven": (2, {**V, "schedule": "interleaved", "pipeline_layers": (0, 2, 1, 1)}, ("gpt2", "deepseek")),
    "zero-bubble": (2, {**V, "schedule": "zero-bubble"}, ALL),
    "zero-bubble-1": (2, {"pipeline": 2, "schedule": "zero-bubble"}, ("dense",)),
    "zero-bubble-v": (2, {**V, "schedule": "zero-bubble-v"}, ALL),
    "dualpipe-v": (2, {**V, "schedule": "dualpipe-v"}, ALL),
    "gather": (2, {"context": 2}, ALL),
    "ring": (2, {"context": 2, "context_exchange": "ring"}, ALL),
    "ulysses": (2, {"context": 2, "context_exchange": "ulysses"}, ALL),
    "gather-4": (4, {"context": 4}, ("dense",)),
    "ring-4": (4, {"context": 4, "context_exchange": "ring"}, ("dense", "deepseek")),
    "ulysses-4": (4, {"context": 4, "context_exchange": "ulysses"}, ("dense",)),
    "expert": (2, {"expert": 2}, SPARSE),
    "expert-4": (4, {"expert": 4}, SPARSE),
    "expert-tensor": (2, {"expert_tensor": 2}, SPARSE),
    "expert-expert-tensor": (4, {"expert": 2, "expert_tensor": 2}, SPARSE),
    "replicas": (2, {}, ALL),
    "optimizer": (2, {"sharding": "optimizer"}, ALL),
    "full": (2, {"sharding": "full"}, ALL),
    "hybrid": (4, {"sharding": "full", "replicate": 2}, ALL),
    "hybrid-optimizer": (4, {"sharding": "optimizer", "replicate": 2}, ("dense",)),
    "recompute": (2, {"recompute": FULL}, ALL),
    "recompute-some": (2, {**V, "schedule": "interleaved", "recompute": Recompute(kind="full", layers=1)}, ("dense", "deepseek")),
    "recompute-selective": (2, {"recompute": SELECTIVE}, ALL),
}
TOGETHER: Layouts = {
    "sequence+1f1b": (4, {**SP, "pipeline": 2}, ALL),  # Mixtral 8x22B, Llama 3.1 405B
    "tensor+1f1b+optimizer": (8, {"tensor": 2, "pipeline": 2, "sharding": "optimizer"}, ("gpt2",)),  # GPT-3 175B
    "tensor+embedding-alone": (4, {"tensor": 2, "pipeline": 2, "pipeline_layers": (0, 4)}, ("dense",)),
    "sequence+interleaved": (4, {**SP, **V, "schedule": "interleaved"}, ("gpt2",)),  # GPT-3 175B by Megatron
    "sequence+gather": (4, {**SP, "context": 2}, ("dense", "deepseek")),
    "sequence+ring": (4, {**SP, "context": 2, "context_exchange": "ring"}, ("dense", "deepseek")),
    "sequence+ulysses": (4, {**SP, "context": 2, "context_exchange": "ulysses"}, ("dense", "deepseek")),
    "sequence+optimizer": (4, {**SP, "sharding": "optimizer"}, ("gpt2", "mixtral")),  # GPT-3 15B
    "sequence+full": (4, {**SP, "sharding": "full"}, ("dense",)),
    "sequence+expert": (2, {**SP, "expert": 2}, SPARSE),
    "sequence+expert-tensor": (2, {**SP, "expert_tensor": 2}, SPARSE),
    "1f1b+gather": (4, {"pipeline": 2, "context": 2}, ("gpt2", "deepseek")),
    "1f1b+ring": (4, {"pipeline": 2, "context": 2, "context_exchange": "ring"}, ("dense", "deepseek")),
    "zero-bubble-v+ulysses": (4, {**V, "schedule": "zero-bubble-v", "context": 2, "context_exchange": "ulysses"}, ("dense",)),
    "1f1b+optimizer": (4, {"pipeline": 2, "sharding": "optimizer"}, ("gpt2", "deepseek")),
    "1f1b+full": (4, {"pipeline": 2, "sharding": "full"}, ("gpt2", "deepseek")),
    "1f1b+expert": (4, {"pipeline": 2, "expert": 2}, SPARSE),
    "zero-bubble+expert-tensor": (4, {**V, "schedule": "zero-bubble", "expert_tensor": 2}, ("deepseek",)),
    "zero-bubble-v+recompute": (2, {**V, "schedule": "zero-bubble-v", "recompute": FULL}, ("deepseek",)),
    "dualpipe-v+recompute": (2, {**V, "schedule": "dualpipe-v", "recompute": SELECTIVE}, ("dense",)),
    "dualpipe-v+recompute-whole": (2, {**V, "schedule": "dualpipe-v", "recompute": FULL}, SPARSE),  # some micro-batches twice, some once
    "gather+optimizer": (4, {"context": 2, "sharding": "optimizer"}, ("dense", "deepseek")),  # Llama 3 8B
    "gather+full": (4, {"context": 2, "sharding": "full"}, ("gpt2",)),
    "gather+expert": (2, {"context": 2, "expert": 2}, SPARSE),
    "expert+optimizer": (4, {"expert": 2, "sharding": "optimizer"}, SPARSE),
    "expert+full+recompute": (4, {"expert": 2, "sharding": "full", "recompute": FULL}, SPARSE),
    "expert-4+hybrid": (4, {"expert": 4, "sharding": "full", "replicate": 2}, ("mixtral",)),
    "1f1b+expert+optimizer": (8, {"pipeline": 2, "expert": 2, "sharding": "optimizer"}, SPARSE),  # Mixtral 8x7B
    "dualpipe-v+expert+optimizer": (4, {**V, "schedule": "dualpipe-v", "expert": 2, "sharding": "optimizer"}, ("deepseek",)),  # DeepSeek-V3
    "1f1b+expert+full": (8, {"pipeline": 2, "expert": 2, "sharding": "full"}, ("deepseek",)),
    "sequence+1f1b+gather": (8, {**SP, "pipeline": 2, "context": 2}, ("dense", "gpt2")),  # Llama 3.1 405B, last stages
    "sequence+interleaved+gather": (8, {**SP, **V, "schedule": "interleaved", "context": 2}, ("dense",)),  # Llama 3 70B
    "sequence+zero-bubble-v+optimizer": (8, {**SP, **V, "schedule": "zero-bubble-v", "sharding": "optimizer"}, ("gpt2",)),
    "sequence+hybrid": (8, {**SP, "sharding": "full", "replicate": 2}, ("gpt2",)),
    "sequence+gather+expert": (4, {**SP, "context": 2, "expert": 2}, ("mixtral",)),
    "sequence+gather+expert-8": (8, {**SP, "context": 2, "expert": 2}, ("deepseek",)),
    "sequence+1f1b+expert": (4, {**SP, "pipeline": 2, "expert": 2}, ("mixtral",)),
    "sequence+1f1b+expert+full": (8, {**SP, "pipeline": 2, "expert": 4, "sharding": "full"}, ("deepseek",)),
    "sequence+1f1b+gather+expert": (8, {**SP, "pipeline": 2, "context": 2, "expert": 4}, ("deepseek",)),
    "ring+expert+expert-tensor+full": (
        8,
        {"context": 2, "context_exchange": "ring", "expert": 2, "expert_tensor": 2, "sharding": "full"},
        ("mixtral",),
    ),
}
CASES = [
    pytest.param(count, Parallel(**sizes), name, id=f"{title}-{name}")
    for title, (count, sizes, names) in (ALONE | TOGETHER).items()
    for name in names
]


def training(count: int, parallel: Parallel, name: str, **other: Any) -> Training:
    """Two layers, or what fills the pipeline; several micro-batches on each replica."""
    model = MODELS[name].model_copy(update={"layers": 4 if parallel.pipeline > 1 else 2})
    micro_size = 8 // layout(parallel, count).dense_dp // (4 if parallel.pipeline > 1 else 2)
    return Training(model, **{"micro_size": max(1, micro_size)} | other)


@pytest.mark.parametrize(("count", "parallel", "name"), CASES)
def test_a_layout_is_one_process(apart: Apart, count: int, parallel: Parallel, name: str) -> None:
    assert_equal(apart(count, parallel, training(count, parallel, name)))


def test_there_are_layouts_enough() -> None:
    assert len(ALONE | TOGETHER) >= 40


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sizes", [{}, {"pipeline": 2}, SP, {"context": 2}], ids=["replicas", "1f1b", "sequence", "gather"])
def test_bf16_is_one_process_but_for_rounding(apart: Apart, sizes: dict[str, Any], name: str) -> None:
    """Ranks round what they add up, and norm weights, which one process keeps in fp32: a part in 256. Where it changes a token's expert
    the weights of both move by as much as the rate allows (5 x 3e-3), so that only the loss says anything."""
    parallel = Parallel(**sizes)
    bars = Bars(loss=2e-3, norm=2e-2, parameter=2e-2 if name in SPARSE else 5e-3, router=5e-2, score=5e-3)
    assert_equal(apart(2, parallel, training(2, parallel, name, compute=torch.bfloat16)), bars)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("dense", {"context": 2}),
        ("gpt2", {"context": 2}),
        ("deepseek", {"context": 2}),
        ("dense", {"context": 2, "context_exchange": "ulysses"}),
        ("deepseek", {"context": 2, "context_exchange": "ulysses"}),
        ("gpt2", SP),
        ("deepseek", SP),
        ("gpt2", {"pipeline": 2}),
        ("deepseek", {**V, "schedule": "zero-bubble-v"}),
    ],
)
def test_documents_are_masked_alike(apart: Apart, name: str, sizes: dict[str, Any]) -> None:
    parallel = Parallel(**sizes)
    assert_equal(apart(2, parallel, training(2, parallel, name, eod=7)))


@pytest.mark.parametrize("exchange", ["gather", "ulysses"])
def test_a_window_is_seen_across_ranks(apart: Apart, exchange: str) -> None:
    model = MODELS["dense"].model_copy(update={"layers": 2, "sliding_window": 5})
    assert_equal(apart(2, Parallel(context=2, context_exchange=exchange), Training(model, micro_size=4)))


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "dualpipe-v"])
def test_a_pipeline_goes_through_a_ramp_and_longer_sequences(apart: Apart, schedule: str) -> None:
    """From fewer micro-batches than stages, where the schedule can; DualPipeV wants two for each piece of a rank."""
    parallel = Parallel(pipeline=2, virtual_pipeline=1 if schedule == "1f1b" else 2, schedule=schedule)
    few = 4 if schedule == "dualpipe-v" else 1
    shapes = ((few, 16), (few, 16), (6, 16), (6, 32), (8, 32))
    assert_equal(apart(2, parallel, Training(MODELS["gpt2"], micro_size=1, shapes=shapes)))


@pytest.mark.parametrize("micro_size", [1, 2, 4])
@pytest.mark.parametrize("sharding", ["none", "optimizer", "full"])
def test_micro_batches_add_up(apart: Apart, sharding: str, micro_size: int) -> None:
    parallel = Parallel(sharding=sharding)
    assert_equal(apart(2, parallel, training(2, parallel, "mixtral", micro_size=micro_size)))


@pytest.mark.parametrize("sizes", [{"sharding": "full"}, {"pipeline": 2}, {**V, "schedule": "zero-bubble-v"}, {"expert": 2}])
def test_prediction_layers_of_weight_zero_are_left_alone(apart: Apart, sizes: dict[str, Any]) -> None:
    """Nothing reads the last piece's embedding then, and yet it stays equal to the first one's."""
    parallel = Parallel(**sizes)
    assert_equal(apart(2, parallel, training(2, parallel, "deepseek", prediction_weight=0.0)))


@pytest.mark.parametrize("sizes", [{}, {"pipeline": 2}])
def test_prediction_layers_that_never_ran_do_not_disturb_bf16(apart: Apart, sizes: dict[str, Any]) -> None:
    """FSDP has not gathered them when the first of several micro-batches leaves its gradients in fp32 (an AttributeError in torch 2.13)."""
    model = MODELS["dense"].model_copy(update={"mtp": MultiTokenPrediction(layers=1, loss_weight=0.0)})
    bf16 = Training(model, micro_size=1, prediction_weight=0.0, compute=torch.bfloat16)
    assert_equal(apart(2, Parallel(**sizes), bf16), Bars(loss=2e-3, norm=2e-2, parameter=5e-3, score=5e-3))


@pytest.mark.parametrize(
    ("name", "changes", "sizes"),
    [
        ("mixtral", {"bias": True}, {"expert": 2}),
        ("mixtral", {"bias": True}, SP),
        ("mixtral", {"experts": MODELS["mixtral"].experts.model_copy(update={"capacity_factor": 1.0})}, {"expert": 2}),
        ("dense", {"qk_norm": True, "norm": "layernorm1p"}, SP),
        ("dense", {"qk_norm": True, "rotary_fraction": 0.5}, {"tensor": 2}),
        ("dense", {"mup": WidthTransfer(base_hidden=16), "activation": "squared_relu"}, {"pipeline": 2}),
        ("deepseek", {"mtp": TWO_AHEAD}, {"pipeline": 2}),
        ("dense", {"mtp": TWO_AHEAD, "layers": 4}, {**V, "schedule": "zero-bubble"}),
        ("gpt2", {"mtp": MultiTokenPrediction(layers=1, loss_weight=0.3), "layers": 4}, {**V, "schedule": "dualpipe-v"}),
    ],
    ids=[
        "expert-biases",
        "biases",
        "capacity",
        "head-norms",
        "head-norms-whole-stream",
        "width-transfer",
        "two-ahead",
        "two-ahead-split-backward",
        "tied-ahead-split-backward",
    ],
)
def test_other_models(apart: Apart, name: str, changes: dict[str, Any], sizes: dict[str, Any]) -> None:
    model = MODELS[name].model_copy(update={"layers": 2} | changes)
    assert_equal(apart(2, Parallel(**sizes), Training(model, micro_size=2)))


@pytest.mark.parametrize(
    ("count", "name", "sizes"),
    [
        (2, "dense", {"sharding": "full"}),
        (4, "gpt2", {"pipeline": 2, "sharding": "optimizer"}),
        (2, "mixtral", {}),
        (2, "mixtral", {"expert": 2}),
        (2, "mixtral", {"expert_tensor": 2}),
        (4, "mixtral", {"expert": 2, "sharding": "full"}),
        (4, "mixtral", {"expert_tensor": 2, "sharding": "full"}),
        (8, "mixtral", {"sharding": "full", "expert": 4}),
        (2, "dense", {"tensor": 2}),
        (4, "gpt2", {**SP, "sharding": "full"}),
        (4, "deepseek", {**SP, "expert_tensor": 2, "sharding": "optimizer"}),
    ],
)
def test_muon_over_ranks(apart: Apart, count: int, name: str, sizes: dict[str, Any]) -> None:
    """It moves matrices by some 2e-3 in two steps. PyTorch orthogonalises in bf16, so that the last bit of a gradient can show in 1e-4."""
    muon = Optimizer(name="muon", eps=1e-4)
    two_steps = training(count, Parallel(**sizes), name, optimizer=muon, shapes=((8, 16),) * 2)
    assert_equal(apart(count, Parallel(**sizes), two_steps), Bars(norm=5e-5, parameter=2e-4, score=5e-5))


@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(name="muon", eps=1e-4)], ids=["adamw", "muon"])
@pytest.mark.parametrize("sharding", ["optimizer", "full"])
@pytest.mark.parametrize("sizes", [{"expert": 4}, {"expert": 2, "expert_tensor": 2}], ids=["expert", "expert-tensor"])
def test_replicas_share_experts_that_are_fewer_than_they(apart: Apart, sizes: dict[str, Any], sharding: str, optimizer: Optimizer) -> None:
    """4 or 2 experts over 8 ranks: two hold the same one, and each half of it."""
    count = sizes["expert"]
    experts = MODELS["mixtral"].experts.model_copy(update={"count": count, "active": min(2, count)})
    model = MODELS["mixtral"].model_copy(update={"layers": 2, "experts": experts})
    parallel = Parallel(**sizes, sharding=sharding)
    bars = Bars(norm=5e-5, parameter=2e-4, score=5e-5) if optimizer.name == "muon" else Bars()
    assert_equal(apart(8, parallel, Training(model, micro_size=1, optimizer=optimizer)), bars)


def test_a_batch_that_the_replicas_cannot_share_is_refused(ranks: RankPool) -> None:
    with pytest.raises(RankFailed, match="a batch of 7 samples is not divisible by 2 replicas"):
        ranks.run(2, train, Training(MODELS["dense"], micro_size=1, shapes=((7, 16),)), Parallel())


@pytest.mark.parametrize("schedule", ["zero-bubble", "zero-bubble-v", "dualpipe-v"])
def test_weights_that_a_split_backward_pass_would_miss_are_refused(ranks: RankPool, schedule: str) -> None:
    """FSDP that gathers weights again for it loses gradients without a word (torch 2.13); without it the layout is one process."""
    parallel = Parallel(pipeline=2, virtual_pipeline=2, schedule=schedule, sharding="full")
    with pytest.raises(RankFailed, match="FSDP loses gradients"):
        ranks.run(4, train, Training(MODELS["dense"], micro_size=1), parallel)


def test_groups_that_the_replicas_cannot_fill_are_refused(ranks: RankPool) -> None:
    with pytest.raises(RankFailed, match="2 replicas do not divide into 4 groups"):
        ranks.run(2, train, Training(MODELS["dense"], micro_size=1), Parallel(sharding="full", replicate=4))
