"""What a rank holds after a step, and what its forward pass kept, read from the real engine and optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from preheat.parallel import Engine, Objective
from preheat.recipe import Model, Optimizer, Parallel, Precision
from preheat.train.optimizer import build_optimizer, set_rate


@dataclass(frozen=True)
class Held:
    """Bytes on this rank."""

    parameters: int
    gradients: int
    moments: int
    kept: int
    """By the forward passes of all micro-batches, each storage once, what does not grow with the batch included."""


class _Parts:
    """What `build_optimizer` wants of a model."""

    def __init__(self, engine: Engine) -> None:
        self.config, self.named_parameters = engine.config, engine.named_parameters


def hold(model: Model, parallel: Parallel, optimizer: Optimizer, samples: int, tokens: int) -> Held:
    """One step in bf16 of so many samples a replica, in one micro-batch of them all."""
    engine = Engine(model, parallel, 1, torch.device("cpu"), torch.bfloat16, Precision(compute="bf16"))
    inner = build_optimizer(_Parts(engine), optimizer)
    generator = torch.Generator().manual_seed(0)
    inputs_BT = torch.randint(model.vocab_size, (samples, tokens), generator=generator)
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        local = x.to_local() if isinstance(x, DTensor) else x
        local = local.elem if isinstance(local, AsyncCollectiveTensor) else local
        kept.setdefault(local.untyped_storage().data_ptr(), local)  # alive until the end, so that no address comes twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        engine.accumulate(inputs_BT, inputs_BT, samples, Objective(samples * tokens))
    engine.clip(1.0)
    set_rate(inner, 1e-3)
    inner.step()
    values = [parameter for _, parameter in engine.named_parameters()]
    moments = [value for state in inner.state.values() for key, value in state.items() if key != "step"]
    return Held(
        sum(map(_bytes, values)),
        sum(_bytes(value.grad) for value in values if value.grad is not None),
        sum(map(_bytes, moments)),
        sum(value.untyped_storage().nbytes() for value in kept.values()),
    )


def _bytes(x: Tensor) -> int:
    local = x.to_local() if isinstance(x, DTensor) else x
    return local.numel() * local.element_size()
