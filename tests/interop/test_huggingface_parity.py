"""The same weights give the same logits in preheat and in `transformers`, whichever of the two they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from preheat.arithmetic import Rope
from preheat.interop.huggingface import FAMILIES, Setting, export_huggingface, load_folder
from preheat.model import Transformer, build
from preheat.recipe import Experts, LatentAttention, Model, RopeScaling, WidthTransfer

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-4
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_positions=64, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = RopeScaling(kind="yarn", factor=4.0, original_max_positions=64, beta_fast=32.0, beta_slow=1.0)
LLAMA = Model(
    layers=2, hidden=64, heads=8, kv_heads=2, ffn_hidden=96, vocab_size=384, rope_theta=10_000.0, init_std=0.1, tied_embeddings=False
)
GPT2 = Model(
    layers=2, hidden=64, heads=4, ffn_hidden=96, vocab_size=384, activation="gelu", norm="layernorm", bias=True, position="learned",
    max_positions=96, init_std=0.1,
)  # fmt: skip
MIXTRAL = LLAMA.model_copy(update={"experts": Experts(count=4, active=2, ffn_hidden=80, aux_loss=0.01), "ffn_hidden": 80})
MLA = LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)
DEEPSEEK = Model(
    layers=3, hidden=64, heads=4, ffn_hidden=96, vocab_size=384, norm_eps=1e-6, rope_theta=10_000.0, init_std=0.1, tied_embeddings=False,
    mla=MLA,
    experts=Experts(count=8, active=3, ffn_hidden=40, shared=2, first_dense=1, score="sigmoid", groups=4, active_groups=2, scaling=2.5),
)  # fmt: skip
NEMOTRON = Model(
    layers=2, hidden=64, heads=8, kv_heads=4, ffn_hidden=96, vocab_size=384, activation="squared_relu", norm="layernorm1p",
    rope_theta=10_000.0, rotary_fraction=0.5, init_std=0.1, tied_embeddings=False,
)  # fmt: skip
NEOX = Model(
    layers=2, hidden=64, heads=4, ffn_hidden=96, vocab_size=384, activation="gelu", norm="layernorm", bias=True, rope_theta=10_000.0,
    rotary_fraction=0.25, init_std=0.1, tied_embeddings=False,
)  # fmt: skip


def _with(model: Model, **changes: Any) -> Model:
    return model.model_copy(update=changes)


CASES = {
    "llama": LLAMA,
    "llama-tied": _with(LLAMA, tied_embeddings=True),
    "llama-multi-head-bias": _with(LLAMA, kv_heads=None, bias=True, norm_eps=1e-6),
    "llama-multi-query-wide-heads": _with(LLAMA, kv_heads=1, head_dim=20),
    "llama-llama3": _with(LLAMA, rope_theta=500_000.0, rope_scaling=LLAMA3),
    "llama-yarn": _with(LLAMA, rope_scaling=YARN),
    "llama-yarn-mscale": _with(LLAMA, rope_scaling=YARN.model_copy(update={"mscale": 0.5, "beta_fast": 16.0})),
    "llama-50257": _with(LLAMA, vocab_size=50_257, layers=1),
    "llama-65535-tied": _with(LLAMA, vocab_size=65_535, layers=1, tied_embeddings=True),
    "llama-mup": _with(LLAMA, mup=WidthTransfer(base_hidden=24, base_head_dim=4)),
    "llama-mup-tied": _with(LLAMA, mup=WidthTransfer(base_hidden=24, base_head_dim=4), tied_embeddings=True),
    "gpt2": GPT2,
    "gpt2-untied-50257": _with(GPT2, tied_embeddings=False, vocab_size=50_257, layers=1),
    "gpt2-mup": _with(GPT2, mup=WidthTransfer(base_hidden=16)),
    "mixtral": MIXTRAL,
    "mixtral-window": _with(MIXTRAL, sliding_window=20, tied_embeddings=True),
    "deepseek": DEEPSEEK,
    "deepseek-yarn": _with(DEEPSEEK, rope_scaling=YARN.model_copy(update={"factor": 40.0, "mscale": 0.7})),
    "deepseek-without-query-latent": _with(DEEPSEEK, mla=MLA.model_copy(update={"q_lora_rank": None}), tied_embeddings=True),
    "deepseek-one-expert": _with(DEEPSEEK, experts=DEEPSEEK.experts.model_copy(update={"active": 1})),
    "deepseek-no-groups": _with(DEEPSEEK, experts=DEEPSEEK.experts.model_copy(update={"groups": None, "active_groups": None})),
    "deepseek-dense": _with(DEEPSEEK, experts=None),
    "nemotron": NEMOTRON,
    "nemotron-tied-bias": _with(NEMOTRON, tied_embeddings=True, bias=True, rotary_fraction=1.0),
    "nemotron-llama3": _with(NEMOTRON, rope_theta=500_000.0, rope_scaling=LLAMA3),
    "neox": NEOX,
    "neox-tied": _with(NEOX, tied_embeddings=True, rotary_fraction=1.0, rope_theta=50_000.0),
}
POSITIONS = 96
"""All positions up to the maximum of the small models here."""


def setting(model: Model, max_positions: int = POSITIONS) -> Setting:
    return Setting(Rope(model.rope_theta, model.rope_scaling) if model.rope_theta else None, max_positions)


def randomised(model: Model, seed: int = 1) -> Transformer:
    """Random weights everywhere: norms, biases and the score bias of routers too, which begin as ones and zeros."""
    transformer = build(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in transformer.state_dict().items():
            if name.endswith(("norm.weight", "bias")):
                tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    return transformer.eval()


def tokens(model: Model, length: int = POSITIONS) -> Tensor:
    return torch.randint(model.vocab_size, (2, length), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def our_logits(transformer: Transformer, tokens_BT: Tensor) -> Tensor:
    return transformer.logits(transformer(tokens_BT))


@torch.no_grad()
def their_logits(folder: Path, tokens_BT: Tensor) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    return model(tokens_BT).logits


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_transformers(name: str, tmp_path: Path) -> None:
    transformer = randomised(CASES[name])
    tokens_BT = tokens(CASES[name])
    exported = export_huggingface(CASES[name], transformer.state_dict(), setting(CASES[name]), tmp_path / "out")
    theirs_BTV, ours_BTV = their_logits(tmp_path / "out", tokens_BT), our_logits(transformer, tokens_BT)
    assert (theirs_BTV - ours_BTV).abs().max() < TOLERANCE
    assert ours_BTV.std() > 0.1, "logits near zero would agree whatever they are"
    back, opened = load_folder(tmp_path / "out")
    assert (our_logits(back, tokens_BT) - ours_BTV).abs().max() < TOLERANCE
    assert (opened.family.architecture, opened.notes) == (exported.architecture, ())


THEIRS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "GPT2Config": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96, "n_positions": POSITIONS},
    "MixtralConfig": {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20},
    "DeepseekV3Config": {
        **{"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 40},
        **{
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
        },
        **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 40.0, "original_max_position_embeddings": 64},
            **{"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    },
    "NemotronConfig": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "GPTNeoXConfig": {"use_parallel_residual": False, "hidden_act": "gelu_new", "num_attention_heads": 4},
}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 384}


def _theirs(name: str, **changes: Any) -> Any:
    """A model of transformers with random weights everywhere."""
    sizes = {} if name == "GPT2Config" else SIZES | {"max_position_embeddings": POSITIONS}
    config = getattr(transformers, name)(**{**sizes, "vocab_size": 384, "initializer_range": 0.1, **THEIRS[name], **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if "norm" in key or "ln_" in key or key.endswith("bias"):
                tensor += 0.1 * torch.randn(tensor.shape)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", THEIRS)
def test_what_transformers_saves_gives_its_logits_here(name: str, tied: bool, tmp_path: Path) -> None:
    model = _theirs(name, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens_BT = torch.randint(384, (2, POSITIONS), generator=torch.Generator().manual_seed(5))
    ours, opened = load_folder(tmp_path)
    with torch.no_grad():
        theirs_BTV = model(tokens_BT).logits
    assert (our_logits(ours, tokens_BT) - theirs_BTV).abs().max() < TOLERANCE
    assert opened.model.tied_embeddings is tied
    assert theirs_BTV.std() > 0.1


@pytest.mark.parametrize("name", ["llama", "llama-llama3", "mixtral"])
def test_the_gradients_are_transformers(name: str, tmp_path: Path) -> None:
    model, tokens_BT = CASES[name], tokens(CASES[name])
    if model.experts is not None:  # transformers adds its balance loss only when asked for the router's logits
        model = _with(model, experts=model.experts.model_copy(update={"aux_loss": 0.0}))
    ours = randomised(model)
    export_huggingface(model, ours.state_dict(), setting(model), tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True).train()
    theirs(tokens_BT, labels=tokens_BT).loss.backward()
    losses = ours.train()(tokens_BT[:, :-1], tokens_BT[:, 1:])
    (losses.total / tokens_BT[:, 1:].numel()).backward()
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters()}
    compared = 0
    for rule in next(family for family in FAMILIES if family.model_type == theirs.config.model_type).rules(model):
        expected = rule.outward(tuple(ours.get_parameter(key).grad for key in rule.ours))
        if "experts" in rule.theirs[0]:  # in memory transformers stacks the experts, and gate upon up
            layer, kind = rule.theirs[0].split(".block_sparse_moe")[0], rule.theirs[0].split(".")[-2]
            both = gradients[f"{layer}.mlp.experts.{'down_proj' if kind == 'w2' else 'gate_up_proj'}"]
            found = list(both if kind == "w2" else both.chunk(2, dim=1)[kind == "w3"])
        else:
            found = [gradients[key.replace("block_sparse_moe", "mlp")] for key in rule.theirs]
        for mine, other in zip(expected, found, strict=True):
            assert (mine - other).abs().max() < 1e-5 * max(1.0, float(other.abs().max()))
            compared += mine.numel()
    assert compared == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("layout", ["both", "old", "new"])
@pytest.mark.parametrize("name", ["llama3", "yarn"])
def test_base_and_scaling_survive_in_both_layouts_up_to_the_last_position(name: str, layout: str, tmp_path: Path) -> None:
    """unslothai/unsloth pull 7028: the base fell back to 10,000 when the block of scaling was written anew."""
    scaling = {"llama3": LLAMA3, "yarn": YARN}[name].model_copy(update={"original_max_positions": 1024})
    model = _with(LLAMA, layers=1, rope_theta=500_000.0, rope_scaling=scaling)
    transformer, length = randomised(model), 4096
    export_huggingface(model, transformer.state_dict(), setting(model, length), tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    values = json.loads(file.read_text())
    for key in {"both": (), "old": ("rope_parameters",), "new": ("rope_theta", "rope_scaling")}[layout]:
        del values[key]
    file.write_text(json.dumps(values))
    tokens_BT = tokens(model, length)[:1]
    places = [0, 1000, length - 1]
    ours_BTV = our_logits(transformer, tokens_BT)[:, places]
    assert (their_logits(tmp_path / "out", tokens_BT)[:, places] - ours_BTV).abs().max() < TOLERANCE
    back, _ = load_folder(tmp_path / "out")
    assert (our_logits(back, tokens_BT)[:, places] - ours_BTV).abs().max() < TOLERANCE
    plain = _with(model, rope_theta=10_000.0)
    other = Transformer(plain)
    other.load_state_dict(transformer.state_dict())
    assert (our_logits(other.eval(), tokens_BT)[:, places[1:]] - ours_BTV[:, 1:]).abs().max() > TOLERANCE
