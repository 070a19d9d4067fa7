"""Bytes of weights, gradients and optimizer state on a GPU. Activations, buffers and fragmentation come on top."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from preheat.arithmetic.layout import layout
from preheat.arithmetic.parameters import RankParameters, rank_parameters
from preheat.recipe import Model, Optimizer, Parallel, Precision

_BYTES = {"fp32": (4, 4, 0)}
_MIXED = (2, 4, 4)
"""Bytes of a parameter's weight, gradient and master weight in mixed precision: bf16 or fp16 weight, fp32 gradient and master weight
(Megatron-LM, theoretical_memory_usage); the moments come on top. FP8 multiplies with copies and keeps the same state."""
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
) -> States:
    """Bytes for the parameters of one GPU when dense parameters have `dense_replicas` copies and experts `expert_replicas`.

    `sharding = "optimizer"` divides the optimizer state by the copies (ZeRO-1, arXiv 1910.02054), `full` divides all three. AdamW keeps two
    moments. Muon keeps one, which is exact for hidden matrices and the least for the embedding, the head and the norms, which keep two.
    """
    weight, gradient, master = _BYTES.get(precision.compute, _MIXED)
    moments = (2 if optimizer.name == "adamw" else 1) * (4 if optimizer.state_precision == "fp32" else 2)
    per_parameter = weight, gradient, master + moments
    divided = {"none": (False, False, False), "optimizer": (False, False, True), "full": (True, True, True)}[parallel.sharding]
    sizes = [
        size * (-(-count.dense // dense_replicas) - (-count.experts // expert_replicas) if shared else count.total)
        for size, shared in zip(per_parameter, divided, strict=True)
    ]
    return States(*sizes)


def rank_states(model: Model, parallel: Parallel, precision: Precision, ranks: int, optimizer: Optimizer = _ADAMW) -> tuple[States, ...]:
    """Bytes on a GPU of each pipeline rank, over `ranks` ranks in all; context-parallel ranks are copies of the dense parameters too.

    With `replicate` groups each of them shards for itself (HSDP, arXiv 2304.11277).

    Raises:
        ValueError: the layout does not divide the ranks or the layers.
    """
    mesh = layout(parallel, ranks)
    dense, expert = (copies // gcd(copies, parallel.replicate) for copies in (mesh.dense_dp, mesh.expert_dp))
    return tuple(
        states(rank_parameters(model, parallel, rank), precision, parallel, dense * parallel.context, expert, optimizer)
        for rank in range(parallel.pipeline)
    )
