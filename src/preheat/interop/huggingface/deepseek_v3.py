"""DeepSeek-V3 (arXiv 2412.19437) as `DeepseekV3ForCausalLM`: latent attention, sigmoid-scored experts in groups, shared experts.

Layers that predict further tokens follow the others under the names of the release, each with its copy of embedding and head;
`transformers` leaves them out of the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preheat.arithmetic import dense_layers
from preheat.interop.huggingface import llama
from preheat.interop.huggingface.family import Config, Family, Obstacle, Setting, norm, unequal
from preheat.interop.huggingface.rope import read_rope, rope_keys
from preheat.interop.tensor_rules import Rule, copied, reordered, same, unstacked
from preheat.recipe import LatentAttention, Model

_CLASS = "DeepseekV3ForCausalLM"
_LATENT_EPS = 1e-6
"""The class takes this for the norms of the latents, whatever rms_norm_eps says."""


def obstacles(model: Model, setting: Setting) -> Iterator[Obstacle]:
    """What of a model `DeepseekV3ForCausalLM` cannot express."""
    yield from unequal(model, _CLASS, activation="swiglu", norm="rmsnorm", bias=False, qk_norm=False, position="rotary")
    yield from unequal(model, _CLASS, sliding_window=None, rotary_fraction=1.0)
    if model.mla is None:
        yield Obstacle("model.mla", None, f"{_CLASS} has latent attention")
    if model.norm_eps != _LATENT_EPS:
        yield Obstacle("model.norm_eps", model.norm_eps, f"{_CLASS} normalises its latents with {_LATENT_EPS:g}, fixed")
    experts = model.experts
    if experts is None:
        if model.mtp is not None:
            yield Obstacle("model.mtp", "[...]", f"{_CLASS} predicts further tokens with experts")
        return
    if experts.score != "sigmoid":
        yield Obstacle("model.experts.score", experts.score, f"{_CLASS} has sigmoid")
    if experts.shared < 1:
        yield Obstacle("model.experts.shared", 0, f"{_CLASS} has at least one")
    if experts.capacity_factor is not None:
        yield Obstacle("model.experts.capacity_factor", experts.capacity_factor, f"{_CLASS} drops no token")
    if experts.count // (experts.groups or 1) < 2:
        yield Obstacle("model.experts.groups", experts.groups, f"{_CLASS} scores a group by its two best experts")


def config(model: Model, setting: Setting) -> dict[str, Any]:
    """Its config.json. A model without experts has only dense layers."""
    mla, experts = model.mla, model.experts
    assert mla is not None
    assert setting.rope is not None
    keys = llama.stream(model, setting) | rope_keys(setting.rope, latent=True) | mla.model_dump()
    del keys["head_dim"]
    return keys | {
        "num_key_value_heads": model.heads,
        "attention_bias": False,
        "rope_interleave": True,
        "first_k_dense_replace": dense_layers(model),
        "moe_layer_freq": 1,
        "moe_intermediate_size": experts.ffn_hidden if experts else model.ffn_hidden,
        "n_routed_experts": experts.count if experts else 2,
        "n_shared_experts": experts.shared if experts else 1,
        "num_experts_per_tok": experts.active if experts else 2,
        "n_group": (experts.groups if experts else None) or 1,
        "topk_group": (experts.active_groups if experts else None) or 1,
        "routed_scaling_factor": experts.scaling if experts else 1.0,
        # A single expert is weighed by its score.
        "norm_topk_prob": experts is None or experts.active > 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": model.mtp.layers if model.mtp else 0,
    }


def read(config: Config) -> dict[str, Any]:
    """The fields of `[model]`."""
    for key, only in {"attention_bias": False, "rope_interleave": True, "moe_layer_freq": 1}.items():
        config.only(key, only, default=only)
    config.only("norm_topk_prob", config.whole("num_experts_per_tok", 8) > 1, default=True)
    config.only("scoring_func", "sigmoid", default="sigmoid")
    config.only("topk_method", "noaux_tc", default="noaux_tc")
    config.only("rms_norm_eps", _LATENT_EPS, default=_LATENT_EPS)
    config.only("num_key_value_heads", config.whole("num_attention_heads"), default=config.whole("num_attention_heads"))
    config.read |= {"head_dim", "qk_head_dim"}
    plain = Config({key: value for key, value in config.values.items() if key != "head_dim"}, config.file, config.notes, config.read)
    fields = llama.read_stream(plain, theta=10_000.0, eps=_LATENT_EPS) | read_rope(config, 10_000.0, latent=True)
    fields |= {"head_dim": None, "kv_heads": None}
    widths = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    fields["mla"] = {name: config.whole(name, width) for name, width in widths.items()} | {"q_lora_rank": config.get("q_lora_rank")}
    dense = int(config.nonnegative("first_k_dense_replace", 3))
    experts = {
        "count": config.whole("n_routed_experts", 256),
        "active": config.whole("num_experts_per_tok", 8),
        "ffn_hidden": config.whole("moe_intermediate_size", 2048),
        "shared": config.whole("n_shared_experts", 1),
        "first_dense": dense,
        "score": "sigmoid",
        "groups": config.whole("n_group", 8),
        "active_groups": config.whole("topk_group", 4),
        "scaling": config.number("routed_scaling_factor", 2.5),
    }
    if experts["groups"] == 1:
        experts |= {"groups": None, "active_groups": None}
    further = int(config.nonnegative("num_nextn_predict_layers", config.nonnegative("num_mtp_layers", 0)))
    fields["mtp"] = {"layers": further, "loss_weight": 0.1} if further else None
    return fields | {"experts": experts if dense < fields["layers"] else None}


def rules(model: Model) -> Iterator[Rule]:
    """All tensors."""
    further = [f"model.layers.{model.layers + number}" for number in range(model.mtp.layers if model.mtp else 0)]
    embeddings, heads = [f"{layer}.embed_tokens.weight" for layer in further], [f"{layer}.shared_head.head.weight" for layer in further]
    yield copied("embedding.weight", ["model.embed_tokens.weight", *embeddings, *(heads if model.tied_embeddings else ())])
    yield from norm("norm", "model.norm", model)
    if not model.tied_embeddings:
        yield copied("head.weight", ["lm_head.weight", *heads])
    for layer in range(model.layers):
        yield from _block(f"blocks.{layer}", f"model.layers.{layer}", model, dense=layer < dense_layers(model))
    for number, theirs in enumerate(further):
        ours = f"predictions.{number}"
        yield from norm(f"{ours}.embedding_norm", f"{theirs}.enorm", model)
        yield from norm(f"{ours}.hidden_norm", f"{theirs}.hnorm", model)
        yield same(f"{ours}.project.weight", f"{theirs}.eh_proj.weight")
        yield from norm(f"{ours}.norm", f"{theirs}.shared_head.norm", model)
        yield from _block(f"{ours}.block", theirs, model, dense=False)


def _block(ours: str, theirs: str, model: Model, *, dense: bool) -> Iterator[Rule]:
    yield from llama.norms(ours, theirs, model)
    assert model.mla is not None
    yield from _attention(f"{ours}.attention", f"{theirs}.self_attn", model, model.mla)
    ours, theirs = f"{ours}.feed_forward", f"{theirs}.mlp"
    if dense:
        yield from llama.feed_forward(ours, theirs, model)
        return
    assert model.experts is not None
    yield same(f"{ours}.router.weight", f"{theirs}.gate.weight")
    yield same(f"{ours}.router.bias", f"{theirs}.gate.e_score_correction_bias")
    for name, other in (("gate", "gate_proj"), ("up", "up_proj"), ("out", "down_proj")):
        each = [f"{theirs}.experts.{number}.{other}.weight" for number in range(model.experts.count)]
        yield unstacked(f"{ours}.experts.{name}.weight", each)
    yield from llama.feed_forward(f"{ours}.shared", f"{theirs}.shared_experts", model)


def _attention(ours: str, theirs: str, model: Model, mla: LatentAttention) -> Iterator[Rule]:
    """The release turns pairs (2i, 2i + 1) and preheat pairs (i, i + R/2), so that rows of turned dims change places."""
    pairs = mla.qk_rope_head_dim // 2
    turned = [half * pairs + pair for pair in range(pairs) for half in range(2)]
    width = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    of_head = [*range(mla.qk_nope_head_dim), *(mla.qk_nope_head_dim + row for row in turned)]
    heads = [head * width + row for head in range(model.heads) for row in of_head]
    if mla.q_lora_rank is None:
        yield reordered(f"{ours}.query.up.weight", f"{theirs}.q_proj.weight", heads)
    else:
        yield same(f"{ours}.query.down.weight", f"{theirs}.q_a_proj.weight")
        yield from norm(f"{ours}.query.norm", f"{theirs}.q_a_layernorm", model)
        yield reordered(f"{ours}.query.up.weight", f"{theirs}.q_b_proj.weight", heads)
    latent = [*range(mla.kv_lora_rank), *(mla.kv_lora_rank + row for row in turned)]
    yield reordered(f"{ours}.latent_down.weight", f"{theirs}.kv_a_proj_with_mqa.weight", latent)
    yield from norm(f"{ours}.latent_norm", f"{theirs}.kv_a_layernorm", model)
    yield same(f"{ours}.latent_up.weight", f"{theirs}.kv_b_proj.weight")
    yield same(f"{ours}.out.weight", f"{theirs}.o_proj.weight")


DEEPSEEK_V3 = Family("deepseek_v3", _CLASS, obstacles, config, read, rules, buffers=(r".*\.rotary_emb\.inv_freq",))
