"""Bytes that a forward pass keeps for the backward pass, per token, by kind of layer and by what divides them over ranks.

The counts are those of arXiv 2205.05198, section 4, taken apart: its 34 bytes per token and hidden unit of a GPT layer are two inputs of
norms (4), inputs of products (qkv 2, out 2, up 2, down 8), queries, keys and values (6), the input of the activation function (8) and
two dropout masks (2); its 5 bytes per score of a head are softmax (2), dropout's mask (1) and result (2).
"""

from __future__ import annotations

from dataclasses import dataclass

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
        return Kept(*(mine + its for mine, its in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[float, float, float, float, float, float]:
        return self.stream, self.inputs, self.split, self.routed, self.routed_inputs, self.scores


@dataclass(frozen=True)
class LayerKept:
    """What one layer keeps, by what recomputation can spare."""

    entry: float
    """Bytes per token of the layer's input: all that is kept of a layer that is recomputed as a whole. Divided like the stream."""
    attention: Kept
    """Both norms' inputs, the attention and its dropout; without `scores`, which `selective` recomputes."""
    scores: Kept
    feed_forward: Kept

    @property
    def every(self) -> Kept:
        return self.attention + self.scores + self.feed_forward


def layer_kept(model: Model, precision: Precision, program: Program, *, sparse: bool) -> LayerKept:
    """What a layer with a dense feed-forward keeps, or (`sparse`) one with experts."""
    element = 4 if precision.compute == "fp32" else 2
    stream = max(program.stream, element)
    mask = 1 if model.dropout else 0
    around = Kept(stream=2 * (stream + mask) * model.hidden)
    mla = model.mla
    attention = _attention(model, precision, program) if mla is None else _latent_attention(model, mla, precision, program)
    scores = Kept()
    if not program.fused_attention:
        scores = Kept(scores=(element + (1 + element if model.dropout else 0)) * model.heads)
    if sparse and model.experts is not None:
        feed_forward = _experts(model, model.experts, precision, program)
    else:
        feed_forward = _feed_forward(model, model.ffn_hidden, precision, program)
    return LayerKept(stream * model.hidden, around + attention, scores, feed_forward)


def head_kept(model: Model, precision: Precision, program: Program) -> Kept:
    """The final norm and the input of the head."""
    element = 4 if precision.compute == "fp32" else 2
    return Kept(stream=max(program.stream, element) * model.hidden, inputs=element * model.hidden)


def prediction_kept(model: Model, precision: Precision, program: Program) -> Kept:
    """What a layer that predicts further tokens keeps beside a transformer layer: two norms, the projection of both, a final norm."""
    element = 4 if precision.compute == "fp32" else 2
    return Kept(stream=3 * max(program.stream, element) * model.hidden, inputs=3 * element * model.hidden)


def _product(precision: Precision) -> int:
    """Bytes of an element of a product's input: fp8 keeps what it multiplied."""
    return {"fp32": 4, "fp8": 1}.get(precision.compute, 2)


def _attention(model: Model, precision: Precision, program: Program) -> Kept:
    element, product = 4 if precision.compute == "fp32" else 2, _product(precision)
    query, key_value = model.heads * head_dim(model), kv_heads(model) * head_dim(model)
    inputs = product * model.hidden * (1 if program.joint_projections else 3)
    out = (element + product if precision.compute == "fp8" else element) * query
    normed = element * (query + key_value) if model.qk_norm else 0
    return Kept(inputs=inputs, split=element * (query + 2 * key_value) + out + normed + 4 * model.heads)


def _latent_attention(model: Model, mla: LatentAttention, precision: Precision, program: Program) -> Kept:
    """The latents lie along the sequence like the stream: their projections down are not split."""
    element, product = 4 if precision.compute == "fp32" else 2, _product(precision)
    latents = (element + product) * (mla.kv_lora_rank + (mla.q_lora_rank or 0)) + element * mla.qk_rope_head_dim
    inputs = product * model.hidden * (1 if program.joint_projections else 2)
    heads = model.heads * (2 * head_dim(model) + value_dim(model))
    out = (element + product if precision.compute == "fp8" else element) * model.heads * value_dim(model)
    return Kept(stream=latents, inputs=inputs, split=element * heads + out + 4 * model.heads)


def _inner(model: Model, precision: Precision, program: Program) -> float:
    """Bytes per inner unit: what the activation function reads and what the second product does."""
    element, product = 4 if precision.compute == "fp32" else 2, _product(precision)
    if model.activation != "swiglu":
        return element + product
    return element * (2 if program.fused_gate else 3) + product


def _feed_forward(model: Model, width: int, precision: Precision, program: Program) -> Kept:
    copies = 2 if model.activation == "swiglu" and not program.joint_projections else 1
    return Kept(inputs=_product(precision) * model.hidden * copies, split=_inner(model, precision, program) * width)


def _experts(model: Model, experts: Experts, precision: Precision, program: Program) -> Kept:
    """The router's scores in fp32 and its input, the chosen experts' rows and inner units, the shared experts."""
    element, product = 4 if precision.compute == "fp32" else 2, _product(precision)
    router = Kept(stream=element * model.hidden + 8 * experts.count)
    output = element * model.hidden if program.keeps_expert_output else 0
    routed = Kept(
        routed=experts.active * _inner(model, precision, program) * experts.ffn_hidden,
        routed_inputs=experts.active * (product * model.hidden + output),
    )
    shared = _feed_forward(model, experts.shared * experts.ffn_hidden, precision, program) if experts.shared else Kept()
    return router + routed + shared
