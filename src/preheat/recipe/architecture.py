"""The `[model]` table: a decoder-only transformer, dense or with experts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from preheat.recipe.fields import LARGEST, Count, Fractional, NonNegative, Positive, Rates, Table, Weights, WholeNumber


class RopeScaling(Table):
    """How rotary frequencies are stretched for sequences longer than the model was first trained on.

    `llama3` (Llama 3.1's released configuration) takes `low_freq_factor` and `high_freq_factor`; `yarn` (arXiv 2309.00071) takes
    `beta_fast` and `beta_slow`, and may take `mscale`. Fields of the other kind would have no effect.
    """

    kind: Literal["llama3", "yarn"]
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    """How much longer the sequences become."""
    original_max_positions: Count
    """Sequence length that the frequencies were made for."""
    low_freq_factor: Positive | None = None
    """llama3: wavelengths above original_max_positions / this are stretched by the whole factor."""
    high_freq_factor: Positive | None = None
    """llama3: wavelengths below original_max_positions / this stay."""
    beta_fast: Positive | None = None
    """yarn: dims that turn more often than this within the original length stay."""
    beta_slow: Positive | None = None
    """yarn: dims that turn less often than this are stretched by the whole factor."""
    mscale: NonNegative | None = None
    """yarn: queries and keys grow by 0.1 * mscale * ln(factor) + 1; 1.0 when absent."""


class LatentAttention(Table):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values come from one narrow latent per token."""

    q_lora_rank: Count | None = None
    """Width of the query latent; queries come straight from the residual stream when absent."""
    kv_lora_rank: Count
    """Width of the latent that keys and values share."""
    qk_nope_head_dim: Count
    """Dims of a head's query and key without position."""
    qk_rope_head_dim: Count
    """Dims of a head's query and key that are turned by position; the key part is shared by all heads."""
    v_head_dim: Count


class Experts(Table):
    """Feed-forward layers of many experts of which a router chooses a few per token."""

    count: Annotated[int, Field(ge=2, le=LARGEST)]
    """Routed experts per layer."""
    active: Count
    """Routed experts that each token passes through."""
    ffn_hidden: Count
    """Inner width of one expert."""
    shared: WholeNumber = 0
    """Experts of the same width that every token passes through."""
    first_dense: WholeNumber = 0
    """Layers at the bottom that keep a dense feed-forward of width `model.ffn_hidden`."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """Function from router logits to scores. Chosen experts weigh their score over the sum of the chosen ones; a single one its score."""
    groups: Count | None = None
    """The experts are split into this many groups (group-limited routing, arXiv 2412.19437)."""
    active_groups: Count | None = None
    """Groups from which a token may choose."""
    scaling: Positive = 1.0
    """Factor on the summed output of the chosen experts."""
    aux_loss: NonNegative = 0.0
    """Coefficient of the load-balance loss over the global batch (arXiv 2101.03961): each layer adds 1 times it where the load is even.
    The load that it reads is that of the step before."""
    sequence_aux_loss: NonNegative = 0.0
    """Coefficient of the load-balance loss within each sequence (arXiv 2412.19437, eq. 17), of the same size."""
    bias_update_rate: Rates = Field(default=0.0, validate_default=True)
    """Speed of the per-expert score bias that balances the load without a loss (arXiv 2408.15664)."""
    z_loss: NonNegative = 0.0
    """Coefficient of the router's z-loss (arXiv 2202.08906)."""
    capacity_factor: Positive | None = None
    """Tokens of a sequence per expert, as a multiple of an even share, after which the expert drops later ones while training; none are
    dropped when absent."""


class MultiTokenPrediction(Table):
    """Extra layers that predict tokens further ahead (DeepSeek-V3, arXiv 2412.19437); they share embedding and head with the model."""

    layers: Count
    """How many further tokens are predicted; each takes one transformer layer."""
    loss_weight: Weights
    """Weight of their mean loss beside the main loss."""


class WidthTransfer(Table):
    """Maximal update parametrization (arXiv 2203.03466): a learning rate found at the base width holds at this one.

    With m = hidden / base_hidden, matrices between hidden dims start with init_std / sqrt(m) and AdamW moves them with the rate / m and the
    weight decay * m (Muon: sqrt(m) in place of m); logits are divided by m, and attention scores by head width instead of its square root.
    Embedding, head, norms and biases stay as they are. All inner widths are taken to grow with `hidden`.
    """

    base_hidden: Count
    """Width at which the rates were found."""
    base_head_dim: Count | None = None
    """Head width at which attention scores are as in the standard parametrization; the model's own when absent."""


class Model(Table):
    """A decoder-only transformer."""

    layers: Count
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Query heads."""
    kv_heads: Count | None = None
    """Key and value heads (grouped-query attention); as many as query heads when absent. Not with `mla`."""
    head_dim: Count | None = None
    """Width of one head; hidden / heads when absent. Not with `mla`."""
    ffn_hidden: Count
    """Inner width of the dense feed-forward layer."""
    vocab_size: Annotated[int, Field(ge=258, le=LARGEST)]
    """Rows of the embedding that can be predicted."""
    activation: Literal["swiglu", "gelu", "squared_relu"] = "swiglu"
    norm: Literal["rmsnorm", "layernorm", "layernorm1p"] = "rmsnorm"
    """`layernorm1p` is LayerNorm whose weight is stored as an offset from one (Megatron-LM's zero-centred gamma)."""
    norm_eps: Positive = 1e-5
    bias: bool = False
    """Biases in the linear layers."""
    qk_norm: bool = False
    """Each head's query and key are normalised (arXiv 2302.05442)."""
    position: Literal["rotary", "learned"] = "rotary"
    rope_theta: Positive | None = None
    """Base of the rotary frequencies; a stage may change it."""
    rotary_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each head's dims that is turned."""
    rope_scaling: RopeScaling | None = None
    """Stretched frequencies from the start; a stage may change them."""
    max_positions: Count | None = None
    """Rows of the learned position table."""
    sliding_window: Count | None = None
    """Positions that a token sees, itself included; all before it when absent."""
    dropout: Fractional = 0.0
    """Share of activations that is dropped in embedding, attention and residual branches."""
    tied_embeddings: bool = True
    """The output head is the embedding matrix."""
    init_std: Positive = 0.02
    depth_scaled_init: bool = True
    """Output projections of attention and feed-forward start 1/sqrt(2 * layers) smaller."""
    init_truncation: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Initial values beyond this many standard deviations are drawn again; all are kept when absent."""
    mup: WidthTransfer | None = None
    mla: LatentAttention | None = None
    experts: Experts | None = None
    mtp: MultiTokenPrediction | None = None
