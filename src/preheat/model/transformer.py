"""A decoder-only transformer on one device: pre-norm blocks of attention and feed-forward around a residual stream.

Shapes in names: B sequences, T tokens, D model width (`hidden`), H query heads, K key and value heads, E width of a head, F inner
feed-forward width, X experts, V vocabulary, N = B * T. GPT-2, LLaMA, Mixtral and DeepSeek-V3 are settings of the same recipe fields.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from preheat.arithmetic import Chunk, Rope, dense_layers, head_dim, kv_heads
from preheat.errors import refuse
from preheat.model.attention import Attention, Sight
from preheat.model.cache import Cache, LayerCache
from preheat.model.cross_entropy import CrossEntropy, SummedLosses, token_cross_entropies
from preheat.model.experts import Experts
from preheat.model.feed_forward import FeedForward
from preheat.model.latent_attention import LatentAttention
from preheat.model.mask import positions
from preheat.model.mup import scale_output
from preheat.model.norm import norm
from preheat.model.prediction import Prediction, ahead
from preheat.model.rotary import model_rope, rotary_tables, score_scale
from preheat.recipe import Model


class Stream(NamedTuple):
    """What passes from block to block, and from one piece of a pipeline to the next."""

    x_BTD: Tensor
    penalty: Tensor | None
    """What routers add to the summed loss, see `Routing.penalty`."""


class Losses(NamedTuple):
    """Sums over the tokens of a micro-batch in nats, each a scalar in fp32; divided by the tokens of the step they are means."""

    total: Tensor
    """What is minimised: the sum of the others by their weights."""
    cross_entropy: Tensor
    """Of the next token."""
    z: Tensor
    """Of the softmax's normaliser, by its coefficient; 0 without."""
    balance: Tensor
    """What the routers of expert layers add, by the recipe's coefficients; 0 outside of training."""
    prediction: Tensor
    """Of the tokens further ahead, the mean over the depths; 0 where `prediction_weight` is."""


class Transformer(nn.Module):
    """The model that a recipe's `[model]` describes, which `preheat check` finds consistent. `preheat.model.build` makes one with its
    initial weights.

    A `chunk` makes the piece of it that a pipeline rank holds, with its parameters under the names that they have in the whole.
    """

    def __init__(self, model: Model, chunk: Chunk | None = None) -> None:
        super().__init__()
        _assert_consistent(model)
        self.config = model
        self.chunk = chunk = chunk or Chunk(0, range(model.layers), first=True, last=True)
        reads_tokens = chunk.first or (chunk.last and (model.tied_embeddings or model.mtp is not None))
        self.embedding = nn.Embedding(model.vocab_size, model.hidden) if reads_tokens else None
        learned = chunk.first and model.position == "learned"
        self.positions = nn.Embedding(model.max_positions or 0, model.hidden) if learned else None
        self.blocks = nn.ModuleDict({str(layer): Block(model, layer) for layer in chunk.layers})
        self.norm = norm(model, model.hidden) if chunk.last else None
        depths = range(model.mtp.layers if chunk.last and model.mtp is not None else 0)
        self.predictions = nn.ModuleDict({str(depth): Prediction(model, Block(model, model.layers + depth)) for depth in depths})
        self.head = nn.Linear(model.hidden, model.vocab_size, bias=False) if chunk.last and not model.tied_embeddings else None
        self.cross_entropy: nn.Module = CrossEntropy()

    def forward(
        self,
        tokens_BT: Tensor,
        labels_BT: Tensor | None = None,
        *,
        rope: Rope | None = None,
        documents_BT: Tensor | None = None,
        part_T: Tensor | None = None,
        before: Stream | None = None,
        cache: Cache | None = None,
        prediction_weight: float = 0.0,
        z_loss: float = 0.0,
    ) -> Tensor | Losses | Stream:
        """The normalised hidden states, B x T x D, of which `logits` makes predictions of the next token; or with labels the losses;
        or what the next piece of a pipeline goes on from.

        Args:
            tokens_BT: token ids of whole sequences, int64.
            labels_BT: the token that follows each one; positions with a label below 0 are not scored.
            rope: rotary positions in place of the model's own (a stage may change them).
            documents_BT: see `mask.documents`; a token then sees only its own document.
            part_T: the positions that this process computes, where others compute the rest (context parallelism); the output has these.
            before: what the piece before returned; for all but the first.
            cache: what earlier calls read of the same sequences; this call continues there and adds to it.
            prediction_weight: of the mean loss of the layers that predict further tokens; at 0 they are not run and get no gradient.
            z_loss: see `summed_cross_entropy`; of the next token's prediction alone.

        Raises:
            PreheatError: the sequence is longer than the table of learned positions.
        """
        sight = self._sight(tokens_BT, rope, documents_BT, part_T, cache)
        x_BTD, penalty = before or Stream(self._embed(_own(tokens_BT, part_T), sight), None)
        penalties = [penalty]
        for layer, block in self.blocks.items():
            x_BTD, penalty = block(x_BTD, sight, cache.layers[int(layer)] if cache else None)
            penalties.append(penalty)
        if self.norm is None:
            return Stream(x_BTD, _sum(penalties))
        hidden_BTD = self.norm(x_BTD)
        if labels_BT is None:
            return scale_output(self.config, hidden_BTD)
        sums = self._summed_losses(hidden_BTD, _own(labels_BT, part_T), z_loss)
        prediction = torch.zeros_like(sums.cross_entropy)
        if prediction_weight:
            prediction, further = self._predict_further(hidden_BTD, tokens_BT, labels_BT, sight, part_T)
            penalties += further
        balance = _sum(penalties)
        balance = torch.zeros_like(sums.cross_entropy) if balance is None else balance
        total = sums.total + balance + prediction_weight * prediction
        return Losses(total, sums.cross_entropy, sums.z, balance.detach(), prediction.detach())

    @property
    def every_block(self) -> list[Block]:
        """Its layers, and after them those that predict further tokens."""
        return [module for module in self.modules() if isinstance(module, Block)]

    @property
    def output_weight(self) -> Tensor:
        """The V x D matrix that turns hidden states into logits."""
        table = self.head or self.embedding
        assert table is not None, "only the last piece has an output matrix"
        return table.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all V next tokens, ... x V, for hidden states, ... x D."""
        return nn.functional.linear(hidden, self.output_weight)

    def token_losses(self, hidden_ND: Tensor, labels_N: Tensor) -> Tensor:
        """The cross-entropy of each label in nats, N, fp32, for scoring; it has no gradient."""
        return token_cross_entropies(hidden_ND, self.output_weight, labels_N)

    def _summed_losses(self, hidden_BTD: Tensor, labels_BT: Tensor, z_loss: float = 0.0) -> SummedLosses:
        return self.cross_entropy(scale_output(self.config, hidden_BTD), self.output_weight, labels_BT, z_loss)

    def _predict_further(
        self, hidden_BTD: Tensor, tokens_BT: Tensor, labels_BT: Tensor, sight: Sight, part_T: Tensor | None
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The mean over depths of their summed losses, and the penalties of their routers. Depth k scores the first T - k positions."""
        assert self.embedding is not None
        assert tokens_BT.shape[1] > len(self.predictions), f"no token {len(self.predictions)} ahead in {tokens_BT.shape[1]}"
        sums, penalties = [], []
        for depth, layer in enumerate(self.predictions.values(), start=1):
            read_BT, further_BT = ahead(tokens_BT, labels_BT, sight.documents_BT, depth)
            hidden_BTD, penalty = layer(hidden_BTD, self.embedding(_own(read_BT, part_T)), sight)
            sums.append(self._summed_losses(hidden_BTD, _own(further_BT, part_T)).total)
            penalties.append(penalty)
        return torch.stack(sums).mean(), penalties

    def _embed(self, tokens_BT: Tensor, sight: Sight) -> Tensor:
        assert self.embedding is not None
        x_BTD: Tensor = self.embedding(tokens_BT)
        if self.positions is None:
            return x_BTD
        index = sight.positions_T
        return x_BTD + self.positions(index if sight.documents_BT is None else positions(sight.documents_BT)[:, index])

    def _sight(
        self, tokens_BT: Tensor, rope: Rope | None, documents_BT: Tensor | None, part_T: Tensor | None, cache: Cache | None
    ) -> Sight:
        model, start, device = self.config, cache.length if cache else 0, tokens_BT.device
        end = start + tokens_BT.shape[1]
        if self.positions is not None and end > self.positions.num_embeddings:
            refuse(
                "model.max_positions",
                f"a sequence of {end} tokens",
                f"the table of learned positions has {self.positions.num_embeddings} rows",
                "Shorten the sequence or raise model.max_positions",
            )
        positions_T = torch.arange(start, end, device=device) if part_T is None else part_T
        rope, rotary = rope or model_rope(model), None
        if rope is not None:
            assert self.positions is None, "learned positions have no rope"
            cos_TR, sin_TR = rotary_tables(model, rope, cache.capacity if cache else end, device)
            rotary = (cos_TR[start:end], sin_TR[start:end]) if part_T is None else (cos_TR[part_T], sin_TR[part_T])
        return Sight(end, positions_T, rotary, score_scale(model, rope), documents_BT, model.sliding_window)


def _own(whole_BT: Tensor, part_T: Tensor | None) -> Tensor:
    return whole_BT if part_T is None else whole_BT[:, part_T]


def _sum(penalties: list[Tensor | None]) -> Tensor | None:
    there = [penalty for penalty in penalties if penalty is not None]
    return torch.stack(there).sum() if there else None


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on the normalised stream and added back to it."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__()
        self.attention_norm = norm(model, model.hidden)
        self.attention = Attention(model) if model.mla is None else LatentAttention(model)
        self.feed_forward_norm = norm(model, model.hidden)
        self.sparse = model.experts is not None and layer >= dense_layers(model)
        self.feed_forward = Experts(model) if self.sparse else FeedForward(model, model.ffn_hidden)

    def forward(self, x_BTD: Tensor, sight: Sight, cache: LayerCache | None = None) -> Stream:
        """The stream after the layer, and what its router adds to the summed loss."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), sight, cache)
        y_BTD = self.feed_forward(self.feed_forward_norm(x_BTD))
        y_BTD, penalty = y_BTD if self.sparse else (y_BTD, None)
        return Stream(x_BTD + y_BTD, penalty)


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
