"""A decoder-only transformer on one device: pre-norm blocks of attention and feed-forward around a residual stream.

Shapes in names: B sequences, T tokens, D model width (`hidden`), H query heads, K key and value heads, E width of a head, F inner
feed-forward width, X experts, V vocabulary, N = B * T. GPT-2, LLaMA, Mixtral and DeepSeek-V3 are settings of the same recipe fields.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from preheat.arithmetic import Rope, dense_layers, head_dim, kv_heads
from preheat.errors import refuse
from preheat.model.attention import Attention, Sight
from preheat.model.cache import Cache, LayerCache
from preheat.model.cross_entropy import summed_cross_entropy, token_cross_entropies
from preheat.model.feed_forward import FeedForward
from preheat.model.latent_attention import LatentAttention
from preheat.model.mask import positions, seen
from preheat.model.norm import norm
from preheat.model.rotary import model_rope, rotary_tables, score_scale
from preheat.recipe import Model


class Losses(NamedTuple):
    """Sums over the tokens of a micro-batch in nats, each a scalar in fp32; divided by the tokens of the step they are means."""

    total: Tensor
    """What is minimised: the sum of the others by their weights."""
    cross_entropy: Tensor
    """Of the next token."""


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
        self.blocks = nn.ModuleDict({str(layer): Block(model, layer) for layer in range(model.layers)})
        self.norm = norm(model, model.hidden)
        self.head = None if model.tied_embeddings else nn.Linear(model.hidden, model.vocab_size, bias=False)

    def forward(
        self,
        tokens_BT: Tensor,
        labels_BT: Tensor | None = None,
        *,
        rope: Rope | None = None,
        documents_BT: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor | Losses:
        """The normalised hidden states, B x T x D, of which `logits` makes predictions of the next token; or with labels the losses.

        Args:
            tokens_BT: token ids, int64.
            labels_BT: the token that follows each one; positions with a label below 0 are not scored.
            rope: rotary positions in place of the model's own (a stage may change them).
            documents_BT: see `mask.documents`; a token then sees only its own document.
            cache: what earlier calls read of the same sequences; this call continues there and adds to it.

        Raises:
            PreheatError: the sequence is longer than the table of learned positions.
        """
        start = cache.length if cache else 0
        x_BTD = self._embed(tokens_BT, start, documents_BT)
        sight = self._sight(tokens_BT, start, rope, documents_BT, cache)
        for index, block in enumerate(self.blocks.values()):
            x_BTD = block(x_BTD, sight, cache.layers[index] if cache else None)
        hidden_BTD = self.norm(x_BTD)
        if labels_BT is None:
            return hidden_BTD
        cross_entropy = summed_cross_entropy(hidden_BTD.flatten(0, 1), self.output_weight, labels_BT.flatten())
        return Losses(total=cross_entropy, cross_entropy=cross_entropy)

    @property
    def output_weight(self) -> Tensor:
        """The V x D matrix that turns hidden states into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all V next tokens, ... x V, for hidden states, ... x D."""
        return nn.functional.linear(hidden, self.output_weight)

    def token_losses(self, hidden_ND: Tensor, labels_N: Tensor) -> Tensor:
        """The cross-entropy of each label in nats, N, fp32, for scoring; it has no gradient."""
        return token_cross_entropies(hidden_ND, self.output_weight, labels_N)

    def _embed(self, tokens_BT: Tensor, start: int, documents_BT: Tensor | None) -> Tensor:
        x_BTD: Tensor = self.embedding(tokens_BT)
        if self.positions is None:
            return x_BTD
        end = start + tokens_BT.shape[1]
        if end > self.positions.num_embeddings:
            refuse(
                "model.max_positions",
                f"a sequence of {end} tokens",
                f"the table of learned positions has {self.positions.num_embeddings} rows",
                "Shorten the sequence or raise model.max_positions",
            )
        table = self.positions.weight[start:end] if documents_BT is None else self.positions(positions(documents_BT))
        return x_BTD + table

    def _sight(self, tokens_BT: Tensor, start: int, rope: Rope | None, documents_BT: Tensor | None, cache: Cache | None) -> Sight:
        model, end, device = self.config, start + tokens_BT.shape[1], tokens_BT.device
        rope = rope or model_rope(model)
        rotary = None
        if rope is not None:
            assert self.positions is None, "learned positions have no rope"
            cos_TR, sin_TR = rotary_tables(model, rope, cache.capacity if cache else end, device)
            rotary = cos_TR[start:end], sin_TR[start:end]
        mask = seen(end, device, documents_BT, model.sliding_window) if start == 0 else None
        return Sight(rotary, score_scale(model, rope), mask, model.sliding_window)


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on the normalised stream and added back to it."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__()
        self.attention_norm = norm(model, model.hidden)
        self.attention = Attention(model) if model.mla is None else LatentAttention(model)
        self.feed_forward_norm = norm(model, model.hidden)
        assert layer < dense_layers(model)
        self.feed_forward = FeedForward(model, model.ffn_hidden)

    def forward(self, x_BTD: Tensor, sight: Sight, cache: LayerCache | None = None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), sight, cache)
        return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


def _assert_consistent(model: Model) -> None:
    """What `preheat check` refuses with file and line; a model made without it shall not be quietly another one."""
    assert model.head_dim or model.mla or model.hidden % model.heads == 0, f"hidden = {model.hidden} over {model.heads} heads"
    assert model.heads % kv_heads(model) == 0, f"{model.heads} query heads over {kv_heads(model)} key and value heads"
    if model.position == "learned":
        assert model.max_positions is not None, "learned positions need max_positions"
        assert model.rope_theta is None, "learned positions have no rope_theta"
    else:
        assert model.rope_theta is not None, "rotary positions need rope_theta"
        assert model.max_positions is None, "rotary positions have no max_positions"
        assert head_dim(model) % 2 == 0, f"rotary positions turn pairs of dims: head width {head_dim(model)} is odd"
