"""The gradient norm over all meshes and pipeline ranks, and clipping by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def clip_gradients(
    parameters: Iterable[nn.Parameter], most: float, pipeline: dist.ProcessGroup | None, twins: Sequence[nn.Parameter] = ()
) -> Tensor:
    """Scale all gradients so that their common norm is at most `most`; returns the norm before. Each gradient is counted once.

    A norm over DTensors of one mesh counts shards and replicas right; those of different meshes, and of the pipeline's ranks, hold
    different parameters, so their squares add. `twins` are copies of parameters that are counted elsewhere.
    """
    second = {id(twin) for twin in twins}
    by_mesh: dict[object, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            by_mesh[parameter.device_mesh if isinstance(parameter, DTensor) else None].append(parameter)
    squares = torch.zeros(())
    for group in by_mesh.values():
        counted = [parameter.grad for parameter in group if id(parameter) not in second and parameter.grad is not None]
        if counted:
            norm = nn.utils.get_total_norm(counted)
            squares = squares + (norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2
    if pipeline is not None:
        dist.all_reduce(squares, group=pipeline)
    total = squares.sqrt()
    for group in by_mesh.values():
        nn.utils.clip_grads_with_norm_(group, most, total)
    return total
