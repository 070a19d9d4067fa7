"""The machine and software of a run: written down at its first start, and again when something of it changed."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import preheat
from preheat.arithmetic import layout, parameters
from preheat.data import Manifest
from preheat.recipe import Loaded
from preheat.train.device import Device, matmul_peak
from preheat.train.files import read_record, write_json
from preheat.train.ranks import exchange, from_first, is_first, world_size
from preheat.train.run_folder import RunFolder

SCHEMA = "preheat.environment/1"
PEAK, RECIPE_FOLDER = "matmul_peak_flops", "recipe_folder"


def environment(folder: RunFolder, device: Device, loaded: Loaded, manifest: Manifest, data: Path) -> tuple[float, list[str]]:
    """The peak rate of all devices together in FLOP/s, and what is different since the start before. All ranks call it together.

    The peak is measured at the first start, and again when it is another device, number of processes or threads, or number format.
    """
    now = _environment(device, loaded, manifest, data)
    file, fix = folder.environment_file, "Remove it: it is written at every start"
    before = from_first(lambda: read_record(file, SCHEMA, fix) if file.is_file() else None)
    told = {key: value for key, value in now.items() if key != RECIPE_FOLDER}  # it changes nothing in what is trained
    changes = [] if before is None else [f"{key}: {before.get(key)} -> {value}" for key, value in told.items() if before.get(key) != value]
    if before is None or _speed(before) != _speed(now):
        now[PEAK] = sum(exchange(matmul_peak(device)))
        if before is not None:
            changes.append(f"peak rate of matrix multiplication: {before[PEAK]:.3g} -> {now[PEAK]:.3g} FLOP/s")
    else:
        now[PEAK] = before[PEAK]
    if is_first() and now != before:
        write_json(folder.environment_file, now)
    return float(now[PEAK]), changes


def _speed(record: dict[str, Any]) -> list[Any]:
    return [record["device"], record["precision"], record["threads"], record["layout"]["ranks"]]


def _environment(device: Device, loaded: Loaded, manifest: Manifest, data: Path) -> dict[str, Any]:
    recipe = loaded.recipe
    return {
        "schema": SCHEMA,
        "preheat": preheat.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device.name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": device.compute_name,
        "precision_reason": device.reason,
        "data": str(data.resolve()),
        "data_fingerprint": manifest.fingerprint,
        RECIPE_FOLDER: str(loaded.folder.resolve()),
        "parameters": {"total": parameters(recipe.model).total, "active": parameters(recipe.model).active},
        "layout": asdict(layout(recipe.parallel, world_size())),
        "mfu_convention": "causal",
    }
