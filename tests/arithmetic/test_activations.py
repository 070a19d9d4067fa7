"""What a forward pass keeps against the formulas of the paper that counted it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preheat.arithmetic.memory import MemoryModel, Step
from preheat.arithmetic.programs import MEGATRON
from preheat.recipe import Model, Parallel, Precision, Recompute

HIDDEN, HEADS, TOKENS, SAMPLES = 6144, 64, 2048, 4
GPT_22B = Model(
    layers=48,
    hidden=HIDDEN,
    heads=HEADS,
    ffn_hidden=4 * HIDDEN,
    vocab_size=51_200,
    activation="gelu",
    norm="layernorm",
    bias=True,
    position="learned",
    max_positions=TOKENS,
    dropout=0.1,
)
"""arXiv 2205.05198, table 3."""
SBH = TOKENS * SAMPLES * HIDDEN
SCORES = 5 * HEADS * TOKENS / HIDDEN


def layer(parallel: Parallel) -> float:
    """Bytes of one layer, as what a second one adds, in a program of 2022 that holds scores and their softmax."""
    program = replace(MEGATRON, fused_attention=False, keeps_shards=True)
    sizes = []
    for layers in (1, 2):
        model = MemoryModel(GPT_22B.model_copy(update={"layers": layers}), Precision(compute="fp16"), program=program)
        sizes.append(model.per_rank(parallel, parallel.tensor, Step(SAMPLES, TOKENS, 1))[0].activations)
    return sizes[1] - sizes[0]


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_table_2_of_the_paper(tensor: int) -> None:
    """arXiv 2205.05198, table 2: tensor parallelism; with sequence parallelism; with selective recomputation; with full recomputation."""
    selective, full = Recompute(kind="selective"), Recompute(kind="full")
    assert layer(Parallel(tensor=tensor)) == pytest.approx(SBH * (10 + 24 / tensor + SCORES / tensor), rel=1e-9)
    assert layer(Parallel(tensor=tensor, recompute=selective)) == pytest.approx(SBH * (10 + 24 / tensor), rel=1e-9)
    if tensor > 1:
        split = {"tensor": tensor, "sequence": True}
        assert layer(Parallel(**split)) == pytest.approx(SBH * (34 + SCORES) / tensor, rel=1e-9)
        assert layer(Parallel(**split, recompute=selective)) == pytest.approx(SBH * 34 / tensor, rel=1e-9)
        assert layer(Parallel(**split, recompute=full)) == pytest.approx(SBH * 2 / tensor, rel=1e-9)


def test_context_ranks_hold_their_share_of_the_tokens() -> None:
    """Attention that keeps no scores: everything is per token."""
    whole, half = (
        MemoryModel(GPT_22B, Precision(compute="bf16"), program=MEGATRON).per_rank(Parallel(context=context), 2, Step(1, TOKENS, 1))[0]
        for context in (1, 2)
    )
    assert half.activations == whole.activations / 2


def test_a_block_of_recomputed_layers_trades_as_many() -> None:
    """Llama 3 405B's way (arXiv 2407.21783) of giving up some layers of a stage alone: 2 bytes of input in place of a layer."""
    sizes = {
        layers: MemoryModel(GPT_22B, Precision(compute="bf16"), program=MEGATRON)
        .per_rank(Parallel(recompute=Recompute(kind="full", layers=layers) if layers else Recompute()), 1, Step(1, TOKENS, 1))[0]
        .activations
        for layers in (0, 12, 24, 48)
    }
    per_layer = (sizes[0] - sizes[12]) / 12
    assert sizes[0] - sizes[24] == pytest.approx(24 * per_layer)
    assert sizes[0] - sizes[48] == pytest.approx(48 * per_layer)
    assert sizes[48] == pytest.approx(48 * 2 * TOKENS * HIDDEN, rel=0.05)  # and the head's input
