"""LLaMA (arXiv 2302.13971, 2407.21783) as `LlamaForCausalLM`, and what the classes that descend from it share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preheat.arithmetic import head_dim, kv_heads
from preheat.interop.huggingface.family import Config, Family, Obstacle, Setting, even_heads, linear, norm, unequal
from preheat.interop.huggingface.rope import read_rope, rope_keys
from preheat.interop.tensor_rules import Rule, same
from preheat.recipe import Model

_CLASS = "LlamaForCausalLM"


def obstacles(model: Model, setting: Setting) -> Iterator[Obstacle]:
    """What of a model `LlamaForCausalLM` cannot express."""
    yield from unequal(model, _CLASS, activation="swiglu", norm="rmsnorm", qk_norm=False, position="rotary", rotary_fraction=1.0)
    yield from unequal(model, _CLASS, sliding_window=None, mla=None, experts=None, mtp=None)
    yield from even_heads(model, _CLASS)


def config(model: Model, setting: Setting) -> dict[str, Any]:
    """Its config.json."""
    return stream(model, setting) | {"attention_bias": model.bias, "mlp_bias": model.bias, "pretraining_tp": 1}


def read(config: Config) -> dict[str, Any]:
    """The fields of `[model]`."""
    bias = config.flag("attention_bias", False)
    config.only("mlp_bias", bias, default=False)
    return read_stream(config, theta=10_000.0, eps=1e-6) | {"bias": bias}


def rules(model: Model) -> Iterator[Rule]:
    """All tensors."""
    yield from outer(model)
    for layer in range(model.layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        yield from norms(ours, theirs, model)
        yield from attention(f"{ours}.attention", f"{theirs}.self_attn", model)
        yield from feed_forward(f"{ours}.feed_forward", f"{theirs}.mlp", model)


def stream(model: Model, setting: Setting) -> dict[str, Any]:
    """Keys that LLaMA's descendants share."""
    assert setting.rope is not None
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": kv_heads(model),
        "head_dim": head_dim(model),
        "hidden_act": "silu",
        "max_position_embeddings": setting.max_positions,
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": model.dropout,
        **rope_keys(setting.rope),
    }


def read_stream(config: Config, theta: float, eps: float) -> dict[str, Any]:
    """Fields of `[model]` from the keys that LLaMA's descendants share; `theta` and `eps` are the class's defaults."""
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    width = config.whole("head_dim", max(1, hidden // heads))
    config.only("hidden_act", "silu", default="silu")
    keys = config.whole("num_key_value_heads", heads)
    config.whole("max_position_embeddings")
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys if keys != heads else None,
        "head_dim": width if width * heads != hidden else None,
        "ffn_hidden": config.whole("intermediate_size"),
        "vocab_size": config.whole("vocab_size"),
        "norm_eps": config.number("rms_norm_eps", eps),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "dropout": config.nonnegative("attention_dropout", 0.0),
        **read_rope(config, theta),
    }


def outer(model: Model) -> Iterator[Rule]:
    """Embedding, final norm and head."""
    yield same("embedding.weight", "model.embed_tokens.weight")
    yield from norm("norm", "model.norm", model)
    if not model.tied_embeddings:
        yield same("head.weight", "lm_head.weight")


def norms(ours: str, theirs: str, model: Model) -> Iterator[Rule]:
    """The two norms of a block."""
    yield from norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", model)
    yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm", model)


def attention(ours: str, theirs: str, model: Model) -> Iterator[Rule]:
    """The four projections. Pairs of turned dims are (i, i + R/2) on both sides, so that no rows move."""
    for name, other in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "o_proj")):
        yield from linear(f"{ours}.{name}", f"{theirs}.{other}", model)


def feed_forward(ours: str, theirs: str, model: Model) -> Iterator[Rule]:
    """Two projections, or three with a gate."""
    if model.activation == "swiglu":
        yield from linear(f"{ours}.gate", f"{theirs}.gate_proj", model)
    yield from linear(f"{ours}.up", f"{theirs}.up_proj", model)
    yield from linear(f"{ours}.out", f"{theirs}.down_proj", model)


LLAMA = Family("llama", _CLASS, obstacles, config, read, rules, buffers=(r".*\.rotary_emb\.inv_freq",))
