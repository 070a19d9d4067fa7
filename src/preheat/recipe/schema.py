"""The shape of a recipe file. Frozen and strict: an unknown key, a number where a unit belongs or a text for a number is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from preheat.units import PATTERN, Quantity


def _quantity(value: object) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, str):
        return Quantity.parse(value)
    raise ValueError(f'{value!r} has no unit: write for instance "{value} tokens" or "{value} steps"')


def _share(value: object) -> Quantity:
    quantity = _quantity(value)
    if quantity.unit != "%":
        raise ValueError(f"{quantity} is no share: write a percentage")
    return quantity


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _exact(value: object) -> object:
    """A TOML number as the exact decimal that the file spells."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Fraction(str(value)) if value == value and abs(value) != float("inf") else value
    return value


_AS_TEXT = PlainSerializer(str, return_type=str)
Amount = Annotated[Quantity, BeforeValidator(_quantity), _AS_TEXT, WithJsonSchema({"type": "string", "pattern": PATTERN})]
Share = Annotated[Quantity, BeforeValidator(_share), _AS_TEXT, WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$"})]
Weight = Annotated[
    Fraction,
    BeforeValidator(_exact),
    PlainSerializer(float, return_type=float),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0}),
    Field(gt=0),
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that is safe as a file name."""
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Table(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)


class Model(Table):
    """A decoder-only transformer."""

    layers: Count
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Query heads."""
    kv_heads: Count | None = None
    """Key and value heads (grouped-query attention); as many as query heads when absent."""
    head_dim: Count | None = None
    """Width of one head; hidden / heads when absent."""
    ffn_hidden: Count
    """Inner width of the feed-forward layer."""
    vocab_size: Annotated[int, Field(ge=258)]
    """Rows of the embedding that can be predicted."""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: Positive = 1e-5
    bias: bool = False
    """Biases in the linear layers."""
    position: Literal["rotary", "learned"] = "rotary"
    rope_theta: Positive | None = None
    """Base of the rotary frequencies; a stage may change it."""
    max_positions: Count | None = None
    """Rows of the learned position table."""
    tied_embeddings: bool = True
    """The output head is the embedding matrix."""
    init_std: Positive = 0.02
    depth_scaled_init: bool = True
    """Output projections of attention and feed-forward start 1/sqrt(2 * layers) smaller."""


class Ramp(Table):
    """From `at` on, batches of `size` samples."""

    at: Amount
    size: Count


class Batch(Table):
    """How many samples a step sees, and how long they are."""

    global_size: Count
    """Samples per optimizer step, over all data-parallel replicas."""
    micro_size: Count
    """Samples per forward pass of one data-parallel replica."""
    seq_len: Annotated[int, Field(ge=2)]
    """Tokens per sample; a stage may change it."""
    ramp: Annotated[tuple[Ramp, ...], BeforeValidator(_tuple)] = ()
    """Batch sizes by token thresholds before the full size is reached."""


class Optimizer(Table):
    """AdamW (Loshchilov & Hutter 2019, decoupled weight decay on matrices only)."""

    name: Literal["adamw"] = "adamw"
    betas: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], BeforeValidator(_tuple)] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.1
    clip_grad_norm: Positive = 1.0


class Schedule(Table):
    """Length of the run and the learning rate over it."""

    length: Amount
    peak_lr: Positive
    final_lr: NonNegative
    warmup: Amount
    """Linear from zero to the peak."""
    decay: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    decay_length: Amount | None = None
    """Length of the decay at the end of the run (wsd only)."""
    decay_shape: Literal["linear", "cosine", "exponential", "1-sqrt"] | None = None
    """Shape of the decay (wsd only)."""


class Stage(Table):
    """A part of the run with its own mixture, and where it says so its own sequence length, rope base and batch."""

    name: Name
    until: Amount | None = None
    """Where the stage ends, from the start of the run; the last stage ends with the run."""
    mix: Annotated[dict[Name, Weight], Field(min_length=1)]
    """Share of each source in the samples; the weights are normalised."""
    seq_len: Annotated[int, Field(ge=2)] | None = None
    rope_theta: Positive | None = None
    global_size: Count | None = None
    micro_size: Count | None = None


class Source(Table):
    """Where one kind of text comes from."""

    name: Name
    paths: Annotated[tuple[str, ...], BeforeValidator(_tuple), Field(min_length=1)]
    """Globs: relative to the recipe file, absolute, `package:NAME/...` inside an installed package, or `stdlib:...`."""
    exclude: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """Globs of the same form that are left out."""
    format: Literal["text", "jsonl", "json-tree", "python-docstrings"] = "text"
    text_field: str = "text"
    """The field of a jsonl record that holds the text."""
    policy: Literal["prose", "code", "reference"] = "prose"
    """Which cleaning rules apply."""
    licence: str = ""
    """Under what licence the text is used; goes into the manifest."""


class Dedup(Table):
    """Exact duplicates always go; near-duplicates by MinHash over word 5-grams with an exact Jaccard check."""

    near: bool = True
    jaccard: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Documents at least this similar to a kept one are dropped."""


class Data(Table):
    """Sources, cleaning, deduplication and the held-out split."""

    source: Annotated[tuple[Source, ...], BeforeValidator(_tuple)] = ()
    held_out: Share = Quantity.parse("1%")
    """Share of the documents that is never trained on, chosen by a hash of the text."""
    dedup: Dedup = Dedup()


class Tokenizer(Table):
    """Where the token ids come from."""

    kind: Literal["train-bpe", "gpt2", "file"]
    """`train-bpe` learns a byte-level BPE of `model.vocab_size` entries from the training text; `file` reads a tokenizer.json."""
    path: str | None = None
    """The tokenizer.json of kind `file`, relative to the recipe file."""


class Precision(Table):
    """Number format of the matrix multiplications; weights and optimizer state are kept in fp32."""

    compute: Literal["auto", "bf16", "fp32"] = "auto"
    """`auto` takes bf16 where the device multiplies it natively, else fp32; the choice is written into the run folder."""


class Checkpoint(Table):
    """When the run is saved and how much of it is kept."""

    every: Amount
    keep: Count = 2
    """How many of the newest checkpoints stay on disk."""


class Evaluation(Table):
    """What is measured while the run goes on and at its end."""

    every: Amount | None = None
    """Held-out loss at this interval; only at stage ends when absent."""
    held_out_tokens: Count = 4_096
    """Tokens per source for a measurement inside the run; `preheat evaluate` reads all."""
    questions: Annotated[int, Field(ge=0)] = 200
    """Multiple-choice questions made from the held-out text: which of four continuations is the real one."""


class Parallel(Table):
    """How the model and the batch are split over ranks."""

    tensor: Count = 1
    pipeline: Count = 1
    context: Count = 1
    expert: Count = 1
    expert_tensor: Count = 1


class Recipe(Table):
    """A whole pretraining run in one file."""

    name: Name
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    model: Model
    tokenizer: Tokenizer
    batch: Batch
    optimizer: Optimizer = Optimizer()
    schedule: Schedule
    stage: Annotated[tuple[Stage, ...], BeforeValidator(_tuple), Field(min_length=1)]
    data: Data = Data()
    precision: Precision = Precision()
    checkpoint: Checkpoint
    evaluation: Evaluation = Evaluation()
    parallel: Parallel = Parallel()
