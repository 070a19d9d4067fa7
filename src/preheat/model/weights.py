"""Tensors by name in safetensors files: written in shards, read one at a time, with a checksum for each.

The layout is Hugging Face's: `model.safetensors`, or `model-00001-of-00002.safetensors` and so on beside `model.safetensors.index.json`.
A folder of initial weights has a `manifest.json` as well, which names the model that they belong to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from preheat.errors import Problem, RunFailed, Where, refuse
from preheat.recipe import Model

SCHEMA = "preheat.weights/1"
SINGLE, INDEX, MANIFEST = "model.safetensors", "model.safetensors.index.json", "manifest.json"
SHARD_BYTES = 5_000_000_000
"""The largest shard that is written; a larger tensor is one of its own."""


@dataclass(frozen=True)
class Written:
    """One tensor as it lies in its file."""

    file: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


class Weights(Mapping[str, Tensor]):
    """The tensors of a folder, each read when it is asked for.

    Raises:
        PreheatError: there are no safetensors files, one cannot be read, or the index names what is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = _files(folder)
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        self._where: dict[str, Any] = {}
        for file in self.files:
            try:
                handle = safe_open(folder / file, "pt")
            except (OSError, SafetensorError) as error:
                refuse("weights.file", f"the file cannot be read ({error})", "", "Fetch or write it again", file=folder / file)
            for name in handle.keys():  # noqa: SIM118 (the handle is no mapping)
                if name in self._where:
                    refuse("weights.file", f"{name} lies in two files", "each tensor in one", "Remove one of the files", file=folder / file)
                part = handle.get_slice(name)
                self._where[name] = handle
                self._shapes[name] = (tuple(part.get_shape()), part.get_dtype())
        self._hold_index()

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._where[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return self._shapes[name][0]

    def dtype(self, name: str) -> str:
        """The number format of a tensor as safetensors spells it, `F32` or `BF16` for instance, without reading it."""
        return self._shapes[name][1]

    def _hold_index(self) -> None:
        path = self.folder / INDEX
        if self.files == [SINGLE]:
            return
        listed = _read_index(path)
        lacking = sorted(listed.keys() - self._where.keys())
        if lacking:
            got = f"{len(lacking)} tensors of the index are in no file, {lacking[0]} for one"
            refuse("weights.file", got, "", "Fetch or write the files again", file=path)


def save_weights(
    folder: Path, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], tensors: Iterable[tuple[str, Tensor]], shard_bytes: int
) -> dict[str, Written]:
    """Write tensors into a folder, holding one shard in memory at a time.

    Args:
        shapes: shape and number format of every tensor, in the order in which `tensors` gives them.
        shard_bytes: the size above which a new file is begun.

    Returns:
        What was written, by name.

    Raises:
        RunFailed: the disk is full or not writable.
    """
    shards = _plan(shapes, shard_bytes)
    files = [SINGLE] if len(shards) == 1 else [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    stream, written = iter(tensors), {}
    for file, names in zip(files, shards, strict=True):
        content: dict[str, Tensor] = {}
        for expected in names:
            name, tensor = next(stream)
            shape, dtype = shapes[expected]
            assert (name, tuple(tensor.shape), tensor.dtype) == (expected, shape, dtype), f"{name} is not the planned {expected}"
            content[name] = tensor.detach().cpu().contiguous()
            written[name] = Written(file, shape, str(dtype).removeprefix("torch."), tensor_sha256(content[name]))
        try:
            save_file(content, folder / file, metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            problem = Problem("weights.write", f"{file} was not written: {error}", "", "Make room on the disk", Where(str(folder)))
            raise RunFailed(problem) from error
    assert next(stream, None) is None, "more tensors than planned"
    if len(files) > 1:
        total = sum(_size(shape, dtype) for shape, dtype in shapes.values())
        index = {"metadata": {"total_size": total}, "weight_map": {name: entry.file for name, entry in written.items()}}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    return written


def write_manifest(folder: Path, model: Model, origin: Mapping[str, Any], written: Mapping[str, Written]) -> None:
    """Write `manifest.json` beside tensors: the model that they belong to, where they come from, and the checksum of each."""
    tensors = {name: asdict(entry) for name, entry in written.items()}
    manifest = {"schema": SCHEMA, "model": model.model_dump(mode="json"), "origin": dict(origin), "tensors": tensors}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_manifest(folder: Path) -> tuple[Model, dict[str, str]]:
    """The model that a folder's tensors belong to, and the SHA-256 of each tensor.

    Raises:
        PreheatError: there is no manifest, or none that can be read.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
        if manifest["schema"] != SCHEMA:
            refuse("weights.manifest", f"schema {manifest['schema']!r}", f"this version reads {SCHEMA!r}", "Import them again", file=path)
        return Model.model_validate(manifest["model"]), {name: str(entry["sha256"]) for name, entry in manifest["tensors"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "Give the folder that `preheat import hf` wrote"
        refuse("weights.manifest", f"no manifest of initial weights ({type(error).__name__})", "", fix, file=path)


def tensor_sha256(tensor: Tensor) -> str:
    """Hex digest of a tensor's bytes in row-major order."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()


def _plan(shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, (shape, dtype) in shapes.items():
        size = _size(shape, dtype)
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _files(folder: Path) -> list[str]:
    """Names of the files that hold the tensors; no name leads out of the folder."""
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        others = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
        got = f"there is no {SINGLE} and no {INDEX}" + (f", but {others[0]}" if others else "")
        refuse("weights.file", got, "weights as safetensors", "Convert them", file=folder)
    files = sorted(set(_read_index(folder / INDEX).values()))
    for file in files:
        if Path(file).name != file or not (folder / file).is_file():
            refuse("weights.file", f"the index names {file!r}", "a file of this folder", "Fetch the missing file", file=folder / INDEX)
    return files


def _read_index(path: Path) -> dict[str, str]:
    try:
        return {str(name): str(file) for name, file in json.loads(path.read_text("utf-8"))["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        refuse("weights.file", f"no index that can be read ({type(error).__name__})", "a weight_map of names to files", "", file=path)
