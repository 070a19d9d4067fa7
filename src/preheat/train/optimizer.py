"""AdamW, and Muon for hidden matrices: who is decayed, by what multiple of the rate a parameter moves, and moments kept in bf16."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
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
    """A stack of experts, X x F x D, is X matrices: each is made orthogonal by itself, on the rank that holds it."""
    if not state:
        state["step"] = torch.zeros((), device=parameter.device)
        state["momentum_buffer"] = torch.zeros_like(parameter)
    state["step"] += 1
    assert parameter.grad is not None
    value, gradient, momentum = parameter.detach(), parameter.grad, state["momentum_buffer"]
    values, gradients, momenta = (_gathered(tensor) for tensor in (value, gradient, momentum))
    if parameter.dim() == 2:
        _orthogonal_step([values], [gradients], [momenta], rate, settings)
    elif len(values):
        _orthogonal_step(values.unbind(), gradients.unbind(), momenta.unbind(), rate, settings)
    _put_back(value, values)
    _put_back(momentum, momenta)


def _orthogonal_step(
    values: Sequence[Tensor], gradients: Sequence[Tensor], momenta: Sequence[Tensor], rate: float, settings: dict[str, Any]
) -> None:
    inner = torch.optim.Muon(values, lr=rate, **settings)
    for value, gradient, momentum in zip(values, gradients, momenta, strict=True):
        value.grad = gradient
        inner.state[value] = {"momentum_buffer": momentum}
    inner.step()


def _gathered(tensor: Tensor) -> Tensor:
    """A matrix split over at most one mesh axis, over which its ranks share the work; or the experts that this rank holds, each whole.

    What other axes split is gathered into a copy. Then rows may stand in another order: a matrix made orthogonal has its rows in the same.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    own, (kept, gathered) = tensor.to_local(), _splits(tensor)
    for mesh, dim in gathered:
        own = DTensor.from_local(own, mesh, [Shard(dim)], run_check=False).full_tensor()
    for mesh, dim in kept:
        assert not gathered or tensor.shape[dim] % (mesh.size() * gathered[0][0].size()) == 0, "shards of a split matrix are even"
        own = DTensor.from_local(own, mesh, [Shard(dim)], run_check=False, shape=tensor.shape, stride=tensor.stride())
    return own


def _put_back(tensor: Tensor, copy: Tensor) -> None:
    """What became of a copy that `_gathered` made."""
    if not isinstance(tensor, DTensor):
        return
    own = copy.to_local() if isinstance(copy, DTensor) else copy
    for mesh, dim in reversed(_splits(tensor)[1]):
        own = own.chunk(mesh.size(), dim)[mesh.get_local_rank()]
    if own.data_ptr() != tensor.to_local().data_ptr():
        tensor.to_local().copy_(own)


Splits = list[tuple[DeviceMesh, int]]
"""Mesh axes, each with the dim of a tensor that it splits."""


def _splits(tensor: DTensor) -> tuple[Splits, Splits]:
    """What splits the matrices of a tensor: the axis that may stay, and those to be gathered over, which split evenly."""
    axes = zip(tensor.placements, tensor.device_mesh.mesh_dim_names or (), strict=True)
    found = [(tensor.device_mesh[name], placement.dim) for placement, name in axes if isinstance(placement, Shard | _StridedShard)]
    real = [(mesh, dim) for mesh, dim in found if dim >= tensor.dim() - 2 and mesh.size() > 1]
    return (real[:1], real[1:]) if tensor.dim() == 2 else ([], real)


def rounded_at_random(x: Tensor, key: str) -> Tensor:
    """fp32 to bf16: a value goes to one of its two neighbours with the probability of how near it is, drawn from a hash of `key`."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    generator = torch.Generator(x.device).manual_seed(seed)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    # bf16 is the upper half of fp32: what the noise carries over from the lower half rounds away from zero.
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()
