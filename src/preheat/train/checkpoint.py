"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all, each file with its size and checksum.

The state of schedule and data is the step number alone; everything else follows from the recipe.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from preheat.errors import Problem, RunFailed, Where
from preheat.train.files import read_json, sha256, sync_file, sync_folder, write_json

SCHEMA = "preheat.checkpoint/1"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    step: int


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


def save(folder: Path, step: int, tokens: int, model: nn.Module, optimizer: torch.optim.Optimizer, recipe_fingerprint: str) -> Checkpoint:
    """Write `folder/step-N`.

    Raises:
        RunFailed: the disk is full or not writable; earlier checkpoints are untouched.
    """
    final = folder / f"step-{step:08d}"
    partial = folder / f".step-{step:08d}.partial"
    tensors = {"model.safetensors": _model_tensors(model), "optimizer.safetensors": _optimizer_tensors(model, optimizer)}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in tensors.items():
            save_file(content, partial / name)
            sync_file(partial / name)
        files = {name: {"bytes": (partial / name).stat().st_size, "sha256": sha256(partial / name)} for name in tensors}
        manifest = {"schema": SCHEMA, "step": step, "tokens": tokens, "recipe_fingerprint": recipe_fingerprint, "files": files}
        write_json(partial / "manifest.json", manifest)
        if final.exists():  # a damaged one that the run resumed from before
            shutil.rmtree(final)
        partial.rename(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        where = Where(str(folder))
        raise RunFailed(
            Problem("checkpoint.write", f"the checkpoint of step {step} was not written: {error}", "", "Earlier ones are intact", where)
        ) from error
    return Checkpoint(final, step)


def newest(folder: Path) -> tuple[Checkpoint | None, list[Damaged]]:
    """The newest checkpoint whose files have the size and checksum that its manifest names, and the newer ones that have not."""
    damaged: list[Damaged] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        reason = verify(path)
        if reason is None:
            return Checkpoint(path, read_json(path / "manifest.json")["step"]), damaged
        damaged.append(Damaged(path, reason))
    return None, damaged


def verify(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = read_json(path / "manifest.json")
        for name, expected in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size:_} bytes and not {expected['bytes']:_}"
            if sha256(path / name) != expected["sha256"]:
                return f"{name} does not have its checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"manifest.json or a file is missing or broken ({type(error).__name__})"
    return None if manifest.get("schema") == SCHEMA else f"schema {manifest.get('schema')!r}"


def load(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Fill the model, and the optimizer where one is given; every tensor must be there with its shape."""
    model.load_state_dict(_untie(model, load_file(checkpoint.path / "model.safetensors")))
    if optimizer is not None:
        _restore_optimizer(model, optimizer, load_file(checkpoint.path / "optimizer.safetensors"))


def retain(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what an interrupted save left behind."""
    for path in sorted(folder.glob("step-*"), reverse=True)[keep:]:
        trash = path.with_name(f".{path.name}.partial")
        path.replace(trash)
    for path in folder.glob(".step-*.partial"):
        shutil.rmtree(path)


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers; a tied matrix is stored once under its first name."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            stored[name] = tensor.detach().contiguous()
        seen.add(tensor.data_ptr())
    return stored


def _untie(model: nn.Module, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the second name of a tied matrix its tensor back."""
    by_address = {tensor.data_ptr(): name for name, tensor in reversed(model.state_dict().items())}
    return {name: stored[by_address[tensor.data_ptr()]] for name, tensor in model.state_dict().items()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{key}/{names[parameter]}": value.detach().contiguous()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, stored: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    state: dict[Tensor, dict[str, Any]] = {}
    for entry, value in stored.items():
        key, name = entry.split("/", 1)
        state.setdefault(parameters[name], {})[key] = value.to(parameters[name].device, copy=True)
    optimizer.state.clear()
    optimizer.state.update(state)
