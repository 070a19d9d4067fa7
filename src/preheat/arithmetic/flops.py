"""Floating-point operations per trained token, under the conventions in use. Forward and backward, a multiply-add is two.

The three differ by up to a fifth for the same step, so a figure without its convention says little.
"""

from __future__ import annotations

from dataclasses import dataclass

from preheat.arithmetic.parameters import head_dim, padded_vocab, parameters
from preheat.recipe import Model


@dataclass(frozen=True)
class Flops:
    """FLOPs per token of a training step."""

    causal: int
    """What a causal model has to multiply: the matrices, and attention over the positions that a token sees."""
    full_square: int
    """6N + 12LHQT (PaLM, arXiv 2204.02311, appendix B; nanoGPT): all parameters but position tables, full-square attention."""
    megatron: int
    """Megatron-LM's counter: the matrices with the padded vocabulary, causal half of attention."""


def flops_per_token(model: Model, seq_len: int, tensor: int = 1) -> Flops:
    """FLOPs per token at a sequence length; `tensor` is the tensor-parallel size that pads the vocabulary."""
    count = parameters(model)
    width = model.heads * head_dim(model)
    attention_pair = 12 * model.layers * width
    padding = padded_vocab(model.vocab_size, tensor) - model.vocab_size
    return Flops(
        causal=6 * count.multiplied + attention_pair * (seq_len + 1) // 2,
        full_square=6 * (count.total - count.positions) + attention_pair * seq_len,
        megatron=6 * (count.multiplied + padding * model.hidden) + attention_pair * seq_len // 2,
    )
