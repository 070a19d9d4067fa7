"""Floating-point operations per trained token, under the conventions in use. Forward and backward, a multiply-add is two.

The three differ by up to a fifth for the same step, so a figure without its convention says little.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from preheat.arithmetic.parameters import head_dim, padded_vocab, parameters, predicted_tokens, value_dim
from preheat.recipe import Model


@dataclass(frozen=True)
class Flops:
    """FLOPs per token of a training step."""

    causal: int
    """What a causal model has to multiply: active matrices, and attention over the positions that a token sees."""
    full_square: int
    """6N + 12LHQT (PaLM, arXiv 2204.02311, appendix B; nanoGPT): active parameters but position tables, full-square attention."""
    megatron: int
    """Megatron-LM's counter: active matrices with the padded vocabulary but without the router, causal half of attention."""


def flops_per_token(model: Model, seq_len: int, tensor: int = 1) -> Flops:
    """FLOPs per token at a sequence length; `tensor` is the tensor-parallel size that pads the vocabulary.

    Multi-token prediction counts as the further layers and heads that it is.
    """
    count = parameters(model)
    ahead = predicted_tokens(model)
    layers = model.layers + ahead - 1
    pair = 6 * layers * model.heads * (head_dim(model) + value_dim(model))
    """One token against one position in all layers: scores and weighted values, forward and twice backward."""
    padding = (padded_vocab(model.vocab_size, tensor) - model.vocab_size) * model.hidden * ahead
    seen = seq_len if model.sliding_window is None else min(model.sliding_window, seq_len)
    mean_seen = Fraction(seen * (seen + 1) // 2 + (seq_len - seen) * seen, seq_len)
    return Flops(
        causal=6 * count.multiplied + int(pair * mean_seen),
        full_square=6 * (count.active - count.positions) + pair * seq_len,
        megatron=6 * (count.multiplied - _uncounted(model) + padding) + pair * seq_len // 2,
    )


def _uncounted(model: Model) -> int:
    """Weights that Megatron-LM's counter leaves out, less norm weights of latent attention and prediction layers that it puts in."""
    router = 0
    if model.experts is not None:
        sparse = model.layers - min(model.experts.first_dense, model.layers) + predicted_tokens(model) - 1
        router = sparse * model.hidden * model.experts.count
    norms = 0
    if model.mla is not None:
        norms += (model.layers + predicted_tokens(model) - 1) * (model.mla.kv_lora_rank + (model.mla.q_lora_rank or 0))
    norms += 3 * model.hidden * (predicted_tokens(model) - 1)
    return router - norms
