"""A decoder-only transformer on one device: pre-norm blocks of attention and feed-forward around a residual stream.

Shapes in names: B sequences, T tokens, D model width (`hidden`), H query heads, K key and value heads, E width of a head, F inner
feed-forward width, V vocabulary. LLaMA (arXiv 2302.13971) and GPT-2 are two settings of the same recipe fields.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from preheat.arithmetic import head_dim, kv_heads
from preheat.errors import refuse
from preheat.model.cross_entropy import summed_cross_entropy, token_cross_entropies
from preheat.recipe import Model

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines of the rotation angles, both T x E; see `rotary_tables`."""


class Transformer(nn.Module):
    """The model that a recipe's `[model]` describes, which `preheat check` finds consistent. `preheat.model.build` makes one with its
    initial weights.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        _assert_consistent(model)
        self.config = model
        self.embedding = nn.Embedding(model.vocab_size, model.hidden)
        self.positions = nn.Embedding(model.max_positions or 0, model.hidden) if model.position == "learned" else None
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = _norm(model)
        self.head = None if model.tied_embeddings else nn.Linear(model.hidden, model.vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor, *, rope_theta: float | None = None, cache: Cache | None = None) -> Tensor:
        """The normalised hidden states, B x T x D, of which `logits` makes predictions of the next token.

        Args:
            tokens_BT: token ids, int64.
            rope_theta: base of the rotary frequencies in place of the model's own (a stage may change it).
            cache: what earlier calls read of the same sequences; this call continues there and adds to it.

        Raises:
            PreheatError: the sequence is longer than the table of learned positions.
        """
        start = cache.length if cache else 0
        end = start + tokens_BT.shape[1]
        x_BTD = self.embedding(tokens_BT)
        rotary = None
        if self.positions is not None:
            assert rope_theta is None, "learned positions have no rope_theta"
            if end > self.positions.num_embeddings:
                refuse(
                    "model.max_positions",
                    f"a sequence of {end} tokens",
                    f"the table of learned positions has {self.positions.num_embeddings} rows",
                    "Shorten the sequence or raise model.max_positions",
                )
            x_BTD = x_BTD + self.positions.weight[start:end]
        else:
            cos, sin = rotary_tables(
                rope_theta or self.config.rope_theta, head_dim(self.config), cache.capacity if cache else end, tokens_BT.device
            )
            rotary = cos[start:end], sin[start:end]
        for index, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, rotary, cache.layers[index] if cache else None)
        return self.norm(x_BTD)

    @property
    def output_weight(self) -> Tensor:
        """The V x D matrix that turns hidden states into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all V next tokens, ... x V, for hidden states, ... x D."""
        return nn.functional.linear(hidden, self.output_weight)

    def loss_sum(self, tokens_BT: Tensor, labels_BT: Tensor, *, rope_theta: float | None = None) -> Tensor:
        """The sum over all tokens of the cross-entropy to their labels in nats: a scalar, fp32. The logits are never held whole."""
        hidden_ND = self(tokens_BT, rope_theta=rope_theta).flatten(0, 1)
        return summed_cross_entropy(hidden_ND, self.output_weight, labels_BT.flatten())

    def token_losses(self, hidden_ND: Tensor, labels_N: Tensor) -> Tensor:
        """The cross-entropy of each label in nats, N, fp32, for scoring; it has no gradient."""
        return token_cross_entropies(hidden_ND, self.output_weight, labels_N)


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on the normalised stream and added back to it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = _norm(model)
        self.attention = Attention(model)
        self.feed_forward_norm = _norm(model)
        self.feed_forward = FeedForward(model)

    def forward(self, x_BTD: Tensor, rotary: Rotary | None, cache: LayerCache | None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotary, cache)
        return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


class Attention(nn.Module):
    """Causal attention in which H/K query heads share one key and value head (grouped-query attention, arXiv 2305.13245)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = head_dim(model)
        queries, keys = model.heads * self.head_dim, kv_heads(model) * self.head_dim
        self.grouped = queries != keys
        self.query = nn.Linear(model.hidden, queries, bias=model.bias)
        self.key = nn.Linear(model.hidden, keys, bias=model.bias)
        self.value = nn.Linear(model.hidden, keys, bias=model.bias)
        self.out = nn.Linear(queries, model.hidden, bias=model.bias)

    def forward(self, x_BTD: Tensor, rotary: Rotary | None, cache: LayerCache | None) -> Tensor:
        q_BHTE, k_BKTE, v_BKTE = (
            linear(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        if rotary is not None:
            q_BHTE, k_BKTE = rotate(q_BHTE, rotary), rotate(k_BKTE, rotary)
        causal = True
        if cache is not None:
            # One new token sees everything before it and needs no mask; several new tokens can only be the first ones.
            causal = cache.length == 0
            assert causal or q_BHTE.shape[2] == 1, "after the prompt the cache takes one token at a time"
            k_BKTE, v_BKTE = cache.extend(k_BKTE, v_BKTE)
        y_BHTE = nn.functional.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=causal, enable_gqa=self.grouped)
        y_BTD: Tensor = self.out(y_BHTE.transpose(1, 2).flatten(2))
        return y_BTD


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): out(silu(gate) * up); or out(gelu(up)) with the tanh form that GPT-2 has."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden, model.ffn_hidden, bias=model.bias) if model.activation == "swiglu" else None
        self.up = nn.Linear(model.hidden, model.ffn_hidden, bias=model.bias)
        self.out = nn.Linear(model.ffn_hidden, model.hidden, bias=model.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner_BTF = self.up(x_BTD)
        inner_BTF = (
            nn.functional.gelu(inner_BTF, approximate="tanh") if self.gate is None else nn.functional.silu(self.gate(x_BTD)) * inner_BTF
        )
        y_BTD: Tensor = self.out(inner_BTF)
        return y_BTD


class Cache:
    """The keys and values of the tokens read so far, for sequences of at most `capacity` tokens."""

    def __init__(self, model: Model, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [LayerCache(capacity) for _ in range(model.layers)]

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return self.layers[0].length


class LayerCache:
    """Keys and values of one layer, in the number format in which they come."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys_and_values: tuple[Tensor, Tensor] | None = None

    def extend(self, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of new tokens and return all, B x K x length x E."""
        if self._keys_and_values is None:
            batch, heads, _, width = k_BKTE.shape
            self._keys_and_values = (
                k_BKTE.new_empty(batch, heads, self.capacity, width),
                v_BKTE.new_empty(batch, heads, self.capacity, width),
            )
        start, self.length = self.length, self.length + k_BKTE.shape[2]
        assert self.length <= self.capacity, f"{self.length} tokens in a cache of {self.capacity}"
        keys, values = self._keys_and_values
        keys[:, :, start : self.length] = k_BKTE
        values[:, :, start : self.length] = v_BKTE
        return keys[:, :, : self.length], values[:, :, : self.length]


@lru_cache(maxsize=8)
def rotary_tables(theta: float, width: int, length: int, device: torch.device) -> Rotary:
    """Cosines and signed sines of position * theta^(-2i/width) (RoFormer, arXiv 2104.09864), length x width each, fp32.

    The angles repeat in the second half of the width, and the sines of the first half are negative: the form that `rotate` needs.
    They are computed in fp64; in fp32 they are off by 0.01 radians at position 100,000.
    """
    with torch.inference_mode(False):  # the tables outlive the call, and training may use them later
        frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
        cos_TE = torch.cat((angles.cos(), angles.cos()), dim=-1)
        sin_TE = torch.cat((-angles.sin(), angles.sin()), dim=-1)
        return cos_TE.to(device, torch.float32), sin_TE.to(device, torch.float32)


def rotate(x_BHTE: Tensor, rotary: Rotary) -> Tensor:
    """Turn the pairs (i, i + E/2) of each head by the angle of their position; the pairing of Megatron-LM and of LLaMA in Hugging Face."""
    cos_TE, sin_TE = rotary
    return (x_BHTE * cos_TE + x_BHTE.roll(x_BHTE.shape[-1] // 2, -1) * sin_TE).to(x_BHTE.dtype)


def _norm(model: Model) -> nn.Module:
    if model.norm == "rmsnorm":
        return nn.RMSNorm(model.hidden, eps=model.norm_eps)
    return nn.LayerNorm(model.hidden, eps=model.norm_eps)


def _assert_consistent(model: Model) -> None:
    """What `preheat check` refuses with file and line; a model made without it shall not be quietly another one."""
    assert model.head_dim or model.hidden % model.heads == 0, f"hidden = {model.hidden} over {model.heads} heads"
    assert model.heads % kv_heads(model) == 0, f"{model.heads} query heads over {kv_heads(model)} key and value heads"
    if model.position == "learned":
        assert model.max_positions is not None, "learned positions need max_positions"
        assert model.rope_theta is None, "learned positions have no rope_theta"
    else:
        assert model.rope_theta is not None, "rotary positions need rope_theta"
        assert model.max_positions is None, "rotary positions have no max_positions"
        assert head_dim(model) % 2 == 0, f"rotary positions turn pairs of dims: head width {head_dim(model)} is odd"
