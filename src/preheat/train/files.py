"""Files that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from preheat.disk import sync
from preheat.errors import refuse

_SAFETENSORS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64"}
_CHUNK = 2**24


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file of contiguous CPU tensors and force it onto the disk; returns its size and SHA-256.

    The library's own writer copies all tensors first, holds the interpreter while it writes and hides what the system said of a full disk;
    and the checksum here is of the bytes that were meant, not of what came back.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that every tensor is aligned
    header, offset = {}, 0
    for name in order:
        tensor, begin = tensors[name], offset
        offset += tensor.nbytes
        header[name] = {"dtype": _SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, offset]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:

        def put(content: bytes | memoryview) -> None:
            digest.update(content)
            written = 0
            while written < len(content):
                written += file.write(content[written:])

        put(len(text).to_bytes(8, "little") + text)
        for name in order:
            content = tensors[name].reshape(-1).view(torch.uint8).numpy().data
            for begin in range(0, len(content), _CHUNK):
                put(content[begin : begin + _CHUNK])
        os.fsync(file.fileno())
    return {"bytes": 8 + len(text) + offset, "sha256": digest.hexdigest()}


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by the JSON of `value` in one step."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync(path.parent)


def read_json(path: Path) -> Any:
    """The JSON of a file."""
    return json.loads(path.read_text("utf-8"))


def read_record(path: Path, schema: str, fix: str) -> dict[str, Any]:
    """The JSON object of this schema that a file of a run folder holds.

    Raises:
        PreheatError: it holds something else.
    """
    try:
        record = read_json(path)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        refuse("run.broken-file", "it is damaged: it holds no JSON object", "", fix, file=path)
    if record.get("schema") != schema:
        refuse("run.folder", f"it has schema {record.get('schema')!r}", f"this version reads {schema!r}", fix, file=path)
    return record
