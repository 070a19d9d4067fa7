"""The shape of a recipe file. Frozen and strict: an unknown key, a number where a unit belongs or a text for a number is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from preheat.recipe.architecture import Model, RopeScaling
from preheat.recipe.fields import LARGEST, Amount, Count, List, Name, NonNegative, Positive, Share, Table, Weight, WholeNumber
from preheat.units import Quantity


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
    seq_len: Annotated[int, Field(ge=2, le=LARGEST)]
    """Tokens per sample; a stage may change it."""
    ramp: Annotated[tuple[Ramp, ...], List] = ()
    """Batch sizes by token thresholds before the full size is reached."""
    mask_documents: bool = False
    """A token sees only its own document, which begins with the end-of-document token before it; learned positions restart there."""


class Optimizer(Table):
    """AdamW (arXiv 1711.05101), or Muon (Jordan et al. 2024, arXiv 2502.16982) for hidden matrices with AdamW for the rest.

    Norms and biases are not decayed. Muon's updates are scaled to the size of AdamW's, so that both take the same learning rate.
    """

    name: Literal["adamw", "muon"] = "adamw"
    betas: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], List] = (0.9, 0.95)
    eps: Positive = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Nesterov momentum (muon only); 0.95 when absent."""
    weight_decay: NonNegative = 0.1
    decay_embeddings: bool = True
    """Whether embedding and head are decayed like other matrices."""
    clip_grad_norm: Positive = 1.0
    z_loss: NonNegative = 0.0
    """Coefficient of the squared logarithm of the softmax's normaliser (PaLM, arXiv 2204.02311, section 5)."""
    state_precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the optimizer's moments between steps; fp32 is rounded to bf16 at random, so that it is right on average."""


class RateSegment(Table):
    """A piece of a learning-rate schedule: from the rate reached before to `lr` at `until`; `constant` is at `lr` all along."""

    until: Amount | None = None
    """Where the piece ends, from the start of the run; the last piece ends with the run."""
    lr: NonNegative
    shape: Literal["constant", "linear", "cosine"]


class Schedule(Table):
    """Length of the run and the learning rate over it."""

    length: Amount
    peak_lr: Positive
    final_lr: NonNegative
    warmup: Amount
    """Linear from zero to the peak."""
    decay: Literal["cosine", "linear", "wsd", "constant", "segments"] = "cosine"
    decay_length: Amount | None = None
    """Length of the decay at the end of the run (wsd only)."""
    decay_shape: Literal["linear", "cosine", "exponential", "1-sqrt"] | None = None
    """Shape of the decay (wsd only)."""
    segment: Annotated[tuple[RateSegment, ...], List] = ()
    """What follows the warm-up, one piece after the other (segments only)."""


class Stage(Table):
    """A part of the run with its own mixture, and where it says so its own sequence length, rope base and batch."""

    name: Name
    until: Amount | None = None
    """Where the stage ends, from the start of the run; the last stage ends with the run."""
    mix: Annotated[dict[Name, Weight], Field(min_length=1)]
    """Share of each source in the samples; the weights are normalised."""
    seq_len: Annotated[int, Field(ge=2, le=LARGEST)] | None = None
    rope_theta: Positive | None = None
    rope_scaling: RopeScaling | None = None
    global_size: Count | None = None
    micro_size: Count | None = None
    context: Count | None = None
    """Context-parallel size of this stage when it differs from `parallel.context`: the run restarts with another layout."""


class Quality(Table):
    """Documents with a lower score than `at_least` are left out. The score is in the record, or a scorer computes it."""

    field: str | None = None
    """The field of a jsonl or parquet record that holds the score."""
    scorer: str | None = None
    """Name of an entry point in the group `preheat.quality`: a function from the text of a document to a number."""
    at_least: Annotated[float, Field(allow_inf_nan=False)]


class Source(Table):
    """Where one kind of text comes from."""

    name: Name
    paths: Annotated[tuple[str, ...], List, Field(min_length=1)]
    """Globs: relative to the recipe file, absolute, `package:NAME/...` inside an installed package, `stdlib:...`, or an address that
    fsspec opens, as `s3://...`. Packed files (gz, zst, xz, bz2) and the files in archives (zip, tar) are read like plain ones."""
    exclude: Annotated[tuple[str, ...], List] = ()
    """Globs of the same form that are left out."""
    format: Literal["text", "jsonl", "parquet", "html", "json-tree", "python-docstrings", "tokens"] = "text"
    """`text` takes files as they are: plain text, Markdown, source code. `tokens` are ids that another program made, for
    `preheat data import`: Megatron's .bin and .idx, llm.c's and nanoGPT's .bin, .arrow and .parquet with a column `input_ids`."""
    text_field: str = "text"
    """The field of a jsonl or parquet record that holds the text."""
    max_unreadable: Share = Quantity.parse("50%")
    """With a larger share of broken records or files than this the source has the wrong format or `text_field`, and is refused."""
    policy: Literal["prose", "code", "reference", "web", "gopher", "c4", "fineweb"] = "prose"
    """Which cleaning rules apply."""
    thresholds: dict[str, float] = Field(default_factory=dict)
    """Numbers of the policy's rules that differ for this source, by `rule.name`."""
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] | None = None
    """The only language that stays, as its ISO 639 code."""
    min_language_score: Annotated[float, Field(ge=0, le=1)] = 0.65
    """How sure the language must be; FineWeb (arXiv 2406.17557) takes 0.65."""
    mask_personal_data: bool = False
    """E-mail addresses and public IP addresses become placeholders."""
    quality: Quality | None = None
    licence: str = ""
    """Under what licence the text is used; goes into the manifest."""


class Dedup(Table):
    """Exact duplicates always go; near-duplicates by MinHash over word 5-grams with an exact Jaccard check."""

    near: bool = True
    jaccard: Annotated[float, Field(gt=0, le=1)] = 0.45
    """Documents at least this similar to a kept one are dropped."""
    against: Annotated[tuple[str, ...], List] = ()
    """Prepared folders, relative to the recipe file: documents equal or near to one that they keep are dropped, too."""
    paragraphs: bool = False
    """Of a paragraph that stands in many places of the documents that are left a single place keeps it."""
    paragraph_places: Annotated[int, Field(ge=2)] = 7
    """So many places are many, those in folders of `against` included; Llama 3 removes lines that occur more than 6 times
    (arXiv 2407.21783, section 3.1.1)."""
    paragraph_words: Count = 20
    """Shorter paragraphs stay, whatever their number; a document that lost others goes if fewer words are left."""
    paragraph_sources: Annotated[tuple[Name, ...], List] = ()
    """The sources whose paragraphs are compared and go; all but those with the policy `code` when absent."""


class Decontaminate(Table):
    """How text is kept clean of `evaluation.tasks`: documents that share a run of words with one are left out."""

    enabled: bool = True
    ngram: Annotated[int, Field(ge=5, le=50)] = 13
    """Words in a row that must be the same; 13 as for GPT-3 (arXiv 2005.14165, appendix C)."""
    also: Annotated[tuple[str, ...], List] = ()
    """More jsonl files to keep out, which are not evaluated here; globs as in `paths` of a source, and every text of a record counts."""


class Data(Table):
    """Sources, cleaning, deduplication and the held-out split."""

    source: Annotated[tuple[Source, ...], List] = ()
    held_out: Share = Quantity.parse("1%")
    """Share of the documents that is never trained on, chosen by a hash of the text."""
    dedup: Dedup = Dedup()
    decontaminate: Decontaminate = Decontaminate()
    shard_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """GB of training ids in a file, whole documents; one file a source when absent."""

    @property
    def shard_bytes(self) -> int | None:
        """`shard_size` in bytes."""
        return None if self.shard_size is None else max(int(self.shard_size * 10**9), 1)


class Tokenizer(Table):
    """Where the token ids come from."""

    kind: Literal["train-bpe", "gpt2", "file"]
    """`train-bpe` learns a byte-level BPE of `model.vocab_size` entries from the training text; `file` reads one that exists."""
    path: str | None = None
    """The file of kind `file`, relative to the recipe file: a tokenizer.json, Llama 3's ranks (.tiktoken), a SentencePiece .model."""
    eod: str | None = None
    """The token that ends a document, by its name in the tokenizer; the tokenizer's own when absent."""
    bos: str | None = None
    """The token that begins a document, by its name in the tokenizer; none when absent."""


class Precision(Table):
    """Number format of the matrix multiplications."""

    compute: Literal["auto", "bf16", "fp16", "fp8", "fp32"] = "auto"
    """`auto` takes bf16 where the device multiplies it natively, else fp32; the choice is written into the run folder."""
    fp8_recipe: Literal["tensorwise", "rowwise", "delayed", "blockwise", "mxfp8"] | None = None
    """How fp8 is scaled: by the present maxima of each tensor or row, by a tensor's past ones, by blocks of 128, or by blocks of 32 with
    power-of-two scales."""


class Checkpoint(Table):
    """When the run is saved and how much of it is kept."""

    every: Amount
    keep: Count = 2
    """How many of the newest checkpoints stay on disk; those at the ends of stages stay too."""
    keep_every: Amount | None = None
    """Checkpoints at this interval stay as well."""
    keep_best: WholeNumber = 0
    """So many checkpoints with the lowest held-out loss stay as well; it is then measured at every save."""
    on_failure: Literal["stop", "continue"] = "continue"
    """What the run does when a checkpoint could not be written; at its end it always fails."""


class Evaluation(Table):
    """What is measured while the run goes on and at its end."""

    tasks: Annotated[tuple[str, ...], List] = ()
    """Globs of jsonl files of multiple-choice questions, as in `paths` of a source: what `preheat evaluate` scores, and what
    `data.decontaminate` keeps out of the text."""
    every: Amount | None = None
    """Held-out loss at this interval; only at stage ends when absent."""
    held_out_tokens: Count = 4_096
    """Tokens per source for a measurement inside the run; `preheat evaluate` reads all."""
    questions: WholeNumber = 200
    """Multiple-choice questions made from the held-out text: which of four continuations is the real one."""


class Recompute(Table):
    """Which activations are computed again in the backward pass instead of being kept."""

    kind: Literal["none", "selective", "full"] = "none"
    """`selective` recomputes attention (arXiv 2205.05198), `full` whole layers."""
    layers: Count | None = None
    """Layers per pipeline stage that `full` applies to; all when absent."""


class Parallel(Table):
    """How the model and the batch are split over ranks."""

    tensor: Count = 1
    pipeline: Count = 1
    virtual_pipeline: Count = 1
    """Pieces of the model per pipeline rank (interleaved schedule)."""
    pipeline_layers: Annotated[tuple[WholeNumber, ...], List] | None = None
    """Layers of each of the pipeline * virtual_pipeline pieces in the order of the model; all alike when absent."""
    context: Count = 1
    expert: Count = 1
    expert_tensor: Count = 1
    sequence: bool = False
    """Activations outside of the tensor-parallel parts are split along the sequence (arXiv 2205.05198)."""
    sharding: Literal["none", "optimizer", "full"] = "none"
    """What is split over the data-parallel replicas: optimizer state (ZeRO-1), or weights, gradients and optimizer state (FSDP)."""
    context_exchange: Literal["gather", "ring", "ulysses"] = "gather"
    """How context-parallel ranks get at each other's tokens: all keys and values at once, round a ring, or tokens for heads."""
    replicate: Count = 1
    """Groups of data-parallel replicas that each hold everything, when `sharding` splits it within a group (HSDP)."""
    schedule: Literal["1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "dualpipe", "dualpipe-v"] = "1f1b"
    """Order of the pipeline's forward and backward passes. With a `-v` rank r holds pieces r and 2 * pipeline - 1 - r."""
    recompute: Recompute = Recompute()
    compile: bool = False
    """Blocks are compiled (torch.compile): some minutes at the start, and fewer and larger kernels from then on."""
    offload_optimizer: bool = False
    """The optimizer's moments lie in the CPU's memory and visit the GPU parameter by parameter (arXiv 2101.06840)."""
    gpus: Count | None = None
    """How many GPUs the recipe is laid out for; `--gpus` overrides it."""


class Ignore(Table):
    """A finding of `preheat check` that is known and accepted."""

    rule: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")]
    reason: Annotated[str, Field(min_length=1)]


class Recipe(Table):
    """A whole pretraining run in one file."""

    name: Name
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    model: Model
    tokenizer: Tokenizer
    batch: Batch
    optimizer: Optimizer = Optimizer()
    schedule: Schedule
    stage: Annotated[tuple[Stage, ...], List, Field(min_length=1)]
    data: Data = Data()
    precision: Precision = Precision()
    checkpoint: Checkpoint
    evaluation: Evaluation = Evaluation()
    parallel: Parallel = Parallel()
    ignore: Annotated[tuple[Ignore, ...], List] = ()
