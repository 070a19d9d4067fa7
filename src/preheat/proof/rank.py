"""One rank of the real engine at the real number of ranks, in a process of its own: `python -m preheat.proof.rank`.

The process is one rank of a fake process group, whose collectives do nothing; the pieces lie on the meta device, and activations in tensors
that have a shape and no content. PyTorch remembers the groups of the first rank that it sees, so each takes a new process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from preheat.arithmetic import Rope
from preheat.parallel import Engine
from preheat.recipe import Recipe

_COMPUTE = {"fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True)
class Built:
    """What a rank has."""

    parameters: int
    """After everything was split and sharded."""
    kept: int | None
    """Bytes that the forward pass of a micro-batch in the recipe's first stage keeps for its backward pass; None where it can't be run."""
    why_not: str = ""


def build(recipe: Recipe, ranks: int, rank: int) -> Built:
    """Build a rank and run its pieces forward, in shapes alone.

    RMS norms are taken for layer norms in the forward pass: on CPUs, whose shapes it follows, the former keep their output too, and on GPUs
    neither does.
    """
    with _pretended(rank, ranks):
        parameters = sum(_own(parameter).numel() for _, parameter in _engine(recipe).named_parameters())
        try:
            return Built(parameters, _kept(recipe))
        except (DataDependentOutputException, DynamicOutputShapeException):
            return Built(parameters, None, "tokens go to experts by their content, and these tensors have none")


@contextmanager
def _pretended(rank: int, ranks: int) -> Iterator[None]:
    """A process group of so many ranks in which this process is one and the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _kept(recipe: Recipe) -> int:
    """What a second micro-batch's worth of samples adds: weights are kept as well, and do not grow with it."""
    norm = "layernorm" if recipe.model.norm == "rmsnorm" else recipe.model.norm
    altered = recipe.model_copy(update={"model": recipe.model.model_copy(update={"norm": norm})})
    samples, tokens = recipe.stage[0].micro_size or recipe.batch.micro_size, recipe.stage[0].seq_len or recipe.batch.seq_len
    engine = _engine(altered)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for piece in engine.pieces:
            piece.to_empty(device="cpu")
        one, two = (_forward(engine, altered, size, tokens) for size in (samples, 2 * samples))
    return two - one


def _forward(engine: Engine, recipe: Recipe, samples: int, tokens: int) -> int:
    """Bytes that autograd keeps of a forward pass of all of a rank's pieces, each storage once."""
    model, parallel, stage = recipe.model, recipe.parallel, recipe.stage[0]
    theta = stage.rope_theta or model.rope_theta
    settings: dict[str, Any] = {"rope": Rope(theta, stage.rope_scaling or model.rope_scaling) if theta is not None else None}
    settings |= {"z_loss": recipe.optimizer.z_loss, "prediction_weight": 0.1 if model.mtp is not None else 0.0}
    own = tokens // parallel.context
    if parallel.context > 1:
        settings["part_T"] = torch.arange(own)
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        local = _own(x)
        kept.setdefault(local.untyped_storage()._cdata, local)  # held until the end, so that no storage comes twice
        return x

    inputs_BT = torch.zeros(samples, tokens, dtype=torch.long)
    for piece in engine.pieces:
        piece.settings = settings
        length = own // parallel.tensor if parallel.sequence else own
        stream = () if piece.transformer.chunk.first else (torch.zeros(samples, length, model.hidden, requires_grad=True),)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            piece(*stream, tokens_BT=inputs_BT, labels_BT=inputs_BT)
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def _engine(recipe: Recipe) -> Engine:
    compute = _COMPUTE.get(recipe.precision.compute, torch.bfloat16)
    return Engine(recipe.model, recipe.parallel, recipe.seed, torch.device("meta"), compute, recipe.precision)


def _own(x: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    local = x.to_local() if isinstance(x, DTensor) else x
    return local.elem if isinstance(local, AsyncCollectiveTensor) else local


if __name__ == "__main__":
    _request: dict[str, Any] = json.loads(sys.stdin.read())
    _built = build(Recipe.model_validate_json(json.dumps(_request["recipe"])), _request["ranks"], _request["rank"])
    print(json.dumps(asdict(_built)))
