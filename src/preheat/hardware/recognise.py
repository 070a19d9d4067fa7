"""Which kind of the catalog a GPU is that its driver calls by a longer name."""

from __future__ import annotations

import re
from pathlib import Path

from preheat.hardware.gpu import Gpu, catalog

_ALIKE = 0.03
"""Share by which memory may differ from what others reported of the kind; the nearest larger sizes are a fifth apart."""


def recognised(name: str, memory: int, file: Path | None = None) -> Gpu | None:
    """The kind that `name` and `memory` belong to; None where there is none, or more than one.

    Example: "NVIDIA A100-SXM4-80GB" with 84.9e9 bytes is A100-80, with 42.3e9 A100-40.

    Args:
        name: as `torch.cuda.get_device_name` has it.
        memory: bytes, as `total_memory` has it.
        file: the user's own kinds, see `catalog`.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    found = [gpu for gpu in dict.fromkeys(catalog(file).values()) if _is(gpu, words) and abs(gpu.usable / memory - 1) <= _ALIKE]
    return found[0] if len(found) == 1 else None


def _is(gpu: Gpu, words: set[str]) -> bool:
    own = set(re.findall(r"[a-z0-9]+", gpu.name.lower()))
    sizes = {word for word in own if word.isdigit() and len(word) < 4}
    return own - sizes <= words and ("pcie" in own) == ("pcie" in words)
