"""Nemotron (arXiv 2402.16819) as `NemotronForCausalLM`: squared ReLU, LayerNorm-1p, positions that turn a part of each head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preheat.arithmetic import head_dim, kv_heads
from preheat.interop.huggingface import llama
from preheat.interop.huggingface.family import Config, Family, Obstacle, Setting, unequal
from preheat.interop.huggingface.rope import read_rope, rope_keys
from preheat.recipe import Model

_CLASS = "NemotronForCausalLM"


def obstacles(model: Model, setting: Setting) -> Iterator[Obstacle]:
    """What of a model `NemotronForCausalLM` cannot express."""
    yield from unequal(model, _CLASS, activation="squared_relu", norm="layernorm1p", qk_norm=False, position="rotary")
    yield from unequal(model, _CLASS, sliding_window=None, mla=None, experts=None, mtp=None)
    yield from partial_rotary(model, setting, _CLASS)


def partial_rotary(model: Model, setting: Setting, architecture: str) -> Iterator[Obstacle]:
    """Obstacles where heads are turned in part: the classes turn an odd number of dims as if there were one more, and where yarn makes
    queries and keys larger they scale the turned dims only, preheat all.
    """
    turned = int(head_dim(model) * model.rotary_fraction)
    if turned % 2 or not turned:
        yield Obstacle("model.rotary_fraction", model.rotary_fraction, f"{architecture} turns pairs of dims, and these are {turned}")
    scaling = setting.rope.scaling if setting.rope else None
    if scaling is not None and scaling.kind == "yarn" and model.rotary_fraction < 1 and scaling.mscale != 0:
        yield Obstacle("model.rope_scaling.kind", "yarn", f"{architecture} scales the turned dims only, where rotary_fraction is below 1")


def config(model: Model, setting: Setting) -> dict[str, Any]:
    """Its config.json."""
    assert setting.rope is not None
    rope = rope_keys(setting.rope)
    rope["rope_parameters"]["partial_rotary_factor"] = model.rotary_fraction
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": kv_heads(model),
        "head_dim": head_dim(model),
        "hidden_act": "relu2",
        "max_position_embeddings": setting.max_positions,
        "norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": model.dropout,
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "partial_rotary_factor": model.rotary_fraction,
        **rope,
    }


def read(config: Config) -> dict[str, Any]:
    """The fields of `[model]`."""
    config.only("hidden_act", "relu2", default="relu2")
    bias = config.flag("attention_bias", False)
    config.only("mlp_bias", bias, default=False)
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    width, keys = config.whole("head_dim", max(1, hidden // heads)), config.whole("num_key_value_heads", heads)
    config.whole("max_position_embeddings")
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys if keys != heads else None,
        "head_dim": width if width * heads != hidden else None,
        "ffn_hidden": config.whole("intermediate_size"),
        "vocab_size": config.whole("vocab_size"),
        "activation": "squared_relu",
        "norm": "layernorm1p",
        "norm_eps": config.number("norm_eps", 1e-5),
        "bias": bias,
        "rotary_fraction": read_fraction(config, "partial_rotary_factor", 0.5),
        "dropout": config.nonnegative("attention_dropout", 0.0),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        **read_rope(config, 10_000.0, partial=True),
    }


def read_fraction(config: Config, key: str, default: float) -> float:
    """The share of each head's dims that is turned, from `rope_parameters` or the older key."""
    new = config.table("rope_parameters").get("partial_rotary_factor")
    old = config.number(key, new if new is not None else default)
    if new is not None and new != old:
        config.refuse(key, f"rope_parameters has {new}")
    return old


NEMOTRON = Family("nemotron", _CLASS, obstacles, config, read, llama.rules)
