"""GPT-NeoX (arXiv 2204.06745) as `GPTNeoXForCausalLM`, attention before feed-forward: the class for LayerNorm, rotary and GELU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preheat.arithmetic import head_dim
from preheat.interop.huggingface.family import Config, Family, Obstacle, Setting, even_heads, linear, norm, own_head_dim, unequal
from preheat.interop.huggingface.nemotron import partial_rotary, read_fraction
from preheat.interop.huggingface.rope import read_rope, rope_keys
from preheat.interop.tensor_rules import Rule, interleaved_heads, same
from preheat.recipe import Model

_CLASS = "GPTNeoXForCausalLM"


def obstacles(model: Model, setting: Setting) -> Iterator[Obstacle]:
    """What of a model `GPTNeoXForCausalLM` cannot express."""
    yield from unequal(model, _CLASS, activation="gelu", norm="layernorm", bias=True, qk_norm=False, position="rotary")
    yield from unequal(model, _CLASS, sliding_window=None, mla=None, experts=None, mtp=None)
    if model.kv_heads not in (None, model.heads):
        yield Obstacle("model.kv_heads", model.kv_heads, f"{_CLASS} has as many as heads = {model.heads}")
    yield from even_heads(model, _CLASS)
    yield from own_head_dim(model, _CLASS)
    yield from partial_rotary(model, setting, _CLASS)


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
        "hidden_act": "gelu_new",
        "max_position_embeddings": setting.max_positions,
        "layer_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": model.dropout,
        "hidden_dropout": model.dropout,
        "attention_bias": True,
        "use_parallel_residual": False,
        "rotary_pct": model.rotary_fraction,
        "rotary_emb_base": setting.rope.theta,
        **rope,
    }


def read(config: Config) -> dict[str, Any]:
    """The fields of `[model]`. Released GPT-NeoX and Pythia models run attention and feed-forward side by side, and are refused."""
    config.only("use_parallel_residual", False, default=True)
    config.only("hidden_act", "gelu_new", "gelu_pytorch_tanh", default="gelu")
    config.only("attention_bias", True, default=True)
    theta = config.number("rotary_emb_base", 10_000.0)
    dropouts = [config.nonnegative(key, 0.0) for key in ("attention_dropout", "hidden_dropout")]
    if len(set(dropouts)) > 1:
        config.notes.append(f"dropout {max(dropouts):g} everywhere; the configuration has {', '.join(f'{d:g}' for d in dropouts)}")
    config.whole("max_position_embeddings")
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "ffn_hidden": config.whole("intermediate_size"),
        "vocab_size": config.whole("vocab_size"),
        "activation": "gelu",
        "norm": "layernorm",
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "bias": True,
        "rotary_fraction": read_fraction(config, "rotary_pct", 0.25),
        "dropout": max(dropouts),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        **read_rope(config, theta, partial=True),
    }


def rules(model: Model) -> Iterator[Rule]:
    """All tensors. Query, key and value lie together, head by head."""
    yield same("embedding.weight", "gpt_neox.embed_in.weight")
    for layer in range(model.layers):
        ours, theirs = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", model)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm", model)
        for kind in ("weight", "bias"):
            query, key, value = (f"{ours}.attention.{name}.{kind}" for name in ("query", "key", "value"))
            together = f"{theirs}.attention.query_key_value.{kind}"
            yield interleaved_heads(query, key, value, together, groups=model.heads, queries=1, width=head_dim(model))
        yield from linear(f"{ours}.attention.out", f"{theirs}.attention.dense", model)
        yield from linear(f"{ours}.feed_forward.up", f"{theirs}.mlp.dense_h_to_4h", model)
        yield from linear(f"{ours}.feed_forward.out", f"{theirs}.mlp.dense_4h_to_h", model)
    yield from norm("norm", "gpt_neox.final_layer_norm", model)
    if not model.tied_embeddings:
        yield same("head.weight", "embed_out.weight")


GPT_NEOX = Family(
    "gpt_neox",
    _CLASS,
    obstacles,
    config,
    read,
    rules,
    embedding="gpt_neox.embed_in.weight",
    head="embed_out.weight",
    buffers=(r".*\.rotary_emb\.inv_freq", r".*\.attention\.(bias|masked_bias)"),
)
