"""GPT-2 and GPT-3 (arXiv 2005.14165) as `GPT2LMHeadModel`, whose matrices lie as inputs x outputs with query, key and value in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preheat.interop.huggingface.family import Config, Family, Obstacle, Setting, norm, own_head_dim, unequal
from preheat.interop.tensor_rules import Rule, joined, same, transposed
from preheat.recipe import Model

_CLASS = "GPT2LMHeadModel"


def obstacles(model: Model, setting: Setting) -> Iterator[Obstacle]:
    """What of a model `GPT2LMHeadModel` cannot express."""
    yield from unequal(model, _CLASS, activation="gelu", norm="layernorm", bias=True, qk_norm=False, position="learned")
    yield from unequal(model, _CLASS, sliding_window=None, mla=None, experts=None, mtp=None)
    if model.kv_heads not in (None, model.heads):
        yield Obstacle("model.kv_heads", model.kv_heads, f"{_CLASS} has as many as heads = {model.heads}")
    yield from own_head_dim(model, _CLASS)


def config(model: Model, setting: Setting) -> dict[str, Any]:
    """Its config.json. The table of positions stays whole, whatever lengths were trained."""
    return {
        "vocab_size": model.vocab_size,
        "n_positions": model.max_positions,
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn_hidden,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.norm_eps,
        "initializer_range": model.init_std,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.dropout,
        "tie_word_embeddings": model.tied_embeddings,
    }


def read(config: Config) -> dict[str, Any]:
    """The fields of `[model]`."""
    config.only("activation_function", "gelu_new", "gelu_pytorch_tanh", default="gelu_new")
    config.only("scale_attn_weights", True, default=True)
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        config.only(key, False, default=False)
    config.get("reorder_and_upcast_attn")
    dropouts = [config.nonnegative(key, 0.1) for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")]
    if len(set(dropouts)) > 1:
        config.notes.append(f"dropout {max(dropouts):g} everywhere; the configuration has {', '.join(f'{d:g}' for d in dropouts)}")
    hidden = config.whole("n_embd", 768)
    return {
        "layers": config.whole("n_layer", 12),
        "hidden": hidden,
        "heads": config.whole("n_head", 12),
        "ffn_hidden": config.whole("n_inner", 4 * hidden),
        "vocab_size": config.whole("vocab_size", 50_257),
        "max_positions": config.whole("n_positions", 1024),
        "activation": "gelu",
        "norm": "layernorm",
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "bias": True,
        "position": "learned",
        "dropout": max(dropouts),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def rules(model: Model) -> Iterator[Rule]:
    """All tensors."""
    yield same("embedding.weight", "transformer.wte.weight")
    yield same("positions.weight", "transformer.wpe.weight")
    for layer in range(model.layers):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.ln_1", model)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", model)
        parts, rows = [f"{ours}.attention.{name}" for name in ("query", "key", "value")], [model.hidden] * 3
        yield joined([f"{part}.weight" for part in parts], f"{theirs}.attn.c_attn.weight", rows, transpose=True)
        yield joined([f"{part}.bias" for part in parts], f"{theirs}.attn.c_attn.bias", rows)
        for name, other in (("attention.out", "attn.c_proj"), ("feed_forward.up", "mlp.c_fc"), ("feed_forward.out", "mlp.c_proj")):
            yield transposed(f"{ours}.{name}.weight", f"{theirs}.{other}.weight")
            yield same(f"{ours}.{name}.bias", f"{theirs}.{other}.bias")
    yield from norm("norm", "transformer.ln_f", model)
    if not model.tied_embeddings:
        yield same("head.weight", "lm_head.weight")


GPT2 = Family(
    "gpt2",
    _CLASS,
    obstacles,
    config,
    read,
    rules,
    embedding="transformer.wte.weight",
    buffers=(r".*\.attn\.(bias|masked_bias)",),
)
