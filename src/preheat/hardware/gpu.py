"""A kind of GPU, and the catalog of kinds: the one that comes with preheat and what the user's own file adds to it or changes."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from preheat.errors import refuse

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "fp4")
"""Number formats of matrix products that a peak can be given for; mxfp8 and fp4 are block-scaled in hardware."""

_SHIPPED = Path(__file__).with_name("catalog.toml")


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU (or CPU) in the server that it is usually sold in."""

    name: str
    generation: str
    """Architecture: kinds of one generation run the same kernels about equally well."""
    memory: int
    """Bytes as sold: 80e9 for "80 GB"."""
    usable: int
    """Bytes that a process finds (torch's `total_memory`), the CUDA context not taken off; `memory` where nobody reported it."""
    memory_bandwidth: float
    """Bytes/s between the GPU and its memory."""
    peaks: Mapping[str, float] = field(hash=False)
    """FLOP/s of dense matrix products by number format, without sparsity; a format that the hardware lacks is absent."""
    link_bandwidth: float
    """Bytes/s that one GPU sends to the others of its domain (NVLink, or PCIe where there is none), one direction."""
    domain: int
    """GPUs that such links join."""
    server: int
    """GPUs in one server (one operating system)."""
    network_bandwidth: float
    """Bytes/s that one GPU sends out of its domain, one direction: its share of the usual network cards."""
    price: float | None = None
    """USD per GPU and hour; None where no price was found."""
    price_source: str = ""
    """Who named the price, and when."""
    source: str = ""

    def peak(self, precision: str) -> float:
        """FLOP/s of dense matrix products in a number format.

        Raises:
            PreheatError: the hardware does not multiply in it, or its peaks are not known.
        """
        if precision not in self.peaks:
            known = f"it multiplies {', '.join(self.peaks)}" if self.peaks else "nothing is known of it but its memory"
            refuse("hardware.peak", f"{self.name} has no peak for {precision}", known, _HOW_TO_ADD)
        return self.peaks[precision]


_HOW_TO_ADD = (
    "Name another kind, or describe yours in ~/.config/preheat/hardware.toml or in a file that you name: preheat plan --hardware FILE"
)
_NUMBERS = {"memory", "usable", "memory_bandwidth", "link_bandwidth", "domain", "server", "network_bandwidth", "price"}
_LARGEST = 1e24
_SOLD = 2**30 / 1e9
"""Bytes that a process may find for each byte as sold: sizes of some kinds are printed in GB and meant in GiB."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""What a kind may be called, so that `--gpus 8xNAME` can say it."""
_WHOLE = {"memory", "usable", "domain", "server"}
_OWN = {"name", "also"}
_REQUIRED = tuple(entry.name for entry in fields(Gpu) if entry.default is MISSING and entry.name not in ("name", "usable"))


def user_file() -> Path | None:
    """The user's own kinds when no file is named: hardware.toml in preheat's folder of settings, where there is one."""
    settings, home = os.environ.get("XDG_CONFIG_HOME"), os.environ.get("HOME")
    folder = Path(settings) if settings else Path(home) / ".config" if home else None
    file = folder / "preheat" / "hardware.toml" if folder is not None else None
    try:
        return file if file is not None and file.is_file() else None
    except OSError:  # a folder that may not even be looked into is somebody else's
        return None


def catalog(file: Path | None = None) -> Mapping[str, Gpu]:
    """Every known kind under its name and its other names, in the order of the files.

    Args:
        file: the user's own kinds, in place of `user_file()`. A table of a known name changes only what it names.

    Raises:
        PreheatError: the file can't be read, or a table of it is no GPU.
    """
    return _catalog(file or user_file())


@lru_cache(maxsize=4)
def _catalog(own: Path | None) -> Mapping[str, Gpu]:
    kinds: dict[str, Gpu] = {}
    for file in (_SHIPPED, own) if own is not None else (_SHIPPED,):
        for name, table in _tables(file).items():
            before = _lookup(kinds, name)
            gpu = _gpu(file, name, table, before)
            for called in (gpu.name, *table.get("also", ())):
                other = _lookup(kinds, called)
                if other is not None and other is not before:
                    refuse(
                        "hardware.file", f"{name} is also called {called}", f"{other.name} is called so", "Choose another name", file=file
                    )
                kinds[called] = gpu
            if before is not None:
                kinds |= {called: gpu for called, old in kinds.items() if old is before}
    return MappingProxyType(kinds)


def find(name: str, file: Path | None = None) -> Gpu:
    """The kind of that name; upper and lower case are alike.

    Raises:
        PreheatError: no kind is called so; the message names the nearest and how to add one.
    """
    kinds = catalog(file)
    found = _lookup(kinds, name)
    if found is None:
        near = difflib.get_close_matches(name.upper(), kinds, 1, 0.5)
        known = ", ".join(dict.fromkeys(gpu.name for gpu in kinds.values()))
        hint = f"Did you mean {near[0]}? " if near else ""
        refuse("hardware.unknown", f"no GPU is called {name}", f"known: {known}", hint + _HOW_TO_ADD)
    return found


def _lookup(kinds: Mapping[str, Gpu], name: str) -> Gpu | None:
    return next((gpu for called, gpu in kinds.items() if called.casefold() == name.casefold()), None)


def _tables(file: Path) -> dict[str, dict[str, Any]]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        refuse("hardware.file", f"can't read {file}: {error.strerror}", "", "Name a TOML file with a table for each kind", file=file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        refuse("hardware.file", f"no TOML: {error}", "", "Correct the file", file=file)
    for name, table in found.items():
        if not isinstance(table, dict):
            refuse("hardware.file", f"{name} is no table", "a table for each kind", f"Write [{name}] and its values below", file=file)
    return found


def _gpu(file: Path, name: str, table: dict[str, Any], before: Gpu | None) -> Gpu:
    """A kind from its table, over what was known of it before."""
    known = {entry.name for entry in fields(Gpu)} - {"name"} | {"also"}
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            refuse("hardware.file", f"unknown key {key}", "", f"Did you mean {near[0]}?" if near else "Remove it", file=file, key=name)
    also = table.get("also", [])
    if not isinstance(also, list) or not all(isinstance(called, str) for called in also):
        refuse("hardware.file", f"also is {also!r}", "a list of names", "Correct it", file=file, key=name)
    for called in (name, *also):
        if not re.fullmatch(NAME, called):
            refuse("hardware.file", f"a kind is called {called!r}", "letters, digits, dots and dashes", "Choose another name", file=file)
    values = {key: _value(file, name, key, value) for key, value in table.items() if key != "also"}
    if "memory" in values:  # what was found of another size says nothing of this one
        values = {"usable": values["memory"]} | values
    memory = values.get("memory", before.memory if before is not None else inf)
    if values.get("usable", 0) > memory * _SOLD:
        refuse(
            "hardware.file",
            f"usable is {values['usable']:_} bytes of a memory of {memory:_}",
            "what a process finds, no more than is there",
            "Correct usable or memory",
            file=file,
            key=name,
        )
    if before is not None:
        return replace(before, **values)
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        refuse("hardware.file", f"{name} lacks {', '.join(missing)}", "", "Add them: catalog.toml shows how", file=file, key=name)
    return Gpu(name, **values)


def _value(file: Path, name: str, key: str, value: Any) -> Any:
    if key == "peaks":
        if not isinstance(value, dict) or not value or not set(value) <= set(PRECISIONS):
            refuse(
                "hardware.file",
                f"peaks is {value!r}",
                f"FLOP/s by number format: {', '.join(PRECISIONS)}",
                "Correct it",
                file=file,
                key=name,
            )
        return MappingProxyType({precision: _number(file, name, f"peaks.{precision}", peak) for precision, peak in value.items()})
    if key in _NUMBERS:
        number = _number(file, name, key, value)
        if key in _WHOLE and number != int(number):
            refuse("hardware.file", f"{key} is {value}", "a whole number", "Correct it", file=file, key=name)
        return int(number) if key in _WHOLE else number
    if not isinstance(value, str):
        refuse("hardware.file", f"{key} is {value!r}", "a text", "Correct it", file=file, key=name)
    return value


def _number(file: Path, name: str, key: str, value: Any) -> float:
    least = 0.001 if key == "price" else 1
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < _LARGEST:
        want = f"a number from {least} in bytes, bytes/s, FLOP/s or USD"
        refuse("hardware.file", f"{key} is {value!r}", want, "Correct it", file=file, key=name)
    return float(value)
