"""Tensors of Megatron-LM checkpoints: there and back without a changed bit, and by megatron-core's own model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from preheat.errors import PreheatError
from preheat.interop.huggingface.plain import skeleton
from preheat.interop.megatron_tensors import megatron_rules
from preheat.interop.tensor_rules import inward, outward
from preheat.model import build
from preheat.recipe import Experts, LatentAttention, Model

RUNNER = Path(__file__).with_name("run_megatron_model.py")
FOLDERS = [Path(part) for part in os.environ.get("PREHEAT_MEGATRON", "").split(":") if part]
LLAMA = Model(
    layers=3, hidden=64, heads=8, kv_heads=2, ffn_hidden=96, vocab_size=300, rope_theta=500_000.0, init_std=0.1, tied_embeddings=False
)
MIXTRAL = LLAMA.model_copy(update={"experts": Experts(count=4, active=2, ffn_hidden=80)})
GPT = Model(
    layers=2, hidden=64, heads=4, ffn_hidden=96, vocab_size=300, activation="gelu", norm="layernorm", bias=True, position="learned",
    max_positions=64, init_std=0.1,
)  # fmt: skip


def _weights(model: Model) -> dict[str, Tensor]:
    return {name: torch.randn(tensor.shape) for name, tensor in skeleton(model).items()}


@st.composite
def models(draw: st.DrawFn) -> Model:
    groups, queries, width = (draw(st.integers(1, 3)) for _ in range(3))
    experts = draw(st.none() | st.integers(2, 4))
    learned = draw(st.booleans())
    return Model(
        layers=draw(st.integers(1, 3)),
        hidden=draw(st.integers(1, 9)),
        heads=groups * queries,
        kv_heads=groups,
        head_dim=2 * width,
        ffn_hidden=draw(st.integers(1, 7)),
        vocab_size=draw(st.integers(258, 600)),
        activation=draw(st.sampled_from(["swiglu", "gelu", "squared_relu"])),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm", "layernorm1p"])),
        bias=experts is None and draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        position="learned" if learned else "rotary",
        max_positions=7 if learned else None,
        rope_theta=None if learned else 1e4,
        tied_embeddings=draw(st.booleans()),
        experts=Experts(count=experts, active=1, ffn_hidden=draw(st.integers(1, 5))) if experts else None,
    )


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from([1, 2, 8]))
def test_there_and_back_changes_nothing(model: Model, tensor: int) -> None:
    weights = _weights(model)
    rules = megatron_rules(model, tensor)
    there = dict(outward(rules, weights))
    assert all(shape % (128 * tensor) == 0 for shape in (there["embedding.word_embeddings.weight"].shape[0],))
    back = dict(inward(rules, there))
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_the_names_and_shapes_are_those_of_a_saved_checkpoint() -> None:
    """megatron-core 0.17.1's `sharded_state_dict` of GPTModel with 3 layers, width 64, 8 heads in 2 groups: its keys and global shapes."""
    layer = "decoder.layers."
    shared = {
        "embedding.word_embeddings.weight": (384, 64),
        f"{layer}self_attention.linear_qkv.layer_norm_weight": (3, 64),
        f"{layer}self_attention.linear_qkv.weight": (3, 96, 64),
        f"{layer}self_attention.linear_proj.weight": (3, 64, 64),
        "decoder.final_layernorm.weight": (64,),
        "output_layer.weight": (384, 64),
    }
    dense = {
        f"{layer}mlp.linear_fc1.layer_norm_weight": (3, 64),
        f"{layer}mlp.linear_fc1.weight": (3, 192, 64),
        f"{layer}mlp.linear_fc2.weight": (3, 64, 96),
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in outward(megatron_rules(LLAMA), skeleton(LLAMA))}
    assert shapes == shared | dense


def test_groups_lie_one_after_the_other() -> None:
    """Two query heads of a group, its key, its value, then the next group (Megatron-Bridge's llama_bridge)."""
    model = LLAMA.model_copy(update={"layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 2, "hidden": 8})
    weights = _weights(model)
    q, k, v = (weights[f"blocks.0.attention.{name}.weight"] for name in ("query", "key", "value"))
    fused = dict(outward(megatron_rules(model), weights))["decoder.layers.self_attention.linear_qkv.weight"][0]
    assert torch.equal(fused, torch.cat((q[:4], k[:2], v[:2], q[4:], k[2:], v[2:])))


def test_what_has_no_names_is_refused() -> None:
    mla = LatentAttention(kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4)
    for changes in ({"mla": mla}, {"experts": Experts(count=4, active=2, ffn_hidden=8, first_dense=1)}):
        with pytest.raises(PreheatError, match=r"megatron\.tensors"):
            megatron_rules(LLAMA.model_copy(update=changes))


def _missing() -> str:
    if not FOLDERS:
        return "PREHEAT_MEGATRON is not set: it names the folder of an unpacked megatron-core wheel"
    return "" if (FOLDERS[0] / "megatron" / "core").is_dir() else f"{FOLDERS[0]} holds no megatron/core"


@pytest.mark.oracle
@pytest.mark.skipif(bool(_missing()), reason=_missing() or "present")
@pytest.mark.parametrize("name", ["llama", "llama-tied", "llama-qk-norm", "mixtral", "gpt"])
def test_megatron_core_computes_our_logits(name: str, tmp_path: Path) -> None:
    model = {
        "llama": LLAMA,
        "llama-tied": LLAMA.model_copy(update={"tied_embeddings": True}),
        "llama-qk-norm": LLAMA.model_copy(update={"qk_norm": True}),
        "mixtral": MIXTRAL,
        "gpt": GPT,
    }[name]
    transformer = build(model, 1).eval()
    with torch.no_grad():
        for key, tensor in transformer.state_dict().items():
            if key.endswith(("norm.weight", "bias")):
                tensor += 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2))
    tensors = dict(outward(megatron_rules(model), transformer.state_dict()))
    if model.experts:  # layers without Transformer Engine, the only ones on a CPU, name this norm as if it were fused there too
        tensors["decoder.layers.mlp.linear_fc1.layer_norm_weight"] = tensors.pop("decoder.layers.pre_mlp_layernorm.weight")
    save_file(tensors, tmp_path / "tensors.safetensors")
    tokens_BT = torch.randint(300, (2, 40), generator=torch.Generator().manual_seed(3))
    (tmp_path / "settings.json").write_text(json.dumps(_settings(model) | {"tokens": tokens_BT.tolist()}))
    environment = {**os.environ, "PYTHONPATH": ":".join(str(folder.resolve()) for folder in FOLDERS), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run([sys.executable, str(RUNNER), str(tmp_path)], capture_output=True, text=True, env=environment, timeout=200)
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert json.loads(answer.stdout) == {"wrong": [], "unused": []}
    with torch.no_grad():
        ours_BTV = transformer.logits(transformer(tokens_BT))
    theirs_BTV = load_file(tmp_path / "logits.safetensors")["logits"][..., :300]
    assert (ours_BTV - theirs_BTV).abs().max() < 1e-4


def _settings(model: Model) -> dict[str, Any]:
    config: dict[str, Any] = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads or model.heads,
        "ffn_hidden_size": model.ffn_hidden,
        "gated_linear_unit": model.activation == "swiglu",
        "activation_func": "silu" if model.activation == "swiglu" else "gelu",
        "add_bias_linear": model.bias,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "layernorm_epsilon": model.norm_eps,
        "qk_layernorm": model.qk_norm,
    }
    if model.experts:
        config |= {
            "num_moe_experts": model.experts.count,
            "moe_router_topk": model.experts.active,
            "moe_ffn_hidden_size": model.experts.ffn_hidden,
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "allgather",
        }
    rotary = model.position == "rotary"
    built = {
        "vocab_size": 384,
        "max_sequence_length": model.max_positions or 64,
        "position_embedding_type": "rope" if rotary else "learned_absolute",
        "share_embeddings_and_output_weights": model.tied_embeddings,
    }
    return {"config": config, "model": built | ({"rotary_base": model.rope_theta} if rotary else {})}
