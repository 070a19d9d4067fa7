"""`--gpus 128`, `--gpus 64xH100`, `--gpus 8x96GB`: how many GPUs, and what a sanity check has to know about one."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from preheat.errors import refuse

_PATTERN = re.compile(r"(?P<count>[0-9][0-9_,]{0,11})(?:\s*[xX*]\s*(?P<kind>[A-Za-z0-9.-]+))?")
_SIZE = re.compile(r"(?P<size>[0-9]{1,5}(?:\.[0-9]{1,3})?)GB", re.IGNORECASE)
_HOPPER = frozenset({"bf16", "fp16", "fp8"})
_BLACKWELL = _HOPPER | {"mxfp8"}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    memory_gb: float
    """As sold, in 10^9 bytes."""
    formats: frozenset[str]
    """What its matrix units multiply beside fp32; mxfp8 stands for block scales in hardware."""
    domain: int = 8
    """GPUs that one NVLink domain joins in the usual server."""


GPUS: dict[str, Gpu] = {
    "V100": Gpu(32, frozenset({"fp16"})),
    "A100": Gpu(80, frozenset({"bf16", "fp16"})),
    "A100-40": Gpu(40, frozenset({"bf16", "fp16"})),
    "A100-80": Gpu(80, frozenset({"bf16", "fp16"})),
    "H100": Gpu(80, _HOPPER),
    "H800": Gpu(80, _HOPPER),
    "H20": Gpu(96, _HOPPER),
    "H200": Gpu(141, _HOPPER),
    "B200": Gpu(180, _BLACKWELL),
    "B300": Gpu(288, _BLACKWELL),
    "GB200": Gpu(186, _BLACKWELL, 72),
    "GB300": Gpu(288, _BLACKWELL, 72),
}
"""NVIDIA's data sheets: the memory of one GPU in the servers sold (HGX, NVL72), without sparsity or boost."""

USUAL = Gpu(80, _BLACKWELL)
"""What is assumed when no kind is named; its formats rule nothing out."""


@dataclass(frozen=True)
class Gpus:
    """A number of equal GPUs."""

    count: int
    kind: str | None
    """None: not named, and 80 GB are assumed."""
    gpu: Gpu

    def __str__(self) -> str:
        if self.kind is None:
            return f"{self.count:_} GPUs (no kind named: {self.gpu.memory_gb:g} GB each are assumed)"
        return f"{self.count:_} {self.kind} of {self.gpu.memory_gb:g} GB"

    @classmethod
    def parse(cls, text: str) -> Gpus:
        """Read `128`, `64xH100` or `8x96GB`.

        Raises:
            PreheatError: no number, none at all, or a kind that is not known.
        """
        match = _PATTERN.fullmatch(text.strip())
        count = int(re.sub("[_,]", "", match["count"])) if match else 0
        if match is None or count == 0:
            refuse("usage", f"--gpus {text}", "a number, with a kind if you like", "Write for instance --gpus 64 or --gpus 64xH100")
        if match["kind"] is None:
            return cls(count, None, USUAL)
        size = _SIZE.fullmatch(match["kind"])
        if size and float(size["size"]) > 0:
            return cls(count, "GPUs", Gpu(float(size["size"]), USUAL.formats))
        kind = match["kind"].upper()
        if kind not in GPUS:
            near = difflib.get_close_matches(kind, GPUS, 1, 0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            refuse(
                "usage", f"no GPU is called {match['kind']}", f"known: {', '.join(GPUS)}", f"{hint}Or give the memory: --gpus {count}x96GB"
            )
        return cls(count, kind, GPUS[kind])
