"""Seconds of one optimizer step of a layout on a cluster, by what they go to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from math import gcd, log2
from typing import NamedTuple

from preheat.arithmetic import Flops, dense_layers, flops_per_token, parameters
from preheat.arithmetic.parameters import predicted_tokens
from preheat.hardware import Gpu
from preheat.plan.constants import Constants, shipped
from preheat.plan.kernels import Device
from preheat.plan.layers import PARTS, Costs, LayerTimes, Pass, Split
from preheat.plan.links import TO_HOST, Links
from preheat.recipe import Model, Parallel

_UPDATE_BYTES = 30
"""Bytes that AdamW reads and writes for each parameter it owns: gradient 4, master weight and two moments 4 + 4 each way, weight 2."""
_LAYER_WEIGHTS = 6
"""Weights of a layer but for its experts: two norms, queries with keys and values, output, and both of the feed-forward network."""
_EXPERT_WEIGHTS = 2
_SPLIT_BACKWARD_BUBBLE = 1 / 3
"""Bubble of schedules that compute weight gradients apart, (p - 1)(F + B - W) over 1F1B's (p - 1)(F + B + W) with the three equal
(arXiv 2401.10241, table 1)."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and what follows from them."""

    parts: dict[str, float]
    """Seconds by what they go to, on the pipeline stage that takes longest; their sum is the step."""
    tokens: int
    """Tokens of the global batch."""
    ranks: int
    flops: Flops
    """Of the model, per token."""
    recomputed: float
    """FLOPs per token that recomputing adds."""
    peak: float
    """FLOP/s of one GPU in the run's number format."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens / self.seconds / self.ranks

    def mfu(self, convention: str = "causal") -> float:
        """Share of the peak, counting FLOPs as `arithmetic.Flops` names it: `causal`, `full_square` or `megatron`."""
        return float(getattr(self.flops, convention)) * self.tokens_per_s_per_gpu / self.peak

    @property
    def hfu(self) -> float:
        """Share of the peak with what is computed twice counted twice, under the causal convention."""
        return (self.flops.causal + self.recomputed) * self.tokens_per_s_per_gpu / self.peak

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda part: self.parts[part])


class _Slot(NamedTuple):
    """One micro-batch on the slowest pipeline stage."""

    layers: Pass
    """Both directions of the stage's layers."""
    head: float
    recompute: float
    total: float


class _Rest(NamedTuple):
    """Seconds of a step beside its micro-batches."""

    transfer: float
    bubble: float
    data: float
    optimizer: float
    outside: float
    waiting: float


@dataclass
class StepModel:
    """Predicts steps of one model at one sequence length on one kind of GPU; what layouts share is computed once."""

    model: Model
    seq_len: int
    gpu: Gpu
    precision: str
    """`bf16`, `fp16`, `fp32`, `fp8`, `mxfp8` or `fp4`."""
    software: str = "megatron"
    """The kind of training program, as in `constants.toml`."""
    constants: Constants = field(default_factory=shipped)

    def __post_init__(self) -> None:
        self._prepare(self.constants)
        self._peak = self.gpu.peak(self.precision)
        self._flops: dict[int, Flops] = {}
        self._count = parameters(self.model)
        self._sparse = 1 - dense_layers(self.model) / self.model.layers
        self._ahead = predicted_tokens(self.model)

    def under(self, constants: Constants) -> StepModel:
        """The same with other constants; what doesn't depend on them is shared."""
        other = copy.copy(self)
        other.constants = constants
        other._prepare(constants)
        return other

    def _prepare(self, constants: Constants) -> None:
        self._program, self._common = constants.program(self.software), constants.common
        self._device = Device.of(self.gpu, constants.of(self.gpu.generation), self._common, self._program, self.precision)
        self._links = Links.of(self.gpu, self._common)
        self._costs = Costs(self.model, self.seq_len, self._device, self._links, self._program)
        self._layers: dict[tuple[Split, bool], LayerTimes] = {}
        self._heads: dict[Split, tuple[Pass, Pass]] = {}
        self._slots: dict[tuple[object, ...], _Slot] = {}

    def seconds(self, parallel: Parallel, micro_batch: int, global_batch: int, ranks: int) -> float:
        """Seconds of one step; for a search, which wants the parts of few layouts only. Arguments as in `step`."""
        slot, micro_batches, rest = self._step(parallel, micro_batch, global_batch, ranks)
        return slot.total * micro_batches + sum(rest)

    def step(self, parallel: Parallel, micro_batch: int, global_batch: int, ranks: int) -> StepTime:
        """One step of a global batch.

        Args:
            parallel: a layout whose meshes divide the ranks.
            micro_batch: samples per forward pass of one data-parallel replica.
            global_batch: samples per step; a last incomplete micro-batch takes as long as a whole one.
            ranks: GPUs.
        """
        slot, micro_batches, rest = self._step(parallel, micro_batch, global_batch, ranks)
        parts = {name: getattr(slot.layers, name) * micro_batches for name in PARTS}
        parts |= {"head": slot.head * micro_batches, "recompute": slot.recompute * micro_batches} | rest._asdict()
        flops = self._flops_of(parallel.tensor)
        return StepTime(parts, global_batch * self.seq_len, ranks, flops, self._recomputed(parallel), self._peak)

    def _step(self, parallel: Parallel, micro_batch: int, global_batch: int, ranks: int) -> tuple[_Slot, int, _Rest]:
        pipeline, tensor, context = parallel.pipeline, parallel.tensor, parallel.context
        dense_dp = ranks // (tensor * pipeline * context)
        micro_batches = max(1, -(-global_batch // (micro_batch * dense_dp)))
        slot = self._slot(parallel, Split(micro_batch, tensor, context, parallel.expert, parallel.expert_tensor, parallel.sequence))
        waiting = (pipeline - 1) / parallel.virtual_pipeline
        if parallel.schedule not in ("1f1b", "interleaved"):
            waiting *= _SPLIT_BACKWARD_BUBBLE
        bubble = waiting * (slot.total - slot.head)
        transfer = self._transfer(parallel, micro_batch) * micro_batches if pipeline > 1 else 0.0
        data, update = self._replicas(parallel, dense_dp, ranks, slot.total, micro_batches)
        outside = self._program.step + self._program.step_tensor * self._weights(parallel)
        busy = slot.total * micro_batches + transfer + bubble + data + update + outside
        jitter = busy * self._common.jitter * log2(ranks / self.gpu.server) if ranks > self.gpu.server else 0.0
        return slot, micro_batches, _Rest(transfer, bubble, data, update, outside, jitter)

    def _slot(self, parallel: Parallel, split: Split) -> _Slot:
        again = parallel.recompute
        key = (split, parallel.pipeline, parallel.virtual_pipeline, parallel.pipeline_layers, again.kind, again.layers)
        found = self._slots.get(key)
        if found is None:
            found = self._slots[key] = self._slowest(parallel, split)
        return found

    def _slowest(self, parallel: Parallel, split: Split) -> _Slot:
        """The slowest pipeline stage: one with the most layers, or the last one with its layers and the head."""
        both, repeated, further = Pass(), 0.0, 0.0
        for sparse, share in ((False, 1 - self._sparse), (True, self._sparse)):
            if share:
                times = self._layer(split, sparse)
                both += (times.forward + times.backward) * share
                repeated += share * _again(parallel, times, self.model.layers // parallel.pipeline)
                further += share * (times.forward.total + times.backward.total)
        key = split._replace(expert=1, expert_tensor=1, sequence=False)
        if key not in self._heads:
            self._heads[key] = self._costs.head(key, self._ahead)
        out, back = self._heads[key]
        head = out.total + back.total + (self._ahead - 1) * further
        most, last = self._stage_layers(parallel, head / (both.total + repeated))
        if (most - last) * (both.total + repeated) > head:
            layers, head = both * most, 0.0
        else:
            layers, most = both * last, last
        return _Slot(layers, head, repeated * most, layers.total + head + repeated * most)

    def _stage_layers(self, parallel: Parallel, head: float) -> tuple[int, int]:
        """Layers of the stage that has most, and of the last one, when the head takes as long as `head` layers.

        Layers that don't divide evenly and are not split by hand are taken to be split so that the slowest stage is as fast as it can be.
        """
        stages, pieces = parallel.pipeline, parallel.pipeline * parallel.virtual_pipeline
        if parallel.pipeline_layers is not None:
            sizes = parallel.pipeline_layers
            return max(sum(sizes[rank::stages]) for rank in range(stages)), sum(sizes[stages - 1 :: stages])
        if self.model.layers % pieces == 0:
            return self.model.layers // stages, self.model.layers // stages
        virtual, layers = parallel.virtual_pipeline, self.model.layers
        splits = []
        for last in range(layers // pieces + 2):
            most = -(-(layers - last) // (pieces - 1))
            splits.append((max(most * virtual, most * (virtual - 1) + last + head), most * virtual, most * (virtual - 1) + last))
        return min(splits)[1:]

    def _layer(self, split: Split, sparse: bool) -> LayerTimes:
        found = self._layers.get((split, sparse))
        if found is None:
            found = self._layers[split, sparse] = self._costs.layer(split, sparse)
        return found

    def _transfer(self, parallel: Parallel, micro_batch: int) -> float:
        """Activations to the next stage and gradients to the one before, for one micro-batch; virtual stages send beside computing."""
        sent = micro_batch * self.seq_len / parallel.context / parallel.tensor * self.model.hidden * 2
        shown = 1.0 if parallel.virtual_pipeline == 1 else 1 - self._program.data_overlap
        return 2 * parallel.virtual_pipeline * self._links.send(sent, self.gpu.domain) * shown

    def _replicas(self, parallel: Parallel, dense_dp: int, ranks: int, slot: float, micro_batches: int) -> tuple[float, float]:
        """Seconds of exchanging gradients and weights between replicas that computation doesn't hide, and of the optimizer."""
        tensor, pipeline, ways = parallel.tensor, parallel.pipeline, parallel.expert * parallel.expert_tensor
        dense, experts = self._held(tensor, pipeline, ways)
        exchanged = owned = 0.0
        for held, copies, apart in (
            (dense, dense_dp * parallel.context, tensor),
            (experts, ranks // (ways * pipeline), ways),
        ):
            sharding = copies // gcd(copies, parallel.replicate)
            owned += held if parallel.sharding == "none" else held / sharding
            if held and copies > 1:
                exchanged += self._exchange(parallel, held, copies, sharding, apart, micro_batches)
        window = slot * micro_batches if parallel.sharding == "full" else slot
        update = self._device.move(owned * _UPDATE_BYTES)
        if parallel.offload_optimizer:
            update += 2 * owned * self._program.offloaded_bytes / TO_HOST
        return exchanged - min(exchanged * self._program.data_overlap, window), update

    def _exchange(self, parallel: Parallel, held: float, copies: int, sharding: int, apart: int, micro_batches: int) -> float:
        """Seconds of a step's reduce-scatters of gradients and all-gathers of weights for `held` parameters on a rank.

        FSDP gathers weights for each pass of each micro-batch, and scatters gradients after each.
        """
        links = self._links
        gradients = links.gather(held * self._program.gradient_bytes, copies, apart)
        weights = links.gather(held * 2, sharding, apart)
        pause = links.latency(copies, apart) * self.model.layers / parallel.pipeline
        if parallel.sharding == "full":
            return (gradients + 2 * weights + 3 * pause) * micro_batches
        return gradients + weights + 2 * pause

    def _held(self, tensor: int, pipeline: int, expert_ways: int) -> tuple[float, float]:
        """Parameters on a rank, dense and of experts: the mean of the stages with an embedding or a head; one stage alone has both."""
        count = self._count
        layers = count.total - count.experts - count.embedding - count.positions - count.head
        outer = count.embedding + count.positions + count.head if pipeline == 1 else count.embedding
        return (layers / pipeline + outer) / tensor, count.experts / (pipeline * expert_ways)

    def _weights(self, parallel: Parallel) -> float:
        """How many weights a rank holds, gate and up-projection being one."""
        experts = self.model.experts
        local = experts.count / parallel.expert * self._sparse if experts is not None else 0.0
        return self.model.layers / parallel.pipeline * (_LAYER_WEIGHTS + _EXPERT_WEIGHTS * local)

    def _recomputed(self, parallel: Parallel) -> float:
        kind = parallel.recompute.kind
        if kind == "none":
            return 0.0
        causal = self._flops_of(parallel.tensor).causal
        if kind == "selective":
            return (causal - 6 * self._count.multiplied) / 3
        return (causal - 6 * self.model.vocab_size * self.model.hidden) / 3

    def _flops_of(self, tensor: int) -> Flops:
        if tensor not in self._flops:
            self._flops[tensor] = flops_per_token(self.model, self.seq_len, tensor)
        return self._flops[tensor]


def _again(parallel: Parallel, times: LayerTimes, layers: int) -> float:
    """Seconds that a layer's backward pass computes again, on average over a stage's layers."""
    if parallel.recompute.kind == "none":
        return 0.0
    if parallel.recompute.kind == "selective":
        return times.selective.total
    return times.forward.total * min(1.0, (parallel.recompute.layers or layers) / layers)
