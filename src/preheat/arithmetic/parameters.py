"""How many parameters a model has: by component, active per token, and on each rank of a layout.

Every block is counted once, split by what tensor parallelism does with it; totals and ranks are both sums of the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from preheat.arithmetic.pipeline import pipeline_split
from preheat.recipe import Experts, LatentAttention, Model, Parallel


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a whole model."""

    embedding: int
    positions: int
    attention: int
    feed_forward: int
    """Dense feed-forward layers."""
    experts: int
    """Routed experts, all of them."""
    shared_experts: int
    router: int
    """Router matrices; a score bias that balances the load is a buffer and no parameter."""
    norms: int
    head: int
    """The output matrix when it is not tied to the embedding."""
    mtp: int
    """Layers that predict further tokens, without the embedding and head that they share."""
    active: int
    """What one token passes through: `total` without the routed experts that it is not sent to."""
    multiplied: int
    """Active weights of matrices that a token is multiplied with: no biases, norms or look-up tables; the head once per predicted token."""

    @property
    def total(self) -> int:
        dense = self.embedding + self.positions + self.attention + self.feed_forward + self.norms + self.head
        return dense + self.experts + self.shared_experts + self.router + self.mtp


@dataclass(frozen=True)
class RankParameters:
    """Parameters that one GPU holds."""

    dense: int
    """Everything but routed experts: replicated over the dense data-parallel replicas."""
    experts: int
    """Routed experts: replicated over the expert data-parallel replicas."""
    tables: int = 0
    """Of the dense ones, embedding, learned positions and head: what lies outside of the layers."""

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def __add__(self, other: RankParameters) -> RankParameters:
        return RankParameters(self.dense + other.dense, self.experts + other.experts, self.tables + other.tables)

    def __mul__(self, times: int) -> RankParameters:
        return RankParameters(self.dense * times, self.experts * times, self.tables * times)


@dataclass(frozen=True)
class _Block:
    """Parameters of one block by what tensor parallelism does with them."""

    split: int = 0
    """Divided over the tensor-parallel ranks."""
    whole: int = 0
    """The same on each of them."""
    multiplied: int = 0
    """Weights of matrices among both."""

    @property
    def total(self) -> int:
        return self.split + self.whole

    def __add__(self, other: _Block) -> _Block:
        return _Block(self.split + other.split, self.whole + other.whole, self.multiplied + other.multiplied)

    def __mul__(self, times: int) -> _Block:
        return _Block(self.split * times, self.whole * times, self.multiplied * times)

    def per_rank(self, tensor: int) -> int:
        return -(-self.split // tensor) + self.whole


def head_dim(model: Model) -> int:
    """Width of one attention head; for latent attention the width of its queries and keys."""
    if model.mla is not None:
        return model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
    return model.head_dim or model.hidden // model.heads


def value_dim(model: Model) -> int:
    """Width of one head's values."""
    return model.mla.v_head_dim if model.mla is not None else head_dim(model)


def kv_heads(model: Model) -> int:
    """Key and value heads."""
    return model.kv_heads or model.heads


def dense_layers(model: Model) -> int:
    """Layers with a dense feed-forward; the others have experts."""
    return min(model.experts.first_dense, model.layers) if model.experts is not None else model.layers


def parameters(model: Model) -> Parameters:
    """Count the parameters of a recipe's `[model]`."""
    layers, dense = model.layers, dense_layers(model)
    sparse = layers - dense
    attention, feed_forward = _attention(model) * layers, _feed_forward(model, model.ffn_hidden) * dense
    routed, chosen, shared, router = (block * sparse for block in _experts(model))
    norms = _norm(model, model.hidden) * (2 * layers + 1)
    predicting, predicting_active = _mtp(model)
    table = model.vocab_size * model.hidden
    positions = _positions(model)
    active = attention + feed_forward + chosen + shared + router + norms + predicting_active
    head = 0 if model.tied_embeddings else table
    return Parameters(
        embedding=table,
        positions=positions,
        attention=attention.total,
        feed_forward=feed_forward.total,
        experts=routed.total,
        shared_experts=shared.total,
        router=router.total,
        norms=norms.total,
        head=head,
        mtp=predicting.total,
        active=active.total + table + positions + head,
        multiplied=active.multiplied + table * predicted_tokens(model),
    )


def predicted_tokens(model: Model) -> int:
    """Tokens that each position predicts, and so the number of times that the head is applied."""
    return 1 + (model.mtp.layers if model.mtp is not None else 0)


def padded_vocab(vocab_size: int, tensor: int, multiple: int = 128) -> int:
    """The vocabulary rounded up so that every tensor-parallel rank holds a multiple of `multiple` rows (Megatron-LM's rule)."""
    step = multiple * tensor
    return -(-vocab_size // step) * step


def rank_parameters(model: Model, parallel: Parallel, pipeline_rank: int, vocab_rows: int | None = None) -> RankParameters:
    """What each GPU of one pipeline rank holds; tensor, expert and data ranks within it hold equally much.

    Embedding and head have `vocab_rows` rows, by default the padded vocabulary. The last pipeline rank holds a copy of a tied embedding,
    and of the embedding that multi-token prediction reads, as in Megatron-LM.

    Raises:
        ValueError: the layers can't be split so; the message names the numbers.
    """
    blocks, held = Blocks(model), RankParameters(0, 0, 0)
    for chunk in pipeline_split(model.layers, parallel)[pipeline_rank]:
        dense = len(range(chunk.layers.start, min(chunk.layers.stop, blocks.dense_layers)))
        held += blocks.held(parallel, dense, len(chunk.layers) - dense, chunk.first, chunk.last, vocab_rows)
    return held


class Blocks:
    """A model's blocks, counted once: what any piece of it holds is a sum of few of them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.dense_layers = dense_layers(model)
        self._routed, _, shared, router = _experts(model)
        outer = _attention(model) + _norm(model, model.hidden) * 2
        self._dense = outer + _feed_forward(model, model.ffn_hidden)
        self._sparse = outer + shared + router
        self._last_norm = _norm(model, model.hidden).total
        self._depths = model.mtp.layers if model.mtp is not None else 0
        self._depth = _prediction_rest(model) + (self._sparse if model.experts else self._dense)

    def layer(self, parallel: Parallel, *, sparse: bool) -> RankParameters:
        """One layer's parameters on a GPU."""
        if not sparse:
            return RankParameters(self._dense.per_rank(parallel.tensor), 0, 0)
        experts = -(-self._routed.per_rank(parallel.expert_tensor) // parallel.expert)
        return RankParameters(self._sparse.per_rank(parallel.tensor), experts, 0)

    def held(self, parallel: Parallel, dense: int, sparse: int, first: bool, last: bool, vocab_rows: int | None = None) -> RankParameters:
        """What a GPU holds of a piece with so many layers of each kind, with the embedding before and the head after them or not."""
        model, tensor = self.model, parallel.tensor
        table = -(-(vocab_rows or padded_vocab(model.vocab_size, tensor)) // tensor) * model.hidden
        held = self.layer(parallel, sparse=False) * dense
        if sparse:
            held += self.layer(parallel, sparse=True) * sparse
        if first:
            held += _outside(table + _positions(model))
        if last:
            held += RankParameters(self._last_norm, 0, 0)
            held += _outside(table * (not model.tied_embeddings or not first))
            if self._depths:
                held += _outside(table * (not first and not model.tied_embeddings))
                experts = self.layer(parallel, sparse=True).experts if model.experts else 0
                held += RankParameters(self._depth.per_rank(tensor), experts, 0) * self._depths
        return held


def _outside(parameters: int) -> RankParameters:
    return RankParameters(parameters, 0, parameters)


def _positions(model: Model) -> int:
    return (model.max_positions or 0) * model.hidden if model.position == "learned" else 0


def _norm(model: Model, width: int) -> _Block:
    return _Block(whole=width if model.norm == "rmsnorm" else 2 * width)


def _attention(model: Model) -> _Block:
    norms = _norm(model, head_dim(model)) * 2 if model.qk_norm else _Block()
    if model.mla is not None:
        return _latent_attention(model, model.mla) + norms
    query, key_value = model.heads * head_dim(model), kv_heads(model) * head_dim(model)
    matrices = model.hidden * (query + 2 * key_value) + query * model.hidden
    split, whole = (query + 2 * key_value, model.hidden) if model.bias else (0, 0)
    return _Block(matrices + split, whole, matrices) + norms


def _latent_attention(model: Model, mla: LatentAttention) -> _Block:
    """Down-projections to the latents and the latents' norms stay whole; projections to and from heads are split over the heads."""
    key_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    down = model.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    up = model.heads * (mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim) + mla.v_head_dim * model.hidden)
    norms = _norm(model, mla.kv_lora_rank)
    if mla.q_lora_rank is None:
        up += model.hidden * model.heads * key_dim
    else:
        down += model.hidden * mla.q_lora_rank
        up += mla.q_lora_rank * model.heads * key_dim
        norms += _norm(model, mla.q_lora_rank)
    return _Block(up, down, up + down) + norms


def _feed_forward(model: Model, width: int) -> _Block:
    inner = 2 if model.activation == "swiglu" else 1
    matrices = (inner + 1) * model.hidden * width
    split, whole = (inner * width, model.hidden) if model.bias else (0, 0)
    return _Block(matrices + split, whole, matrices)


def _experts(model: Model) -> tuple[_Block, _Block, _Block, _Block]:
    """All routed experts of one layer, those that a token is sent to, the shared experts, the router."""
    experts: Experts | None = model.experts
    if experts is None:
        return _Block(), _Block(), _Block(), _Block()
    one = _feed_forward(model, experts.ffn_hidden)
    router = model.hidden * experts.count
    # Shared experts are built as one feed-forward of their summed width, with one output bias.
    shared = _feed_forward(model, experts.ffn_hidden * experts.shared) if experts.shared else _Block()
    return one * experts.count, one * experts.active, shared, _Block(whole=router, multiplied=router)


def _prediction_rest(model: Model) -> _Block:
    """What a prediction layer has besides a transformer layer: two norms, the projection of their two outputs to one, a final norm."""
    projection = 2 * model.hidden * model.hidden
    return _Block(projection, 0, projection) + _norm(model, model.hidden) * 3


def _mtp(model: Model) -> tuple[_Block, _Block]:
    """All and active parameters of the multi-token-prediction layers, without the shared embedding and head."""
    if model.mtp is None:
        return _Block(), _Block()
    rest = _prediction_rest(model) + _attention(model) + _norm(model, model.hidden) * 2
    if model.experts is None:
        every = active = rest + _feed_forward(model, model.ffn_hidden)
    else:
        routed, chosen, shared, router = _experts(model)
        every, active = rest + routed + shared + router, rest + chosen + shared + router
    return every * model.mtp.layers, active * model.mtp.layers
