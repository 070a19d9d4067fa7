"""Bytes of weights, gradients and optimizer state on a GPU. Activations, buffers and fragmentation come on top."""

from __future__ import annotations

from dataclasses import dataclass

from preheat.arithmetic.layout import layout
from preheat.arithmetic.parameters import RankParameters, rank_parameters
from preheat.recipe import Model, Parallel, Precision

_BYTES = {"fp32": (4, 4, 8)}
_MIXED = (2, 4, 12)
"""Weight, gradient and optimizer bytes of a parameter in mixed precision: bf16 or fp16 weight, fp32 gradient, fp32 master weight and
two moments (Megatron-LM, theoretical_memory_usage). FP8 multiplies with copies and keeps the same state."""


@dataclass(frozen=True)
class States:
    """Bytes on one GPU."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def states(count: RankParameters, precision: Precision, parallel: Parallel, dense_replicas: int, expert_replicas: int) -> States:
    """Bytes for the parameters of one GPU when dense parameters have `dense_replicas` copies and experts `expert_replicas`.

    `sharding = "optimizer"` divides the optimizer state by the copies (ZeRO-1, arXiv 1910.02054), `full` divides all three.
    """
    per_parameter = _BYTES.get(precision.compute, _MIXED)
    divided = {"none": (False, False, False), "optimizer": (False, False, True), "full": (True, True, True)}[parallel.sharding]
    sizes = [
        size * (-(-count.dense // dense_replicas) - (-count.experts // expert_replicas) if shared else count.total)
        for size, shared in zip(per_parameter, divided, strict=True)
    ]
    return States(*sizes)


def rank_states(model: Model, parallel: Parallel, precision: Precision, ranks: int) -> tuple[States, ...]:
    """Bytes on a GPU of each pipeline rank, over `ranks` ranks in all; context-parallel ranks are copies of the dense parameters too.

    Raises:
        ValueError: the layout does not divide the ranks or the layers.
    """
    mesh = layout(parallel, ranks)
    return tuple(
        states(rank_parameters(model, parallel, rank), precision, parallel, mesh.dense_dp * parallel.context, mesh.expert_dp)
        for rank in range(parallel.pipeline)
    )
