"""Bytes that a forward pass keeps for the backward pass, per token, by kind of layer and by what divides them over ranks.

The counts are those of arXiv 2205.05198, section 4, taken apart: its 34 bytes per token and hidden unit of a GPT layer are two inputs of
norms (4), inputs of products (qkv 2, out 2, up 2, down 8), queries, keys and values (6), the input of the activation function (8) and
two dropout masks (2); its 5 bytes per score of a head are softmax (2), dropout's mask (1) and result (2).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from preheat.arithmetic.parameters import head_dim, kv_heads, value_dim
from preheat.arithmetic.programs import Program
from preheat.recipe import Experts, LatentAttention, Model, Precision


@dataclass(frozen=True)
class Kept:
    """Bytes per token of a micro-batch, before any division over ranks."""

    stream: float = 0.0
    """Divided over tensor ranks with sequence parallelism, whole on each without."""
    inputs: float = 0.0
    """Inputs of products that are split over tensor ranks: as the stream, or whole even then (`Program.keeps_shards`)."""
    split: float = 0.0
    """Divided over tensor ranks."""
    routed: float = 0.0
    """Of experts, for all choices of a token; divided over the tensor ranks if those route apart, and over `expert_tensor`."""
    routed_inputs: float = 0.0
    """The same, but whole on each of the `expert_tensor` ranks."""
    scores: float = 0.0
    """Per key of the sequence: attention that holds its scores; divided over tensor ranks."""

    def __add__(self, other: Kept) -> Kept:
        return Kept(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))


_FIELDS = tuple(field.name for field in fields(Kept))


@dataclass(frozen=True)
class LayerKept:
    """What one layer keeps, by what recomputation can spare."""

    entry: Kept
    """The layer's input: all that is kept of a layer that is recomputed as a whole."""
    attention: Kept
    """Both norms' inputs, the attention and its dropout; without `scores`, which `selective` recomputes."""
    scores: Kept
    feed_forward: Kept


class _Sizes:
    """Bytes of an element, by what it is."""

    def __init__(self, precision: Precision, program: Program) -> None:
        whole = precision.compute == "fp32"
        fp8 = precision.compute == "fp8"
        self.kept = 4 if whole else 1 if fp8 and not program.keeps_cheap else 2
        self.product = 1 if fp8 and program.keeps_fp8 else self.kept
        """What a product reads."""
        self.stream = max(program.stream, self.kept)
        """The residual stream, and what is normalised."""
        self.rounded_apart = self.stream > self.kept and not program.joint_projections
        """Each product that reads what a norm wrote rounds it for itself, and keeps that."""
        self.normaliser = 4 if program.fused_attention else 0
        """Of each head's softmax, which attention that does not keep the scores keeps."""


def layer_kept(model: Model, precision: Precision, program: Program, *, sparse: bool) -> LayerKept:
    """What a layer with a dense feed-forward keeps, or (`sparse`) one with experts."""
    sizes = _Sizes(precision, program)
    if not program.keeps_cheap:
        return _least(model, sizes, sparse=sparse)
    around = Kept(stream=2 * (sizes.stream + (1 if model.dropout else 0)) * model.hidden)
    attention = _attention(model, sizes) if model.mla is None else _latent_attention(model, model.mla, sizes, program)
    scores = Kept()
    if not program.fused_attention:
        scores = Kept(scores=(sizes.kept + (1 + sizes.kept if model.dropout else 0)) * model.heads)
    if sparse and model.experts is not None:
        feed_forward = _experts(model, model.experts, sizes, program)
    else:
        feed_forward = _feed_forward(model, model.ffn_hidden, sizes, program)
    return LayerKept(Kept(stream=sizes.stream * model.hidden), around + attention, scores, feed_forward)


def _least(model: Model, sizes: _Sizes, *, sparse: bool) -> LayerKept:
    """Inputs of both blocks, queries, keys, values (or their latents) and output of attention, and what the activation function reads."""
    mla, experts = model.mla, model.experts
    entry = Kept(stream=sizes.stream * model.hidden)
    if mla is None:
        inside = 2 * (model.heads + kv_heads(model)) * head_dim(model)
    else:
        inside = mla.kv_lora_rank + (mla.q_lora_rank or 0) + model.heads * mla.v_head_dim
    inner = 2 if model.activation == "swiglu" else 1
    if sparse and experts is not None:
        feed_forward = Kept(split=inner * sizes.kept * experts.shared * experts.ffn_hidden)
        feed_forward += Kept(routed=inner * sizes.kept * experts.active * experts.ffn_hidden)
    else:
        feed_forward = Kept(split=inner * sizes.kept * model.ffn_hidden)
    return LayerKept(entry, entry + entry + Kept(split=sizes.kept * inside), Kept(), feed_forward)


def head_kept(model: Model, precision: Precision, program: Program) -> Kept:
    """The final norm, and the input of the head; of a loss that runs in chunks that input's gradient, which is computed along with it."""
    sizes = _Sizes(precision, program)
    if not program.keeps_cheap:
        return Kept()
    return Kept(stream=sizes.stream * model.hidden, inputs=(sizes.kept if program.logit_bytes else sizes.stream) * model.hidden)


def prediction_kept(model: Model, precision: Precision, program: Program) -> Kept:
    """What a layer that predicts further tokens keeps beside a transformer layer: two norms, the projection of both, a final norm."""
    sizes = _Sizes(precision, program)
    return Kept(stream=3 * sizes.stream * model.hidden, inputs=3 * sizes.kept * model.hidden)


def _attention(model: Model, sizes: _Sizes) -> Kept:
    query, key_value = model.heads * head_dim(model), kv_heads(model) * head_dim(model)
    normed = sizes.stream * (query + key_value) if model.qk_norm else 0
    return Kept(
        inputs=sizes.product * model.hidden * (3 if sizes.rounded_apart else 1),
        split=sizes.kept * (query + 2 * key_value) + normed + _mixed(model, query, sizes),
    )


def _latent_attention(model: Model, mla: LatentAttention, sizes: _Sizes, program: Program) -> Kept:
    """The latents lie along the sequence like the stream: their projections down are not split."""
    read = model.heads * (2 * head_dim(model) + value_dim(model))
    if not program.joint_projections:  # values are a view of keys and values, and the output is brought into another order
        read += model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return Kept(
        stream=(sizes.stream + sizes.product) * (mla.kv_lora_rank + (mla.q_lora_rank or 0)),
        inputs=sizes.product * model.hidden * (2 if sizes.rounded_apart else 1),
        split=sizes.kept * read + _mixed(model, model.heads * value_dim(model), sizes),
    )


def _mixed(model: Model, width: int, sizes: _Sizes) -> int:
    """The output of attention, which the next product reads too, and the normalisers."""
    return (sizes.kept if sizes.product == sizes.kept else sizes.kept + sizes.product) * width + sizes.normaliser * model.heads


def _inner(model: Model, sizes: _Sizes, program: Program) -> int:
    """Bytes per inner unit: what the activation function reads and what the second product does."""
    if model.activation != "swiglu":
        return sizes.kept + sizes.product
    return sizes.kept * (2 if program.fused_gate else 3) + sizes.product


def _feed_forward(model: Model, width: int, sizes: _Sizes, program: Program) -> Kept:
    copies = 2 if model.activation == "swiglu" and sizes.rounded_apart else 1
    return Kept(inputs=sizes.product * model.hidden * copies, split=_inner(model, sizes, program) * width)


def _experts(model: Model, experts: Experts, sizes: _Sizes, program: Program) -> Kept:
    """The router's input and its scores in fp32, the chosen experts' rows and inner units, the shared experts."""
    router = Kept(stream=sizes.stream * model.hidden + 8 * experts.count)
    output = sizes.kept * model.hidden if program.keeps_expert_output else 0
    routed = Kept(
        routed=experts.active * _inner(model, sizes, program) * experts.ffn_hidden,
        routed_inputs=experts.active * (sizes.product * model.hidden + output),
    )
    if not experts.shared:
        return router + routed
    shared = _feed_forward(model, experts.shared * experts.ffn_hidden, sizes, program)
    # They read what the router read, unless either rounds it for itself.
    return router + routed + (replace(shared, inputs=0.0) if sizes.stream == sizes.product else shared)
