"""Bytes on a GPU: weights, gradients and optimizer state, and with them everything else that a training step takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from preheat.arithmetic.activations import Kept, head_kept, layer_kept, prediction_kept
from preheat.arithmetic.layout import layout
from preheat.arithmetic.parameters import Blocks, RankParameters, dense_layers, head_dim, kv_heads, padded_vocab, rank_parameters
from preheat.arithmetic.pipeline import in_flight, pipeline_split
from preheat.arithmetic.programs import PREHEAT, Program
from preheat.recipe import Model, Optimizer, Parallel, Precision

LOGITS_AT_ONCE = 2**27
"""Of preheat's loss, which runs in chunks: see `preheat.model.cross_entropy`, which says it again for torch."""
EXPERT_IMBALANCE = 1.2
"""Rows on the fullest rank of expert-parallel ones, as a multiple of an even share."""
FRAGMENTATION = 0.05
"""Of what is allocated beside the states: memory that the allocator reserved in pieces that fit nothing."""
CUDA_CONTEXT = 500_000_000
"""Kernels and the driver's own, outside of the allocator."""
COMMUNICATOR = 400_000_000
"""NCCL's buffers for the ranks along one axis, outside of the allocator too."""
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

    In mixed precision a parameter has a bf16 or fp16 weight (2), a gradient (4 in fp32) and a master weight (4); FP8 multiplies with
    copies and keeps the same state. `sharding = "optimizer"` divides the optimizer state by the copies (ZeRO-1, arXiv 1910.02054), `full`
    all three; weights that are masters themselves are then held once. AdamW keeps two moments; Muon one, but two of the tables outside of
    the layers (and of norms, which are not counted apart). Moments that are offloaded take no room here.
    """
    whole = precision.compute == "fp32"
    weight, gradient, master = (4, 4, 0) if whole else (2, program.gradient, 4 + program.sharded_gradient)
    if parallel.sharding == "full" and program.weights_are_masters:
        weight, master = 4, 0
    width = 4 if optimizer.state_precision == "fp32" else 2
    if parallel.offload_optimizer:
        width, master = 0, 0 if program.offloads_masters else master
    shared_weights, shared_gradients, shared_optimizer = _SHARDED[parallel.sharding]

    def size(per_parameter: int, shared: bool, dense: int = count.dense, experts: int = count.experts) -> int:
        return per_parameter * (-(-dense // dense_replicas) - (-experts // expert_replicas) if shared else dense + experts)

    second = size(width, shared_optimizer) if optimizer.name == "adamw" else size(width, shared_optimizer, count.tables, 0)
    return States(
        size(weight, shared_weights), size(gradient, shared_gradients), size(master + width, shared_optimizer) + second
    )


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
        return sum(size for _, size in self.parts())

    @property
    def least(self) -> int:
        """What no allocator can do without: the states and what waits for the backward pass."""
        return self.states + self.activations

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


class MemoryModel:
    """What one model takes under any layout. Whatever does not depend on the layout is computed once, so that a search can ask often."""

    def __init__(self, model: Model, precision: Precision, optimizer: Optimizer = _ADAMW, program: Program = PREHEAT) -> None:
        self.model, self.precision, self.optimizer, self.program = model, precision, optimizer, program
        self._blocks = Blocks(model)
        self._layers = {sparse: layer_kept(model, precision, program, sparse=sparse) for sparse in (False, True)}
        self._head = head_kept(model, precision, program)
        self._prediction = prediction_kept(model, precision, program)
        self._element = 4 if precision.compute == "fp32" else 2

    def per_rank(self, parallel: Parallel, ranks: int, step: Step) -> tuple[Memory, ...]:
        """The fullest moment of a GPU of each pipeline rank, over `ranks` ranks in all.

        Raises:
            ValueError: the layout does not divide the ranks or the layers.
        """
        copies = _copies(parallel, ranks)
        return tuple(self._memory(piece, parallel, copies, step) for piece in _pieces(self.model, parallel))

    def fullest(self, parallel: Parallel, ranks: int, step: Step) -> Memory:
        """Of `per_rank` the largest, computed for those ranks alone of which no earlier one holds the same.

        Raises:
            ValueError: as `per_rank`.
        """
        copies, found = _copies(parallel, ranks), {}
        for piece in _pieces(self.model, parallel):  # an earlier rank has at least as many micro-batches under way
            found.setdefault(piece[1:], piece)
        return max((self._memory(piece, parallel, copies, step) for piece in found.values()), key=lambda memory: memory.total)

    def _memory(self, piece: _Piece, parallel: Parallel, copies: tuple[int, int], step: Step) -> Memory:
        whole = parallel.pipeline * parallel.virtual_pipeline == 1  # else the head is in another chunk than the embedding
        count = self._blocks.held(parallel, piece.dense, piece.sparse, piece.first, piece.last and whole)
        if piece.last and not whole:
            count += self._blocks.held(parallel, 0, 0, False, True)
        held = states(count, self.precision, parallel, *copies, self.optimizer, self.program)
        divided = _Divided(parallel, step, self.program)
        under_way = in_flight(parallel, piece.rank, step.micro_batches)
        kept, again = self._kept(piece, parallel, divided)
        loss = self._loss(parallel, divided) if piece.last else 0.0
        working = max(again, self._gradients(piece, divided))
        activations = round(kept * under_way + (divided.bytes(self._head) if piece.last else 0))
        loss, working = (loss, 0) if loss >= working else (0, working)
        gathered, buffers = self._gathered(piece, parallel, count), self._buffers(parallel, divided)
        axes = parallel.tensor, parallel.pipeline, parallel.context, copies[0] // parallel.context, parallel.expert
        beside = round(activations + loss + working + gathered + buffers)
        return Memory(
            piece.rank,
            held.weights,
            held.gradients,
            held.optimizer,
            activations,
            round(loss),
            round(working),
            round(gathered),
            round(buffers),
            self.program.workspace,
            round(FRAGMENTATION * beside),
            CUDA_CONTEXT + COMMUNICATOR * sum(size > 1 for size in axes),
        )

    def _kept(self, piece: _Piece, parallel: Parallel, divided: _Divided) -> tuple[float, float]:
        """Bytes that a micro-batch keeps on a rank, and those of the largest layer that is computed again."""
        recompute = parallel.recompute
        left = 0 if recompute.kind != "full" else piece.dense + piece.sparse if recompute.layers is None else recompute.layers
        kept = again = 0.0
        for sparse, layers in ((False, piece.dense), (True, piece.sparse)):
            of_layer = self._layers[sparse]
            whole = divided.bytes(of_layer.every)
            recomputed, left = min(left, layers), max(0, left - layers)
            once = whole if recompute.kind != "selective" else divided.bytes(of_layer.attention + of_layer.feed_forward)
            kept += recomputed * divided.bytes(Kept(stream=of_layer.entry)) + (layers - recomputed) * once
            if layers:
                again = max(again, whole if recomputed else divided.bytes(of_layer.scores) if recompute.kind == "selective" else 0.0)
        if piece.last and self.model.mtp is not None:
            depth = divided.bytes(self._layers[self.model.experts is not None].every) + divided.bytes(self._prediction)
            kept += self.model.mtp.layers * depth
        return kept, again

    def _gradients(self, piece: _Piece, divided: _Divided) -> float:
        """Gradients of a layer's inner activations, as large as these."""
        kinds = [sparse for sparse, layers in ((False, piece.dense), (True, piece.sparse)) if layers]
        return max((divided.bytes(self._layers[sparse].feed_forward) for sparse in kinds), default=0.0)

    def _loss(self, parallel: Parallel, divided: _Divided) -> float:
        """Logits of a micro-batch: all of them, or those of preheat's chunk twice in fp32 and once rounded, with the head's gradient."""
        columns = padded_vocab(self.model.vocab_size, parallel.tensor) // parallel.tensor
        logits = divided.tokens * columns
        if self.program.logit_bytes is not None:
            depths = self.model.mtp.layers if self.model.mtp is not None else 0
            return logits * (self.program.logit_bytes + 4 * depths)
        at_once = min(logits, max(LOGITS_AT_ONCE, 128 * columns))
        return at_once * (8 + self._element) + self.model.hidden * (4 * divided.tokens + 4 * columns)

    def _gathered(self, piece: _Piece, parallel: Parallel, count: RankParameters) -> float:
        """Two layers' weights, one in use and one on its way, one layer's whole gradient, and the tables in fp32."""
        if parallel.sharding != "full":
            return 0.0
        kinds = [sparse for sparse, layers in ((False, piece.dense), (True, piece.sparse)) if layers]
        layer = max((self._blocks.layer(parallel, sparse=sparse).total for sparse in kinds), default=0)
        return layer * (2 * self._element + 4) + count.tables * 8

    def _buffers(self, parallel: Parallel, divided: _Divided) -> float:
        """The stream from and to the neighbours of a pipeline, the gathered sequence, the keys and values of context ranks."""
        model = self.model
        stream = divided.bytes(Kept(stream=self._layers[False].entry))
        sizes = 2 * stream if parallel.pipeline > 1 else 0.0
        if parallel.sequence and parallel.tensor > 1 and self.program.keeps_shards:
            sizes += self._element * model.hidden * divided.tokens
        if parallel.context > 1:
            own = 2 * self._element * kv_heads(model) * head_dim(model) * divided.tokens / parallel.tensor
            sizes += own * (parallel.context if parallel.context_exchange == "gather" else 2)
        return sizes


class _Divided:
    """How a layout divides what a token keeps."""

    def __init__(self, parallel: Parallel, step: Step, program: Program) -> None:
        self.tokens = step.micro_size * step.seq_len / parallel.context
        along = parallel.tensor if parallel.sequence else 1
        uneven = EXPERT_IMBALANCE if parallel.expert > 1 else 1.0
        self._per_token = (
            1 / along,
            1 / (along if program.keeps_shards else 1),
            1 / parallel.tensor,
            uneven / along,
            uneven * parallel.expert_tensor / along,
            step.seq_len / parallel.tensor,
        )

    def bytes(self, kept: Kept) -> float:
        """Of a micro-batch on one GPU."""
        return self.tokens * sum(size * share for size, share in zip(kept.parts, self._per_token, strict=True))


def _pieces(model: Model, parallel: Parallel) -> tuple[_Piece, ...]:
    how = parallel.pipeline, parallel.virtual_pipeline, parallel.pipeline_layers, parallel.schedule
    return _pieces_of(model.layers, dense_layers(model), *how)


@lru_cache(maxsize=1024)
def _pieces_of(
    layers: int, dense: int, pipeline: int, virtual: int, sizes: tuple[int, ...] | None, schedule: str
) -> tuple[_Piece, ...]:
    split = pipeline_split(
        layers, Parallel.model_construct(pipeline=pipeline, virtual_pipeline=virtual, pipeline_layers=sizes, schedule=schedule)
    )
    pieces = []
    for rank, chunks in enumerate(split):
        every = sum(len(chunk.layers) for chunk in chunks)
        below = sum(len(range(chunk.layers.start, min(chunk.layers.stop, dense))) for chunk in chunks)
        pieces.append(_Piece(rank, below, every - below, any(chunk.first for chunk in chunks), any(chunk.last for chunk in chunks)))
    return tuple(pieces)
