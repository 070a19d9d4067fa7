"""Bytes on a GPU: weights, gradients and optimizer state, and with them everything else that a training step takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from preheat.arithmetic.activations import Kept, LayerKept, head_kept, layer_kept, prediction_kept
from preheat.arithmetic.layout import layout
from preheat.arithmetic.parameters import Blocks, RankParameters, dense_layers, head_dim, kv_heads, padded_vocab, rank_parameters
from preheat.arithmetic.pipeline import in_flight, pipeline_split
from preheat.arithmetic.programs import PREHEAT, Program
from preheat.recipe import Model, Optimizer, Parallel, Precision

LOGITS_AT_ONCE = 2**27
"""Of preheat's loss, which runs in chunks of rows, ..."""
ROWS_AT_LEAST = 128
"""... but of no fewer rows: what `preheat.model.cross_entropy` has for GPUs, and a test holds it to."""
EXPERT_IMBALANCE = 1.2
"""Rows on the fullest rank of expert-parallel ones, as a multiple of an even share."""
FRAGMENTATION = 0.05
"""Of what is allocated beside the states: memory that the allocator reserved in pieces that fit nothing."""
CUDA_CONTEXT = 500_000_000
"""Kernels and the driver's own, outside of the allocator."""
COMMUNICATOR = 400_000_000
"""NCCL's buffers for the ranks along one axis, outside of the allocator too."""
HEADROOM = 0.1
"""What must be left free of a GPU for a layout to be called one that fits."""
_ADAMW = Optimizer()


@dataclass(frozen=True)
class States:
    """Bytes on one GPU."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def states(
    count: RankParameters,
    precision: Precision,
    parallel: Parallel,
    dense_replicas: int,
    expert_replicas: int,
    optimizer: Optimizer = _ADAMW,
    program: Program = PREHEAT,
) -> States:
    """Bytes for the parameters of one GPU when dense parameters have `dense_replicas` copies and experts `expert_replicas`.

    In mixed precision a parameter has a bf16 or fp16 weight (2), a gradient (4 in fp32) and a master weight (4); programs that keep fp8
    copies have 2 more, one by rows and one by columns. `sharding = "optimizer"` divides the optimizer state by the copies (ZeRO-1, arXiv
    1910.02054), `full` all three; weights that are masters themselves are then held once. AdamW keeps two moments; Muon one, but two of
    the tables outside of the layers (and of norms, which are not counted apart). Moments that are offloaded take no room here.
    """
    whole = precision.compute == "fp32"
    weight, gradient, master = (4, 4, 0) if whole else (2, program.gradient, 4)
    if parallel.sharding != "none":
        master += program.sharded_gradient
    if parallel.sharding == "full" and program.weights_are_masters:
        weight, master = 4, 0
    width = 4 if optimizer.state_precision == "fp32" else 2
    if parallel.offload_optimizer:
        width, master = 0, 0 if program.offloads_masters else master
    shared_weights, shared_gradients, shared_optimizer = _SHARDED[parallel.sharding]
    copies = 2 * (count.total - count.tables) if precision.compute == "fp8" and program.keeps_fp8 else 0

    def size(per_parameter: int, shared: bool, dense: int = count.dense, experts: int = count.experts) -> int:
        return per_parameter * (-(-dense // dense_replicas) - (-experts // expert_replicas) if shared else dense + experts)

    second = size(width, shared_optimizer) if optimizer.name == "adamw" else size(width, shared_optimizer, count.tables, 0)
    return States(size(weight, shared_weights) + copies, size(gradient, shared_gradients), size(master + width, shared_optimizer) + second)


_SHARDED = {"none": (False, False, False), "optimizer": (False, False, True), "full": (True, True, True)}
"""What of weights, gradients and optimizer state each kind of sharding divides."""


def rank_states(model: Model, parallel: Parallel, precision: Precision, ranks: int, optimizer: Optimizer = _ADAMW) -> tuple[States, ...]:
    """Bytes on a GPU of each pipeline rank, over `ranks` ranks in all; context-parallel ranks are copies of the dense parameters too.

    With `replicate` groups each of them shards for itself (HSDP, arXiv 2304.11277).

    Raises:
        ValueError: the layout does not divide the ranks or the layers.
    """
    dense, expert = _copies(parallel, ranks)
    return tuple(
        states(rank_parameters(model, parallel, rank), precision, parallel, dense, expert, optimizer) for rank in range(parallel.pipeline)
    )


def _copies(parallel: Parallel, ranks: int) -> tuple[int, int]:
    """Over how many ranks the state of a dense parameter and of an expert can be sharded."""
    mesh = layout(parallel, ranks)
    dense, expert = (copies // gcd(copies, parallel.replicate) for copies in (mesh.dense_dp, mesh.expert_dp))
    return dense * parallel.context, expert


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU of one pipeline rank at the fullest moment of a step; the parts add up to the total."""

    rank: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """What forward passes keep for the micro-batches under way."""
    loss: int
    """Logits and their gradient, where they are the largest of what comes and goes."""
    working: int
    """The layer that is computed again, or gradients of activations, where those are the largest of what comes and goes."""
    gathered: int
    """Weights and gradients of layers that are gathered while they are used (FSDP)."""
    buffers: int
    """What is sent and received."""
    workspace: int
    """Of the libraries that multiply matrices."""
    fragmentation: int
    """Reserved by the allocator and of no use."""
    context: int
    """Outside of the allocator: CUDA's context, NCCL."""

    @property
    def states(self) -> int:
        return self.weights + self.gradients + self.optimizer

    @property
    def allocated(self) -> int:
        """What torch reports as the peak of memory allocated."""
        return self.total - self.fragmentation - self.context

    @property
    def total(self) -> int:
        """What nvidia-smi shows."""
        held = self.states + self.activations + self.loss + self.working + self.gathered
        return held + self.buffers + self.workspace + self.fragmentation + self.context

    def fits(self, usable: int) -> bool:
        """Whether it stays a tenth below what a process finds on its GPU."""
        return self.total <= (1 - HEADROOM) * usable

    def parts(self) -> Iterator[tuple[str, int]]:
        """Name and bytes of each part."""
        return ((field.name, getattr(self, field.name)) for field in fields(self)[1:])


class Step(NamedTuple):
    """What of a batch matters to memory."""

    micro_size: int
    seq_len: int
    micro_batches: int
    """Per step and data-parallel replica."""


class _Piece(NamedTuple):
    """What a pipeline rank holds, as far as memory goes."""

    rank: int
    dense: int
    sparse: int
    first: bool
    last: bool


class _PerLayer(NamedTuple):
    """Bytes of a micro-batch on one GPU for one layer of a kind."""

    kept: float
    """As the recipe recomputes, but for layers that are recomputed as a whole."""
    entry: float
    """What is kept of those."""
    every: float
    """What the forward pass makes of them when it runs again."""
    scores: float
    feed_forward: float


class MemoryModel:
    """What one model takes under any layout. Whatever does not depend on the layout is computed once, so that a search can ask often."""

    def __init__(self, model: Model, precision: Precision, optimizer: Optimizer = _ADAMW, program: Program = PREHEAT) -> None:
        self.model, self.precision, self.optimizer, self.program = model, precision, optimizer, program
        self._blocks = Blocks(model)
        self._layers = [layer_kept(model, precision, program, sparse=sparse) for sparse in (False, True)]
        self._dense_layers = dense_layers(model)
        self._head = head_kept(model, precision, program)
        self._prediction = prediction_kept(model, precision, program)
        self._element = 4 if precision.compute == "fp32" else 2
        self._depths = model.mtp.layers if model.mtp is not None else 0
        self._keys = 2 * self._element * kv_heads(model) * head_dim(model)
        self._held: dict[tuple[object, ...], RankParameters] = {}

    def per_rank(self, parallel: Parallel, ranks: int, step: Step) -> tuple[Memory, ...]:
        """The fullest moment of a GPU of each pipeline rank, over `ranks` ranks in all.

        Raises:
            ValueError: the layout does not divide the ranks or the layers.
        """
        return tuple(self._memories(parallel, ranks, step, self._pieces(parallel)))

    def fullest(self, parallel: Parallel, ranks: int, step: Step) -> Memory:
        """Of `per_rank` the largest, computed for those ranks alone of which no earlier one holds the same.

        Raises:
            ValueError: as `per_rank`.
        """
        found: dict[tuple[object, ...], _Piece] = {}
        for piece in self._pieces(parallel):  # an earlier rank has at least as many micro-batches under way
            found.setdefault(piece[1:], piece)
        return max(self._memories(parallel, ranks, step, found.values()), key=lambda memory: memory.total)

    def _pieces(self, parallel: Parallel) -> tuple[_Piece, ...]:
        how = parallel.pipeline, parallel.virtual_pipeline, parallel.pipeline_layers, parallel.schedule
        return _pieces(self.model.layers, self._dense_layers, *how)

    def _memories(self, parallel: Parallel, ranks: int, step: Step, pieces: Iterable[_Piece]) -> Iterator[Memory]:
        copies = _copies(parallel, ranks)
        shares = _Shares(parallel, step, self.program)
        layers = [self._per_layer(kept, parallel, shares) for kept in self._layers]
        head, loss, buffers = shares.bytes(self._head), self._loss(parallel, shares), self._buffers(parallel, shares, layers[0])
        depth = self._depths * (layers[self.model.experts is not None].every + shares.bytes(self._prediction)) if self._depths else 0.0
        axes = parallel.tensor, parallel.pipeline, parallel.context, copies[0] // parallel.context, parallel.expert
        outside = CUDA_CONTEXT + COMMUNICATOR * sum(size > 1 for size in axes)
        for piece in pieces:
            count = self._count(piece, parallel)
            held = states(count, self.precision, parallel, *copies, self.optimizer, self.program)
            kept, working = _kept(piece, parallel, layers)
            kept += depth if piece.last else 0.0
            activations = round(kept * in_flight(parallel, piece.rank, step.micro_batches) + (head if piece.last else 0.0))
            at_loss = round(loss) if piece.last and loss >= working else 0
            at_work = 0 if at_loss else round(working)
            gathered = self._gathered(piece, parallel, count)
            fragmentation = round(FRAGMENTATION * (activations + at_loss + at_work + gathered + buffers))
            yield Memory(
                piece.rank,
                held.weights,
                held.gradients,
                held.optimizer,
                activations,
                at_loss,
                at_work,
                gathered,
                buffers,
                self.program.workspace,
                fragmentation,
                outside,
            )

    def _count(self, piece: _Piece, parallel: Parallel) -> RankParameters:
        key = (*piece[1:], parallel.tensor, parallel.expert, parallel.expert_tensor, parallel.pipeline * parallel.virtual_pipeline == 1)
        if key not in self._held:
            # The head is in another chunk than the embedding unless there is one chunk.
            joined = piece.last and key[-1] is True
            count = self._blocks.held(parallel, piece.dense, piece.sparse, piece.first, joined)
            if piece.last and not joined:
                count += self._blocks.held(parallel, 0, 0, False, True)
            self._held[key] = count
        return self._held[key]

    def _per_layer(self, kept: LayerKept, parallel: Parallel, shares: _Shares) -> _PerLayer:
        scores, feed_forward = shares.bytes(kept.scores), shares.bytes(kept.feed_forward)
        without = shares.bytes(kept.attention) + feed_forward
        once = without if parallel.recompute.kind == "selective" else without + scores
        return _PerLayer(once, shares.bytes(kept.entry), without + scores, scores, feed_forward)

    def _loss(self, parallel: Parallel, shares: _Shares) -> float:
        """Logits of a micro-batch: all of them, or those of preheat's chunk twice in fp32 and once rounded, with the head's gradient."""
        columns = padded_vocab(self.model.vocab_size, parallel.tensor) // parallel.tensor
        logits = shares.tokens * columns
        if self.program.logit_bytes == 0:
            return 0.0
        if self.program.logit_bytes is not None:
            return logits * (self.program.logit_bytes + 4 * self._depths)
        at_once = min(logits, max(LOGITS_AT_ONCE, ROWS_AT_LEAST * columns))
        return at_once * (8 + self._element) + 4 * self.model.hidden * columns

    def _gathered(self, piece: _Piece, parallel: Parallel, count: RankParameters) -> int:
        """Two layers' weights, one in use and one on its way, one layer's whole gradient, and the tables in fp32."""
        if parallel.sharding != "full":
            return 0
        kinds = [sparse for sparse, layers in ((False, piece.dense), (True, piece.sparse)) if layers]
        layer = max((self._blocks.layer(parallel, sparse=sparse).total for sparse in kinds), default=0)
        return layer * (2 * self._element + 4) + count.tables * 8

    def _buffers(self, parallel: Parallel, shares: _Shares, layer: _PerLayer) -> int:
        """The stream from and to the neighbours of a pipeline, the gathered sequence, the keys and values of context ranks."""
        size = 2 * layer.entry if parallel.pipeline > 1 else 0.0
        if parallel.sequence and parallel.tensor > 1 and self.program.keeps_shards:
            size += self._element * self.model.hidden * shares.tokens
        if parallel.context > 1:
            own = self._keys * shares.tokens / parallel.tensor
            size += own * (parallel.context if parallel.context_exchange == "gather" else 2)
        return round(size)


def _kept(piece: _Piece, parallel: Parallel, layers: Sequence[_PerLayer]) -> tuple[float, float]:
    """Bytes that a micro-batch keeps on a rank, and the most that comes and goes in its backward pass: a layer that is computed again, or
    gradients of inner activations, which are as large as these.
    """
    recompute = parallel.recompute
    left = 0 if recompute.kind != "full" else piece.dense + piece.sparse if recompute.layers is None else recompute.layers
    kept = working = 0.0
    for count, layer in zip((piece.dense, piece.sparse), layers, strict=True):
        if count:
            again = min(left, count)
            left -= again
            kept += again * layer.entry + (count - again) * layer.kept
            recomputed = layer.every if again else layer.scores if recompute.kind == "selective" else 0.0
            working = max(working, recomputed, layer.feed_forward)
    return kept, working


class _Shares:
    """How a layout divides what a token keeps."""

    def __init__(self, parallel: Parallel, step: Step, program: Program) -> None:
        tensor = parallel.tensor
        along = tensor if parallel.sequence else 1
        uneven = EXPERT_IMBALANCE if parallel.expert > 1 else 1.0
        self.tokens = step.micro_size * step.seq_len / parallel.context
        self._stream = self.tokens / along
        self._inputs = self._stream if program.keeps_shards else self.tokens
        self._split = self.tokens / tensor
        self._routed = uneven * self._stream
        self._routed_inputs = self._routed * parallel.expert_tensor
        self._scores = self._split * step.seq_len

    def bytes(self, kept: Kept) -> float:
        """Of a micro-batch on one GPU."""
        return (
            kept.stream * self._stream
            + kept.inputs * self._inputs
            + kept.split * self._split
            + kept.routed * self._routed
            + kept.routed_inputs * self._routed_inputs
            + kept.scores * self._scores
        )


@lru_cache(maxsize=1024)
def _pieces(layers: int, dense: int, pipeline: int, virtual: int, sizes: tuple[int, ...] | None, schedule: str) -> tuple[_Piece, ...]:
    split = pipeline_split(
        layers, Parallel.model_construct(pipeline=pipeline, virtual_pipeline=virtual, pipeline_layers=sizes, schedule=schedule)
    )
    pieces = []
    for rank, chunks in enumerate(split):
        every = sum(len(chunk.layers) for chunk in chunks)
        below = sum(len(range(chunk.layers.start, min(chunk.layers.stop, dense))) for chunk in chunks)
        pieces.append(_Piece(rank, below, every - below, any(chunk.first for chunk in chunks), any(chunk.last for chunk in chunks)))
    return tuple(pieces)
