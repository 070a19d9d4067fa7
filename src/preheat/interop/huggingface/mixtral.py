"""Mixtral (arXiv 2401.04088) as `MixtralForCausalLM`: LLaMA's stream with a softmax router over experts in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preheat.interop.huggingface import llama
from preheat.interop.huggingface.family import Config, Family, Obstacle, Setting, unequal
from preheat.interop.tensor_rules import Rule, same, unstacked
from preheat.recipe import Model

_CLASS = "MixtralForCausalLM"


def obstacles(model: Model, setting: Setting) -> Iterator[Obstacle]:
    """What of a model `MixtralForCausalLM` cannot express."""
    yield from unequal(model, _CLASS, activation="swiglu", norm="rmsnorm", bias=False, qk_norm=False, position="rotary")
    yield from unequal(model, _CLASS, rotary_fraction=1.0, mla=None, mtp=None)
    experts = model.experts
    if experts is None:
        yield Obstacle("model.experts", None, f"{_CLASS} has experts in every layer")
        return
    plain = {"score": "softmax", "shared": 0, "first_dense": 0, "scaling": 1.0, "capacity_factor": None}
    for name, want in {**plain, "groups": None}.items():
        if getattr(experts, name) != want:
            yield Obstacle(f"model.experts.{name}", getattr(experts, name), f"{_CLASS} has {'none' if want is None else want}")
    if experts.active == 1:
        yield Obstacle("model.experts.active", 1, f"{_CLASS} gives a single expert the weight 1, preheat its score")


def config(model: Model, setting: Setting) -> dict[str, Any]:
    """Its config.json; the width of an expert stands where LLaMA has that of the feed-forward."""
    assert model.experts is not None
    return llama.stream(model, setting) | {
        "intermediate_size": model.experts.ffn_hidden,
        "num_local_experts": model.experts.count,
        "num_experts_per_tok": model.experts.active,
        "router_aux_loss_coef": model.experts.aux_loss,
        "sliding_window": model.sliding_window,
    }


def read(config: Config) -> dict[str, Any]:
    """The fields of `[model]`."""
    config.only("router_jitter_noise", 0.0, default=0.0)
    if config.whole("num_experts_per_tok", 2) == 1:
        config.refuse("num_experts_per_tok", "at least 2: preheat weighs a single expert by its score")
    fields = llama.read_stream(config, theta=1_000_000.0, eps=1e-5)
    experts = {"count": config.whole("num_local_experts", 8), "active": config.whole("num_experts_per_tok", 2)}
    aux_loss = config.nonnegative("router_aux_loss_coef", 0.001)
    window = config.get("sliding_window")
    return fields | {"sliding_window": window, "experts": experts | {"ffn_hidden": fields["ffn_hidden"], "aux_loss": aux_loss}}


def rules(model: Model) -> Iterator[Rule]:
    """All tensors."""
    assert model.experts is not None
    yield from llama.outer(model)
    for layer in range(model.layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        yield from llama.norms(ours, theirs, model)
        yield from llama.attention(f"{ours}.attention", f"{theirs}.self_attn", model)
        moe = f"{theirs}.block_sparse_moe"
        yield same(f"{ours}.feed_forward.router.weight", f"{moe}.gate.weight")
        for name, other in (("gate", "w1"), ("out", "w2"), ("up", "w3")):
            each = [f"{moe}.experts.{number}.{other}.weight" for number in range(model.experts.count)]
            yield unstacked(f"{ours}.feed_forward.experts.{name}.weight", each)


MIXTRAL = Family("mixtral", _CLASS, obstacles, config, read, rules, buffers=(r".*\.rotary_emb\.inv_freq",))
