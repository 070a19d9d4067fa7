"""`--gpus 128`, `--gpus 64xH100`, `--gpus 8x96GB`: how many GPUs, and of which kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from preheat.errors import refuse
from preheat.hardware.gpu import NAME, Gpu, find

_PATTERN = re.compile(r"(?P<count>[0-9][0-9_,]{0,11})(?:\s*[xX*]\s*(?P<kind>" + NAME + r"))?")
_SIZE = re.compile(r"(?P<size>[0-9]{1,5}(?:\.[0-9]{1,3})?)GB", re.IGNORECASE)


@dataclass(frozen=True)
class Cluster:
    """A number of equal GPUs."""

    count: int
    gpu: Gpu
    assumed: bool = False
    """Whether nobody named a kind, and 80 GB are assumed."""

    def __str__(self) -> str:
        size = f"{self.gpu.memory / 1e9:g} GB"
        if self.assumed:
            return f"{self.count:_} GPUs (no kind named: {size} each are assumed)"
        return f"{self.count:_} {self.gpu.name} of {size}"

    @classmethod
    def parse(cls, text: str, file: Path | None = None) -> Cluster:
        """Read `128`, `64xH100` or `8x96GB`.

        Args:
            file: the user's own kinds, see `preheat.hardware.catalog`.

        Raises:
            PreheatError: no number, none at all, or a kind that is not known.
        """
        match = _PATTERN.fullmatch(text.strip())
        count = int(re.sub("[_,]", "", match["count"])) if match else 0
        if match is None or count == 0:
            refuse("usage", f"--gpus {text}", "a number, with a kind if you like", "Write for instance --gpus 64 or --gpus 64xH100")
        if match["kind"] is None:
            return cls(count, unknown(80_000_000_000), assumed=True)
        size = _SIZE.fullmatch(match["kind"])
        if size and float(size["size"]) > 0:
            return cls(count, unknown(round(float(size["size"]) * 1e9)))
        return cls(count, find(match["kind"], file))


def unknown(memory: int) -> Gpu:
    """A GPU of which nothing but its memory in bytes is known. It has no peaks; links are those of the usual server of 8."""
    return Gpu("GPUs", "unknown", memory, memory, 0.0, MappingProxyType({}), 0.0, 8, 8, 0.0)
