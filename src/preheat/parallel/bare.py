"""Modules whose weights are DTensors and whose arithmetic is on a rank's own plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from preheat.parallel.blocks import own_block


def distribute(module: nn.Module, mesh: DeviceMesh, placements: Callable[[str], Sequence[Placement]]) -> None:
    """Turn a module's own parameters, which are the same on all ranks or on the meta device, into DTensors without communication."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(distribute_tensor(parameter, mesh, placements(name), src_data_rank=None)))


def fill_own(parameter: nn.Parameter, draw: Callable[[range | None], Tensor]) -> None:
    """Put this rank's part of the initial values into a parameter; only its rows are drawn."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(draw(None))
        return
    start, shape = own_block(parameter)
    rows, *rest = (slice(begin, begin + size) for begin, size in zip(start, shape, strict=True))
    parameter.to_local().copy_(draw(range(rows.start, rows.stop))[:, *rest])


def compute_bare(module: nn.Module, gradients: Sequence[Placement] | None = None) -> None:
    """Let the module's forward pass see its DTensor parameters as this rank's plain tensors.

    Args:
        gradients: what the ranks' gradients of these are to each other; as the parameters themselves when None. `Partial` says that they
            are parts of a sum, because ranks use the same weights on different tokens.
    """
    kept: list[dict[str, Any]] = []

    def lay_bare(module: nn.Module, _: Any) -> None:
        kept.append(dict(module._parameters))
        for name, parameter in kept[-1].items():
            if isinstance(parameter, DTensor):
                module._parameters[name] = parameter.to_local(grad_placements=gradients)  # type: ignore[assignment]

    def restore(module: nn.Module, _: Any, __: Tensor) -> None:
        module._parameters.update(kept.pop())

    module.register_forward_pre_hook(lay_bare)
    module.register_forward_hook(restore, always_call=True)
