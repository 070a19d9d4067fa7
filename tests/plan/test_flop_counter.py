"""FLOPs of the arithmetic, which the planner divides by, against torch's own counter on the built model."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from preheat.arithmetic import flops_per_token, parameters
from preheat.model import build
from preheat.recipe import Experts, LatentAttention, Model, MultiTokenPrediction

SEQ_LEN = 32
COMMON = {"hidden": 64, "heads": 4, "ffn_hidden": 96, "vocab_size": 300, "rope_theta": 1e4}
LATENT = LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12)
FAMILIES = {
    "llama": Model(layers=3, kv_heads=2, tied_embeddings=False, **COMMON),
    "gpt2": Model(
        layers=3,
        activation="gelu",
        norm="layernorm",
        bias=True,
        position="learned",
        max_positions=SEQ_LEN,
        **(COMMON | {"rope_theta": None}),
    ),
    "latent": Model(layers=3, mla=LATENT, **COMMON),
    "mixtral": Model(layers=3, kv_heads=2, experts=Experts(count=4, active=2, ffn_hidden=48), **COMMON),
    "deepseek-v3": Model(
        layers=3, mla=LATENT, experts=Experts(count=8, active=2, ffn_hidden=32, shared=1, first_dense=1, score="sigmoid"), **COMMON
    ),
    "predicting ahead": Model(layers=2, mtp=MultiTokenPrediction(layers=1, loss_weight=0.3), **COMMON),
}


def added_product(into: object, left: tuple[int, int], right: tuple[int, int], **_: object) -> int:
    """FLOPs of `addmm_`, by shapes: torch's counter knows the product that makes a new tensor, and not the one that adds to another."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_torch_counts_as_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward over one sequence: 6 for each multiplied weight and token, and full-square attention.

    Experts multiply one after the other here, for the counter does not know their grouped product.
    """
    monkeypatch.setattr("preheat.model.experts.fits_grouped", lambda *_: False)
    model = FAMILIES[name]
    transformer = build(model, seed=0)
    tokens_BT = torch.randint(model.vocab_size, (1, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added_product}) as counter:
        losses = transformer(tokens_BT[:, :-1], tokens_BT[:, 1:], prediction_weight=0.3 if model.mtp else 0.0)
        losses.total.backward()
    flops = flops_per_token(model, SEQ_LEN)
    pairs = flops.full_square - 6 * (parameters(model).active - parameters(model).positions)
    assert counter.get_total_flops() == SEQ_LEN * (6 * parameters(model).multiplied + pairs)
