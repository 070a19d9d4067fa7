"""Attention: who reads from whom. Queries, keys and values are made here or in `latent_attention`; `InnerAttention` mixes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from preheat.arithmetic import head_dim, kv_heads
from preheat.model.cache import LayerCache
from preheat.model.mask import seen
from preheat.model.norm import norm
from preheat.model.rotary import Rotary, rotate
from preheat.recipe import Model


@dataclass(frozen=True)
class Sight:
    """What attention is told of the tokens beside their vectors; the same in all layers."""

    length: int
    """Of whole sequences, cached tokens included."""
    positions_T: Tensor
    """Where in their sequences the tokens stand: all positions in order, but for context parallelism and after cached tokens."""
    rotary: Rotary | None
    """Angles of the tokens' positions; None where positions are learned."""
    scale: float
    """Factor on the products of queries and keys."""
    documents_BT: Tensor | None = None
    """The number of each token's document, of whole sequences; None when documents don't matter."""
    window: int | None = None
    """Positions that a token sees, itself included; None for all."""

    @cached_property
    def seen(self) -> Tensor | None:
        """True where a query sees a key of whole sequences that are read at once, or None: see `mask.seen`."""
        return seen(self.length, self.positions_T.device, self.documents_BT, self.window)


class InnerAttention(nn.Module):
    """Softmax attention over given queries, keys and values. It has no parameters: context parallelism puts its own in this place."""

    def forward(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, sight: Sight, cache: LayerCache | None = None) -> Tensor:
        """Read from the tokens seen, B x H x T x E; H/K query heads share one key and value head (arXiv 2305.13245)."""
        if cache is None or cache.length == 0:
            if cache is not None:
                cache.extend(k_BKTE, v_BKTE)
            return attend(q_BHTE, k_BKTE, v_BKTE, sight.scale, seen=sight.seen, causal=sight.seen is None)
        # A token after cached ones sees them all, and needs no mask but the window.
        assert q_BHTE.shape[2] == 1, "after the prompt the cache takes one token at a time"
        k_BKTE, v_BKTE = cache.extend(k_BKTE, v_BKTE)
        if sight.window is not None:
            k_BKTE, v_BKTE = k_BKTE[:, :, -sight.window :], v_BKTE[:, :, -sight.window :]
        return attend(q_BHTE, k_BKTE, v_BKTE, sight.scale, seen=None, causal=False)


def attend(q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, scale: float, *, seen: Tensor | None, causal: bool) -> Tensor:
    """softmax(q k^T * scale) v over the keys that are seen, or that come no later than the query, B x H x T x E."""
    grouped = q_BHTE.shape[1] != k_BKSE.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        q_BHTE, k_BKSE, v_BKSE, attn_mask=seen, is_causal=causal, scale=scale, enable_gqa=grouped
    )


class Attention(nn.Module):
    """Causal attention with separate projections to queries, keys and values, grouped where there are fewer key heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = head_dim(model)
        queries, keys = model.heads * self.head_dim, kv_heads(model) * self.head_dim
        self.query = nn.Linear(model.hidden, queries, bias=model.bias)
        self.key = nn.Linear(model.hidden, keys, bias=model.bias)
        self.value = nn.Linear(model.hidden, keys, bias=model.bias)
        self.query_norm = norm(model, self.head_dim) if model.qk_norm else None
        self.key_norm = norm(model, self.head_dim) if model.qk_norm else None
        self.inner: nn.Module = InnerAttention()
        self.out = nn.Linear(queries, model.hidden, bias=model.bias)

    def forward(self, x_BTD: Tensor, sight: Sight, cache: LayerCache | None = None) -> Tensor:
        q_BTHE, k_BTKE, v_BTKE = (linear(x_BTD).unflatten(-1, (-1, self.head_dim)) for linear in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            q_BTHE, k_BTKE = self.query_norm(q_BTHE).to(v_BTKE.dtype), self.key_norm(k_BTKE).to(v_BTKE.dtype)
        q_BHTE, k_BKTE, v_BKTE = (heads.transpose(1, 2) for heads in (q_BTHE, k_BTKE, v_BTKE))
        if sight.rotary is not None:
            q_BHTE, k_BKTE = rotate(q_BHTE, sight.rotary), rotate(k_BKTE, sight.rotary)
        y_BHTE = self.inner(q_BHTE, k_BKTE, v_BKTE, sight, cache)
        y_BTD: Tensor = self.out(y_BHTE.transpose(1, 2).flatten(2))
        return y_BTD
