"""Tensors of a Megatron-LM checkpoint (`torch_dist`) and ours, both ways.

Megatron keeps the same matrix of all layers as one tensor with the layers as first dim, norms under the names of Transformer Engine's fused
layers, query, key and value together group by group, and gate above up. Holds for megatron-core 0.16 to 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator

from preheat.arithmetic import head_dim, kv_heads, padded_vocab
from preheat.errors import refuse
from preheat.interop.tensor_rules import Rule, interleaved_heads, joined, padded, same, stacked
from preheat.recipe import Model


def megatron_rules(model: Model, tensor: int = 1) -> tuple[Rule, ...]:
    """All tensors of a checkpoint, without the `_extra_state` that Transformer Engine adds.

    Args:
        tensor: the tensor-parallel size that the checkpoint was padded for: the vocabulary has a multiple of 128 rows on each rank.

    Raises:
        PreheatError: the model has latent attention, prediction layers, or experts that are not Mixtral's.
    """
    _refuse_beyond(model)
    own, rows = model.vocab_size, padded_vocab(model.vocab_size, tensor)
    rules = [padded("embedding.weight", "embedding.word_embeddings.weight", own, rows)]
    if model.position == "learned":
        rules.append(same("positions.weight", "embedding.position_embeddings.weight"))
    per_layer = [list(_layer(model, f"blocks.{layer}", "decoder.layers")) for layer in range(model.layers)]
    rules += [stacked(each) for each in zip(*per_layer, strict=True)]
    rules += _norm("norm", "decoder.final_layernorm.", model)
    if not model.tied_embeddings:
        rules.append(padded("head.weight", "output_layer.weight", own, rows))
    return tuple(rules)


def _layer(model: Model, ours: str, theirs: str) -> Iterator[Rule]:
    """The tensors of one layer, always in the same order and each under the name that all layers share."""
    attention, other = f"{ours}.attention", f"{theirs}.self_attention"
    yield from _norm(f"{ours}.attention_norm", f"{other}.linear_qkv.layer_norm_", model)
    groups, width = kv_heads(model), head_dim(model)
    for kind in _kinds(model):
        query, key, value = (f"{attention}.{name}.{kind}" for name in ("query", "key", "value"))
        together = f"{other}.linear_qkv.{kind}"
        yield interleaved_heads(query, key, value, together, groups=groups, queries=model.heads // groups, width=width)
        yield same(f"{attention}.out.{kind}", f"{other}.linear_proj.{kind}")
    if model.qk_norm:
        yield from _norm(f"{attention}.query_norm", f"{other}.q_layernorm.", model)
        yield from _norm(f"{attention}.key_norm", f"{other}.k_layernorm.", model)
    feed_forward, mlp = f"{ours}.feed_forward", f"{theirs}.mlp"
    if model.experts is None:
        yield from _norm(f"{ours}.feed_forward_norm", f"{mlp}.linear_fc1.layer_norm_", model)
        yield from _matrices(model, feed_forward, mlp, model.ffn_hidden, dim=0)
    else:
        yield from _norm(f"{ours}.feed_forward_norm", f"{theirs}.pre_mlp_layernorm.", model)
        yield same(f"{feed_forward}.router.weight", f"{mlp}.router.weight")
        yield from _matrices(model, f"{feed_forward}.experts", f"{mlp}.experts.experts", model.experts.ffn_hidden, dim=1)


def _matrices(model: Model, ours: str, theirs: str, width: int, dim: int) -> Iterator[Rule]:
    for kind in _kinds(model):
        if model.activation == "swiglu":
            yield joined([f"{ours}.gate.{kind}", f"{ours}.up.{kind}"], f"{theirs}.linear_fc1.{kind}", [width] * 2, dim=dim)
        else:
            yield same(f"{ours}.up.{kind}", f"{theirs}.linear_fc1.{kind}")
        yield same(f"{ours}.out.{kind}", f"{theirs}.linear_fc2.{kind}")


def _norm(ours: str, theirs: str, model: Model) -> Iterator[Rule]:
    """LayerNorm-1p keeps its weight as an offset from one on both sides."""
    for kind in ("weight",) if model.norm == "rmsnorm" else ("weight", "bias"):
        yield same(f"{ours}.{kind}", f"{theirs}{kind}")


def _kinds(model: Model) -> tuple[str, ...]:
    return ("weight", "bias") if model.bias else ("weight",)


def _refuse_beyond(model: Model) -> None:
    experts = model.experts
    beyond = {"model.mla": model.mla is not None, "model.mtp": model.mtp is not None}
    if experts is not None:
        beyond |= {
            "model.experts.first_dense": experts.first_dense > 0,
            "model.experts.shared": experts.shared > 0,
            "model.experts.score": experts.score != "softmax",
            "model.bias": model.bias,
        }
    wrong = [key for key, there in beyond.items() if there]
    if wrong:
        got = f"{', '.join(wrong)} in the model"
        refuse(
            "megatron.tensors", got, "the names of dense models and of Mixtral are known", "Convert by way of Hugging Face", key=wrong[0]
        )
