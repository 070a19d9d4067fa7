"""What of a run is saved: weights, what routers remember, and the optimizer's moments, each under a name that no layout changes."""

from __future__ import annotations

import torch
from torch import Tensor

from preheat.errors import Problem, RunFailed, Where
from preheat.parallel import Engine
from preheat.train.checkpoint import Checkpoint, Contents, State


def run_state(engine: Engine, optimizer: torch.optim.Optimizer, *, once: bool) -> State:
    """`model/NAME` -> this rank's parameters and persistent buffers, `optimizer/KEY/NAME` -> the moments of its parameters.

    A parameter that had no gradient yet, as in prediction layers of weight 0, has no moments; its `step` is written as 0.

    Args:
        once: leave out what another rank of the pipeline holds too, as is right for saving; all of it is filled when loading.
    """
    state = {f"model/{name}": tensor for name, tensor in engine.named_tensors(once=once)}
    for name, parameter in engine.named_parameters(once=once):
        own = optimizer.state.get(parameter) or ({"step": torch.zeros(())} if optimizer.state else {})
        for key, value in own.items():
            state[f"optimizer/{key}/{name}"] = value
    return state


def settled(engine: Engine, state: State) -> State:
    """Of a run's state what nothing but the optimizer's step changes; the rest is what layers remember from one batch to the next."""
    parameters = {f"model/{name}" for name, _ in engine.named_parameters(once=True)}
    return {name: tensor for name, tensor in state.items() if name in parameters or name.startswith("optimizer/")}


def restore(checkpoint: Checkpoint, engine: Engine, optimizer: torch.optim.Optimizer) -> None:
    """Fill model and optimizer, in whatever layout the checkpoint was written.

    Raises:
        RunFailed: a tensor is missing or of another shape.
    """
    contents = Contents(checkpoint)
    keys: dict[str, list[str]] = {}
    for entry in contents.shapes:
        kind, _, rest = entry.partition("/")
        if kind == "optimizer":
            key, _, name = rest.partition("/")
            keys.setdefault(name, []).append(key)
    optimizer.state.clear()
    for name, parameter in engine.named_parameters():
        if _is_untouched(contents, name, keys):
            continue
        _refuse_lost_moments(checkpoint, name, keys)
        for key in keys.get(name, ()):
            entry = f"optimizer/{key}/{name}"
            optimizer.state[parameter][key] = _like(
                parameter, contents.shapes[entry], contents.dtypes[entry], "cpu" if engine.parallel.offload_optimizer else parameter.device
            )
    contents.fill(run_state(engine, optimizer, once=False))


def _is_untouched(contents: Contents, name: str, keys: dict[str, list[str]]) -> bool:
    """The parameter had no gradient before the checkpoint."""
    if keys.get(name) != ["step"]:
        return False
    contents.fill({f"optimizer/step/{name}": (steps := torch.empty(()))})
    return not steps.item()


def _refuse_lost_moments(checkpoint: Checkpoint, name: str, keys: dict[str, list[str]]) -> None:
    """Every parameter has all moments that the others with the same kinds have: training does not go on with zeros in their place."""
    own = set(keys.get(name, ()))
    lost = next((set(others) - own for others in keys.values() if own < set(others)), None)
    if lost:
        got = f"optimizer/{min(lost)}/{name} is not there, and those of other parameters are"
        raise RunFailed(Problem("checkpoint.tensors", got, "", "A part is missing", Where(str(checkpoint.path))))


def _like(parameter: Tensor, shape: tuple[int, ...], dtype: torch.dtype, place: torch.device | str) -> Tensor:
    """Room for a moment of a parameter, sharded as the parameter is; or for a number, such as the count of steps."""
    if shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False).to(place)
    return torch.empty(shape, dtype=dtype)
