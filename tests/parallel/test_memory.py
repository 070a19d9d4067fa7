"""The arithmetic of memory against what ranks of the real engine hold after a step, and what their forward passes kept."""

from __future__ import annotations

import pytest
from memory_run import hold
from rank_pool import RankPool

from preheat.arithmetic import rank_states
from preheat.arithmetic.memory import EXPERT_IMBALANCE, MemoryModel, Step
from preheat.recipe import Experts, Model, Optimizer, Parallel, Precision, Recompute

DENSE = Model(
    layers=2,
    hidden=64,
    heads=8,
    kv_heads=4,
    ffn_hidden=128,
    vocab_size=512,
    rope_theta=1e4,
    tied_embeddings=False,
    norm="layernorm",  # which PyTorch computes alike on CPUs and GPUs
)
SPARSE = DENSE.model_copy(update={"experts": Experts(count=8, active=2, ffn_hidden=32)})
BF16 = Precision(compute="bf16")


@pytest.mark.parametrize(
    ("count", "model", "parallel", "optimizer"),
    [
        (1, DENSE, Parallel(), Optimizer(state_precision="bf16")),
        (2, DENSE, Parallel(), Optimizer()),
        (2, DENSE, Parallel(sharding="optimizer"), Optimizer()),
        (4, DENSE, Parallel(sharding="full", replicate=2), Optimizer()),
        (4, DENSE, Parallel(sharding="optimizer", pipeline=2), Optimizer()),
        (4, SPARSE, Parallel(sharding="full", expert=2), Optimizer()),
    ],
    ids=["rounded", "replicas", "optimizer", "hybrid", "pipeline", "experts"],
)
def test_states_are_what_the_engine_holds(ranks: RankPool, count: int, model: Model, parallel: Parallel, optimizer: Optimizer) -> None:
    """To the byte. The engine's weights are its masters: the arithmetic counts them with the optimizer unless everything is sharded."""
    found = ranks.run(count, hold, model, parallel, optimizer, 2, 32)
    for rank, held in enumerate(found):
        states = rank_states(model, parallel, BF16, count, optimizer)[rank * parallel.pipeline // count]
        if parallel.sharding == "full":
            assert (held.parameters, held.gradients, held.moments) == (states.weights, states.gradients, states.optimizer)
        else:
            assert held.parameters + held.moments == states.optimizer


def test_muon_keeps_one_moment_of_what_lies_in_the_layers(ranks: RankPool) -> None:
    """Norms have two as well, but are counted with the layers: here 5 x 128 parameters of 4 bytes."""
    [held] = ranks.run(1, hold, DENSE, Parallel(), Optimizer(name="muon"), 2, 32)
    [states] = rank_states(DENSE, Parallel(), BF16, 1, Optimizer(name="muon"))
    assert held.parameters + held.moments - states.optimizer == 5 * 128 * 4


@pytest.mark.parametrize(
    ("count", "model", "parallel"),
    [
        (1, DENSE, Parallel()),
        (1, DENSE, Parallel(recompute=Recompute(kind="full"))),
        (2, DENSE, Parallel(tensor=2, sequence=True)),
        (2, DENSE, Parallel(context=2)),
        (2, SPARSE, Parallel(expert=2)),
    ],
    ids=["alone", "recomputed", "sequence", "context", "experts"],
)
def test_a_token_keeps_what_the_engine_s_autograd_keeps(ranks: RankPool, count: int, model: Model, parallel: Parallel) -> None:
    """Bytes that a second sample adds, on the mean of ranks, for routers are uneven. Beside what is counted, norms keep a mean and a
    deviation, and loss and router the numbers of tokens: at most 160 bytes here.
    """
    tokens = 64
    few, many = (ranks.run(count, hold, model, parallel, Optimizer(), samples, tokens) for samples in (2, 4))
    found = sum(after.kept - before.kept for before, after in zip(few, many, strict=True)) / count / (2 * tokens)
    counted = MemoryModel(model, BF16).per_rank(parallel, count, Step(2, tokens, 1))[0].activations / (2 * tokens)
    if parallel.expert > 1:
        row = 2 * 64
        counted -= (EXPERT_IMBALANCE - 1) * model.layers * 2 * (2 * row + 8 * 32)  # an even share is what the mean comes to
        counted += model.layers * 2 * row  # autograd keeps what is brought back into order as well, only to know its shape
    assert counted <= found <= counted + 160
