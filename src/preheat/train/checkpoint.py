"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all, each file with its size and checksum.

Every rank writes the parts of tensors that it holds, once for all replicas, and the manifest says where in the whole tensor each part
stands. Whatever layout reads it takes the regions that it needs. The state of schedule and data is the step number alone.
"""

from __future__ import annotations

import errno
import math
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from preheat.disk import sha256, sync
from preheat.errors import Problem, RunFailed, Where
from preheat.parallel import own_block
from preheat.train.files import read_json, write_json, write_tensors
from preheat.train.ranks import Group, exchange, is_first, together

SCHEMA = "preheat.checkpoint/2"

State = dict[str, Tensor]
"""Name -> tensor or DTensor: what a checkpoint holds, see `preheat.train.state`."""


_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64)}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    step: int
    unmeasured: dict[str, Any] | None = None
    """The metrics of its step, where the run was stopped before they were complete and written."""
    judge: dict[str, Any] | None = None
    """What the judge of the run's numbers remembers of the steps before."""


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Region:
    """A block of a tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def common(self, other: Region) -> Region | None:
        """The block that both have, or None."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        shape = tuple(high - low for low, high in zip(start, stop, strict=True))
        return Region(start, shape) if all(size > 0 for size in shape) else None

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.start, self.shape, strict=True))

    def within(self, outer: Region) -> tuple[slice, ...]:
        """This block counted from the corner of another one that contains it."""
        return tuple(slice(a - b, a - b + size) for a, b, size in zip(self.start, outer.start, self.shape, strict=True))


@dataclass(frozen=True)
class Part:
    """What one rank writes of a tensor."""

    values: Tensor
    """On the CPU; no other holds the same memory."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    region: Region


@dataclass(frozen=True)
class Staged:
    """What this rank writes, and what is still to be copied into it."""

    parts: dict[str, Part]
    copies: list[tuple[Tensor, Tensor]]
    """(destination, source)"""

    def copy(self) -> dict[str, Part]:
        """Do the copies, on a GPU in a stream of its own after what was asked of it until now; the parts, which are then right."""
        cuda = [source for _, source in self.copies if source.is_cuda]
        if not cuda:
            for destination, source in self.copies:
                destination.copy_(source)
            return self.parts
        stream = torch.cuda.Stream(cuda[0].device)
        stream.wait_stream(torch.cuda.default_stream(cuda[0].device))
        with torch.cuda.stream(stream):
            for destination, source in self.copies:
                destination.copy_(source, non_blocking=True)
        stream.synchronize()
        return self.parts


def stage(state: State, writes_plain: bool = True, room: dict[str, Tensor] | None = None) -> Staged:
    """What this rank writes: its parts of all tensors, unless another rank has the same. They lie on the CPU, so that training may go on.

    Args:
        writes_plain: whether this rank writes the tensors that are no DTensors, of which its replicas hold the same.
        room: where the copies of the save before lie; they are overwritten, for new memory takes longer to get than to fill.
    """
    parts, copies, room = {}, [], {} if room is None else room
    for name, tensor in state.items():
        writes = writes_plain
        if isinstance(tensor, DTensor):
            replicated = [axis for axis, placement in enumerate(tensor.placements) if placement.is_replicate()]
            writes = all(tensor.device_mesh.get_local_rank(axis) == 0 for axis in replicated)
        own, region = own_part(tensor)
        if writes and own.numel():
            if name not in room:
                room[name] = torch.empty(own.shape, dtype=own.dtype, pin_memory=own.is_cuda)
            parts[name] = Part(room[name], tuple(tensor.shape), region)
            copies.append((room[name], own))
    return Staged(parts, copies)


def save(
    folder: Path,
    step: int,
    tokens: int,
    parts: dict[str, Part],
    recipe_fingerprint: str,
    group: Group = None,
    notes: Mapping[str, Any] | None = None,
    records: Path | None = None,
) -> Checkpoint:
    """Write `folder/step-N`, where `folder` is there; all ranks call it together.

    Args:
        notes: what else the manifest is to say: `held_out_loss`, by which the best ones are known, and what `Checkpoint` has.
        records: a file of the first rank that is to be on the disk before the checkpoint is.
        group: through which they agree; one of its own when training goes on beside.

    Raises:
        RunFailed: the disk is full or not writable on some rank; earlier checkpoints are untouched.
    """
    final, partial = folder / f"step-{step:08d}", folder / f".step-{step:08d}.partial"
    facts = {"schema": SCHEMA, "step": step, "tokens": tokens, "recipe_fingerprint": recipe_fingerprint, **(notes or {})}
    needed = sum(exchange(sum(part.values.nbytes for part in parts.values()), group))

    def failed(why: str) -> Problem:
        got = f"the checkpoint of step {step} was not written: {why}"
        return Problem("checkpoint.write", got, "", "Earlier ones are intact", Where(str(folder)))

    try:
        together(lambda: _begin(partial, needed, records) if is_first() else None, failed, group)
        together(lambda: _write_own(partial, parts), failed, group)
        together(lambda: _finish(partial, final, facts) if is_first() else None, failed, group)
    except RunFailed:
        if is_first():
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return Checkpoint(final, step)


def newest(folder: Path) -> tuple[Checkpoint | None, list[Damaged]]:
    """The newest checkpoint whose files have the size and checksum that its manifest names, and the newer ones that have not."""
    damaged: list[Damaged] = []
    for path in published(folder):
        reason = verify(path)
        if reason is None:
            manifest = read_json(path / "manifest.json")
            return Checkpoint(path, _number(path), manifest.get("unmeasured"), manifest.get("judge")), damaged
        damaged.append(Damaged(path, reason))
    return None, damaged


def published(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first; what has another name is none."""
    return sorted((path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)), key=_number, reverse=True)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, good or not; 0 without one."""
    return max(map(_number, published(folder)), default=0)


def set_aside(damaged: Damaged) -> Path:
    """Give a damaged checkpoint a name under which it is kept for whoever wants to look, and no longer counts as one."""
    aside = damaged.path.with_name(f"damaged-{damaged.path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return damaged.path.rename(aside)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def verify(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = read_json(path / "manifest.json")
        if manifest["schema"] != SCHEMA:
            return f"schema {manifest['schema']!r}, and this version reads {SCHEMA!r}"
        for name, expected in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size:_} bytes and not {expected['bytes']:_}"
            if sha256(path / name) != expected["sha256"]:
                return f"{name} does not have its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json or a file is missing or broken ({type(error).__name__})"
    return None


class Contents:
    """What a checkpoint holds: for each name where its parts lie."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._parts: dict[str, list[tuple[str, Region]]] = {}
        for name in read_json(self.path / "manifest.json")["files"]:
            if name.endswith(".json"):
                for entry, part in read_json(self.path / name)["parts"].items():
                    self.shapes[entry], self.dtypes[entry] = tuple(part["shape"]), _DTYPES[part["dtype"]]
                    region = Region(tuple(part["start"]), tuple(part["part"]))
                    self._parts.setdefault(entry, []).append((name.replace(".json", ".safetensors"), region))

    @torch.no_grad()
    def fill(self, state: State) -> None:
        """Copy into every tensor of `state` what this rank needs of it.

        Raises:
            RunFailed: the checkpoint lacks a tensor, or has it in another shape.
        """
        files: dict[str, Any] = {}
        for name, tensor in state.items():
            if self.shapes.get(name) != tuple(tensor.shape):
                got = f"{name} is {self.shapes.get(name, 'not there')}, and the run has {tuple(tensor.shape)}"
                raise RunFailed(Problem("checkpoint.tensors", got, "", "It is of another model", Where(str(self.path))))
            own, needed = own_part(tensor)
            filled = 0
            for file, region in self._parts[name]:
                common = needed.common(region)
                if common is not None:
                    source = files.setdefault(file, safe_open(self.path / file, "pt"))
                    own[common.within(needed)] = _read(source, name, common.within(region)).to(own.device)
                    filled += math.prod(common.shape)
            if filled != own.numel():
                got = f"{name}: {filled:_} of {own.numel():_} values are there"
                raise RunFailed(Problem("checkpoint.tensors", got, "", "A part is missing", Where(str(self.path))))


def retain(folder: Path, keep: int, stays: Callable[[int], bool] = lambda _: False, best: int = 0) -> None:
    """Remove all but the newest `keep` checkpoints, those whose step `stays`, and the `best` ones; and leftovers of interrupted saves.

    The best are those with the lowest held-out loss that their manifests name.
    """
    old = published(folder)[keep:]
    spared = set(_best(published(folder), best)) if best else set()
    for path in old:
        if path not in spared and not stays(_number(path)):
            path.replace(path.with_name(f".{path.name}.partial"))
    for path in folder.glob(".step-*.partial"):
        shutil.rmtree(path)
    (folder / ".latest.partial").unlink(missing_ok=True)


def _best(paths: list[Path], count: int) -> list[Path]:
    """The checkpoints with the lowest held-out loss; of equal ones the newer."""
    losses: dict[Path, float] = {}
    for path in paths:
        with suppress(OSError, ValueError, KeyError):  # one without it, or whose manifest went bad since
            losses[path] = read_json(path / "manifest.json")["held_out_loss"]
    return sorted(losses, key=lambda path: (losses[path], -_number(path)))[:count]


def _begin(partial: Path, needed: int, records: Path | None) -> None:
    """Make the folder, if the disk has room for `needed` bytes."""
    if records is not None:
        sync(records)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()  # without its parents: what was unmounted must not be written beside
    free = shutil.disk_usage(partial).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"it needs {needed:_} bytes and {free:_} are free")


def _write_own(partial: Path, parts: dict[str, Part]) -> None:
    """Write this rank's parts, and where they stand."""
    if not parts:
        return
    name = f"rank-{dist.get_rank() if dist.is_initialized() else 0:05d}"
    file = partial / f"{name}.safetensors"
    written = write_tensors(file, {entry: part.values for entry, part in parts.items()})
    places = {
        entry: {
            "dtype": str(part.values.dtype).removeprefix("torch."),
            "shape": part.shape,
            "start": part.region.start,
            "part": part.region.shape,
        }
        for entry, part in parts.items()
    }
    write_json(partial / f"{name}.json", {"file": written, "parts": places})


def _finish(partial: Path, final: Path, facts: dict[str, Any]) -> None:
    files = {}
    for path in sorted(partial.glob("rank-*.json")):
        files[path.name] = _facts(path)
        files[path.with_suffix(".safetensors").name] = read_json(path)["file"]
    write_json(partial / "manifest.json", facts | {"files": files})
    partial.rename(final)
    sync(final.parent)
    point_at(final)


def point_at(final: Path) -> None:
    """Let `latest` point at a checkpoint, for people and their scripts; where it cannot, nothing is lost: preheat looks at the folders."""
    latest, pointer = final.parent / "latest", final.parent / ".latest.partial"
    if latest.is_dir() and not latest.is_symlink():  # a copy that followed the link
        return
    pointer.unlink(missing_ok=True)
    pointer.symlink_to(final.name)
    pointer.replace(latest)
    sync(final.parent)


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def own_part(tensor: Tensor) -> tuple[Tensor, Region]:
    """This rank's part of a tensor, and where in the whole it stands."""
    if not isinstance(tensor, DTensor):
        return tensor.detach(), Region((0,) * tensor.dim(), tuple(tensor.shape))
    start, shape = own_block(tensor)
    return tensor.to_local().detach(), Region(start, shape)


def _read(source: Any, name: str, where: tuple[slice, ...]) -> Tensor:
    part: Tensor = source.get_slice(name)[where] if where else source.get_tensor(name)
    return part
