"""How many parameters a model has, by component; tests hold the sum equal to the built module."""

from __future__ import annotations

from dataclasses import dataclass

from preheat.recipe import Model


@dataclass(frozen=True)
class Parameters:
    """Parameter counts. `active` counts what one token passes through (the same as `total` for a dense model)."""

    embedding: int
    positions: int
    attention: int
    feed_forward: int
    norms: int
    head: int
    """The output matrix when it is not tied to the embedding."""
    multiplied: int
    """Parameters of the matrices that every token is multiplied with: no biases, no look-up tables, the head once."""

    @property
    def total(self) -> int:
        return self.embedding + self.positions + self.attention + self.feed_forward + self.norms + self.head

    @property
    def active(self) -> int:
        return self.total


def head_dim(model: Model) -> int:
    """Width of one attention head."""
    return model.head_dim or model.hidden // model.heads


def kv_heads(model: Model) -> int:
    """Key and value heads."""
    return model.kv_heads or model.heads


def parameters(model: Model) -> Parameters:
    """Count the parameters of a recipe's `[model]`."""
    query, key_value = model.heads * head_dim(model), kv_heads(model) * head_dim(model)
    attention = model.hidden * (query + 2 * key_value) + query * model.hidden
    attention_bias = (query + 2 * key_value + model.hidden) if model.bias else 0
    inner = 2 if model.activation == "swiglu" else 1
    feed_forward = (inner + 1) * model.hidden * model.ffn_hidden
    feed_forward_bias = (inner * model.ffn_hidden + model.hidden) if model.bias else 0
    norm = 2 * model.hidden if model.norm == "layernorm" else model.hidden
    table = model.vocab_size * model.hidden
    return Parameters(
        embedding=table,
        positions=(model.max_positions or 0) * model.hidden if model.position == "learned" else 0,
        attention=model.layers * (attention + attention_bias),
        feed_forward=model.layers * (feed_forward + feed_forward_bias),
        norms=(2 * model.layers + 1) * norm,
        head=0 if model.tied_embeddings else table,
        multiplied=model.layers * (attention + feed_forward) + table,
    )


def padded_vocab(vocab_size: int, tensor: int, multiple: int = 128) -> int:
    """The vocabulary rounded up so that every tensor-parallel rank holds a multiple of `multiple` rows (Megatron-LM's rule)."""
    step = multiple * tensor
    return -(-vocab_size // step) * step
