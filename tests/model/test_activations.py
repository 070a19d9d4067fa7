"""What the arithmetic says that a layer keeps for its backward pass against what autograd kept, for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from preheat.arithmetic import memory
from preheat.arithmetic.activations import layer_kept
from preheat.arithmetic.programs import PREHEAT
from preheat.model import Transformer, cross_entropy
from preheat.recipe import Experts, LatentAttention, Model, Precision

TOKENS = 64
# Widths that attention on a CPU takes in one kernel; LayerNorm, which PyTorch computes alike on CPUs and GPUs.
GPT: dict[str, Any] = {"hidden": 128, "heads": 4, "ffn_hidden": 320, "vocab_size": 512, "rope_theta": 1e4, "norm": "layernorm"}
LATENT = LatentAttention(q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2},
    "gpt2": {"activation": "gelu", "bias": True, "position": "learned", "max_positions": TOKENS, "rope_theta": None},
    "nemotron": {"activation": "squared_relu", "kv_heads": 2},
    "qk-norm": {"qk_norm": True},
    "mixtral": {"experts": Experts(count=8, active=2, ffn_hidden=96), "kv_heads": 2},
    "deepseek": {"experts": Experts(count=8, active=2, ffn_hidden=96, shared=1, score="sigmoid"), "mla": LATENT},
    "deepseek-v2-lite": {"mla": LATENT.model_copy(update={"q_lora_rank": None})},
}


def kept(model: Model, samples: int, compute: torch.dtype) -> int:
    """Bytes of all that the forward pass of so many samples keeps, each storage once."""
    torch.manual_seed(0)
    transformer = Transformer(model)
    found: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        found.setdefault(x.untyped_storage().data_ptr(), x)  # alive until the end, so that no address comes twice
        return x

    ids_BT = torch.randint(model.vocab_size, (samples, TOKENS))
    autocast = torch.autocast("cpu", compute, enabled=compute != torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), autocast:
        transformer(ids_BT, ids_BT)
    return sum(x.untyped_storage().nbytes() for x in found.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "compute"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_a_layer_keeps_what_autograd_kept(family: str, name: str, compute: torch.dtype) -> None:
    """Bytes that a second layer adds per token: to 1.5%, for means, deviations and numbers of experts are not counted."""

    def per_token(layers: int) -> float:
        model = Model(**(GPT | FAMILIES[family] | {"layers": layers}))
        return (kept(model, 4, compute) - kept(model, 2, compute)) / (2 * TOKENS)

    model = Model(**(GPT | FAMILIES[family] | {"layers": 1}))
    counted = layer_kept(model, Precision.model_validate({"compute": name}), PREHEAT, sparse=model.experts is not None)
    parts = (counted.attention, counted.feed_forward)
    total = sum(part.stream + part.inputs + part.split + part.routed + part.routed_inputs for part in parts)
    assert total <= per_token(2) - per_token(1) <= 1.015 * total


def test_the_loss_runs_in_the_chunks_that_are_counted() -> None:
    assert (memory.LOGITS_AT_ONCE, memory.ROWS_AT_LEAST) == (cross_entropy.LOGITS_AT_ONCE_ELSEWHERE, cross_entropy.ROWS_AT_LEAST)
