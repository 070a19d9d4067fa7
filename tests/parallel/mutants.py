"""Faults that public projects shipped, built in on purpose: whoever compares layouts has to notice each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from layout_run import Distance, Outcome, Training, distance
from torch.distributed.fsdp import FSDPModule

from preheat.parallel import Engine, engine
from preheat.parallel.pipeline import Pipeline
from preheat.parallel.twins import Twins
from preheat.recipe import Parallel


def _averaged() -> AbstractContextManager[Any]:
    """Gradients of the replicas are averaged, though the loss is divided by the tokens of all already."""

    def shard(piece: Any, *arguments: Any) -> None:
        sharding(piece, *arguments)
        for module in piece.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(float(dist.get_world_size()))

    sharding = engine.apply_sharding
    return patch.object(engine, "apply_sharding", shard)


def _last_micro_batch_dropped() -> AbstractContextManager[Any]:
    def one_piece(self: Engine, batch: Any, micro_size: int, tokens: int, train: bool) -> Any:
        return original(self, batch.rows(slice(0, -micro_size)) if train else batch, micro_size, tokens, train)

    original = Engine._one_piece
    return patch.object(Engine, "_one_piece", one_piece)


def _first_micro_batch_of_a_pipeline_dropped() -> AbstractContextManager[Any]:
    """As in Automodel's pull 3530 all but the last were: their gradients were thrown away, and the loss looked fine."""

    def step(self: Pipeline, batch: Any, micro_size: int, divisor: float) -> Any:
        return original(self, batch.rows(slice(micro_size, None)), micro_size, divisor)

    original = Pipeline.step
    return patch.object(Pipeline, "step", step)


def _another_replicas_rows() -> AbstractContextManager[Any]:
    def own_samples(self: Engine, batch_size: int) -> slice:
        return slice(0, batch_size // dist.get_world_size())

    return patch.object(Engine, "own_samples", own_samples)


def _own_seed() -> AbstractContextManager[Any]:
    """OLMo-core's pull 319: replicas that start with other weights."""

    def init_weights(transformer: Any, model: Any, seed: int, fill: Any) -> None:
        original(transformer, model, seed + dist.get_rank(), fill)

    original = engine.init_weights
    return patch.object(engine, "init_weights", init_weights)


def _experts_twice() -> AbstractContextManager[Any]:
    """PyTorch's issue 160285: the gradients of experts are doubled."""
    return _before_clipping(lambda name: 2.0 if ".experts." in name else 1.0)


def _a_rank_of_its_own_gradient() -> AbstractContextManager[Any]:
    """A replica that has not got the sum of the others."""
    return _before_clipping(lambda _: 1.0 + 0.1 * dist.get_rank())


def _before_clipping(factor: Callable[[str], float]) -> AbstractContextManager[Any]:
    def clip(self: Engine, most: float) -> float:
        for name, parameter in self.named_parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor(name))
        return original(self, most)

    original = Engine.clip
    return patch.object(Engine, "clip", clip)


def _clipped_by_own_norm() -> AbstractContextManager[Any]:
    """torchtitan's issue 596: each stage of a pipeline clips by the norm of its own gradients."""

    def clip(self: Engine, most: float) -> float:
        with patch.object(dist, "all_reduce"):
            return original(self, most)

    original = Engine.clip
    return patch.object(Engine, "clip", clip)


def _one_rank_does_not_clip() -> AbstractContextManager[Any]:
    """BLOOM, chronicle of 2022-03-24."""

    def clip(self: Engine, most: float) -> float:
        return original(self, most if dist.get_rank() == 0 else 1e9)

    original = Engine.clip
    return patch.object(Engine, "clip", clip)


def _twins_apart() -> AbstractContextManager[Any]:
    return patch.object(Twins, "sum_gradients", lambda self: None)


def _counted_alone() -> AbstractContextManager[Any]:
    """Routers hear only of their own rank's tokens."""
    return patch.object(engine, "_sum_counts", lambda *_: None)


MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "averaged": _averaged,
    "last micro-batch dropped": _last_micro_batch_dropped,
    "first micro-batch of a pipeline dropped": _first_micro_batch_of_a_pipeline_dropped,
    "another replica's rows": _another_replicas_rows,
    "own seed": _own_seed,
    "experts twice": _experts_twice,
    "own gradient": _a_rank_of_its_own_gradient,
    "clipped by own norm": _clipped_by_own_norm,
    "one rank does not clip": _one_rank_does_not_clip,
    "twins apart": _twins_apart,
    "counted alone": _counted_alone,
}


def mutant_distance(mutant: str, training: Training, parallel: Parallel, reference: Outcome) -> Distance:
    """`distance` with a fault."""
    with MUTANTS[mutant]():
        return distance(training, parallel, reference)
