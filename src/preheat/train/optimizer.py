"""AdamW, and Muon for hidden matrices: who is decayed, by what multiple of the rate a parameter moves, and moments kept in bf16."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from preheat.model import is_hidden_matrix, width_factor
from preheat.recipe import Model, Optimizer

_MOMENTUM = 0.95
"""Of Muon when the recipe has none (Jordan et al. 2024)."""


@dataclass(frozen=True)
class Treatment:
    """What the optimizer does with a parameter; parameters with the same one form a group."""

    muon: bool
    rate_factor: float
    """Multiple of the schedule's rate."""
    weight_decay: float
    """Decoupled: a step takes rate * rate_factor * weight_decay of the value away."""


def treatment(name: str, model: Model, optimizer: Optimizer) -> Treatment:
    """How the parameter of this name is trained.

    Norms and biases are never decayed, embedding, learned positions and head by choice. Under maximal update parametrization (see
    `preheat.model.mup`) AdamW moves hidden matrices 1/m as fast. Muon's update has singular values near 0.2 * sqrt(larger side) times the
    rate instead of entries near the rate, so that 1/sqrt(m) keeps what it does to activations the same (arXiv 2310.17813). The decay is
    multiplied by as much as the rate is divided by, which leaves their product.
    """
    hidden = is_hidden_matrix(name)
    muon = optimizer.name == "muon" and hidden and not name.endswith("router.weight")
    if name.endswith("bias") or name.endswith("norm.weight"):
        return Treatment(muon=False, rate_factor=1.0, weight_decay=0.0)
    if not hidden:
        return Treatment(muon=False, rate_factor=1.0, weight_decay=optimizer.weight_decay if optimizer.decay_embeddings else 0.0)
    slower = width_factor(model) ** (0.5 if muon else 1.0)
    return Treatment(muon=muon, rate_factor=1 / slower, weight_decay=optimizer.weight_decay * slower)


class Parametrised(Protocol):
    """A transformer, or what holds pieces of one in which parameters have the same names."""

    config: Model

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]: ...


def build_optimizer(transformer: Parametrised, optimizer: Optimizer, *, offload: bool = False) -> torch.optim.Optimizer:
    """The recipe's optimizer over a transformer or its pieces.

    It is one optimizer with one state per parameter, whatever is inside. The rate is set before each step by `set_rate`.

    Args:
        offload: keep the moments in the CPU's memory between steps.
    """
    members: dict[Treatment, list[tuple[str, Tensor]]] = {}
    for name, parameter in transformer.named_parameters():
        members.setdefault(treatment(name, transformer.config, optimizer), []).append((name, parameter))
    groups: list[dict[str, Any]] = [
        {"params": named, "lr": 0.0, "rate_factor": how.rate_factor, "muon": how.muon, "settings": _settings(how, optimizer)}
        for how, named in members.items()
    ]
    if optimizer.state_precision == "fp32" and not offload and not any(how.muon for how in members):
        return torch.optim.AdamW([group | group["settings"] for group in groups])
    return _OneByOne(groups, bf16=optimizer.state_precision == "bf16", offload=offload)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, each to its multiple."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"]


def _settings(how: Treatment, optimizer: Optimizer) -> dict[str, Any]:
    """Arguments of `torch.optim.Muon` or `torch.optim.AdamW` beside the rate."""
    if how.muon:
        momentum = optimizer.momentum if optimizer.momentum is not None else _MOMENTUM
        return {"weight_decay": how.weight_decay, "momentum": momentum, "adjust_lr_fn": "match_rms_adamw"}
    return {"weight_decay": how.weight_decay, "betas": optimizer.betas, "eps": optimizer.eps, "fused": True}


class _OneByOne(torch.optim.Optimizer):
    """Takes one parameter after the other through PyTorch's AdamW or Muon, so that no more than one is there in a wider form.

    State per parameter as theirs (`step`, `exp_avg`, `exp_avg_sq`; `momentum_buffer`). With `bf16` the moments are widened to fp32 for the
    step and then rounded up or down at random, in proportion to the distance: rounded to the nearest, a second moment under a beta of 0.999
    would never fall again, for it changes by less than half of bf16's spacing. Which way is a pure function of step, parameter and place.
    With `offload` the moments wait in the CPU's memory.
    """

    def __init__(self, groups: list[dict[str, Any]], bf16: bool, offload: bool) -> None:
        super().__init__(groups, {})
        self._bf16, self._offload = bf16, offload

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            move = _step_muon if group["muon"] else _step_adamw
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                for key in _moments(state):
                    state[key] = state[key].to(parameter.device).float()
                move(parameter, state, group["lr"], group["settings"])
                if self._bf16:
                    for key in _moments(state):
                        state[key] = rounded_at_random(state[key], f"{name}:{key}:{int(state['step'])}")
                if self._offload:
                    for key in _moments(state):
                        state[key] = state[key].cpu()


def _moments(state: dict[str, Any]) -> list[str]:
    return [key for key in state if key != "step"]


def _step_adamw(parameter: Tensor, state: dict[str, Any], rate: float, settings: dict[str, Any]) -> None:
    inner = torch.optim.AdamW([parameter], lr=rate, **settings)
    inner.state[parameter] = state
    inner.step()


def _step_muon(parameter: Tensor, state: dict[str, Any], rate: float, settings: dict[str, Any]) -> None:
    """A matrix is made orthogonal as a whole, on every rank that holds a part of it. A stack of experts, X x F x D, is X matrices."""
    if not state:
        state["step"] = torch.zeros((), device=parameter.device)
        state["momentum_buffer"] = torch.zeros_like(parameter)
    state["step"] += 1
    assert parameter.grad is not None
    value, gradient, momentum = parameter.detach(), parameter.grad, state["momentum_buffer"]
    values, gradients, momenta = (_matrices(tensor) for tensor in (value, gradient, momentum))
    if len(values):
        _orthogonal_step(values.unbind(), gradients.unbind(), momenta.unbind(), rate, settings)
    for tensor, matrices in ((value, values), (momentum, momenta)):
        _put_back(tensor, matrices)


def _orthogonal_step(
    values: Sequence[Tensor], gradients: Sequence[Tensor], momenta: Sequence[Tensor], rate: float, settings: dict[str, Any]
) -> None:
    inner = torch.optim.Muon(values, lr=rate, **settings)
    for value, gradient, momentum in zip(values, gradients, momenta, strict=True):
        value.grad = gradient
        inner.state[value] = {"momentum_buffer": momentum}
    inner.step()


def _matrices(tensor: Tensor) -> Tensor:
    """The whole matrices that this rank holds something of, stacked: X x F x D. Where one is split, it is a copy, gathered axis by axis.

    What an axis splits further comes after it in the mesh: sharding stands before tensor parallelism, which it was applied to.
    """
    if not isinstance(tensor, DTensor):
        return tensor.view(-1, *tensor.shape[-2:])
    own, splits = tensor.to_local(), _splits(tensor)
    for number, (mesh, dim) in enumerate(splits):
        shape = list(own.shape)
        shape[dim] = tensor.shape[dim] // math.prod(other.size() for other, also in splits[number + 1 :] if also == dim)
        stride = own.new_empty(shape, device="meta").stride()
        parts = DTensor.from_local(own, mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape), stride=stride)
        own = parts.full_tensor()
    return own.view(-1, *own.shape[-2:])


def _put_back(tensor: Tensor, matrices: Tensor) -> None:
    """What became of copies that `_matrices` gathered."""
    if not isinstance(tensor, DTensor) or not _splits(tensor):
        return
    own = tensor.to_local()
    _, starts = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    (top, left), (rows, columns) = starts[-2:], own.shape[-2:]
    own.copy_(matrices[:, top : top + rows, left : left + columns].view_as(own))


def _splits(tensor: DTensor) -> list[tuple[DeviceMesh, int]]:
    """Which mesh axes split the matrices of a tensor, each with the dim; the experts of a stack are whole on whichever rank holds them."""
    axes = zip(tensor.placements, tensor.device_mesh.mesh_dim_names or (), strict=True)
    found = [(tensor.device_mesh[name], placement.dim) for placement, name in axes if isinstance(placement, Shard | _StridedShard)]
    return [(mesh, dim) for mesh, dim in found if dim >= tensor.dim() - 2 and mesh.size() > 1]


def rounded_at_random(x: Tensor, key: str) -> Tensor:
    """fp32 to bf16: a value goes to one of its two neighbours with the probability of how near it is, drawn from a hash of `key`."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    generator = torch.Generator(x.device).manual_seed(seed)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    # bf16 is the upper half of fp32: what the noise carries over from the lower half rounds away from zero.
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()
