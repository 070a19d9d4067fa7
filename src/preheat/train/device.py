"""What the machine can do: which number format it multiplies natively, and how fast it multiplies."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from preheat.recipe import Precision


@dataclass(frozen=True)
class Device:
    """The device of a run and how it computes."""

    torch_device: torch.device
    name: str
    compute: torch.dtype
    reason: str
    """Why this number format."""

    def autocast(self) -> torch.autocast:
        """The context that the forward pass runs in."""
        return torch.autocast(self.torch_device.type, self.compute, enabled=self.compute != torch.float32)

    @property
    def compute_name(self) -> str:
        return {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.compute]


def choose(precision: Precision) -> Device:
    """This process's GPU if there is one, else the CPU, with the number format that the recipe asks for."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    name = torch.cuda.get_device_name(device) if gpu else _cpu_name()
    if precision.compute != "auto":
        dtype = torch.float32 if precision.compute == "fp32" else torch.bfloat16  # fp8 is of the products of blocks alone
        return Device(device, name, dtype, "the recipe says so")
    native = torch.cuda.is_bf16_supported(including_emulation=False) if gpu else _cpu_has_bf16()
    if native:
        return Device(device, name, torch.bfloat16, "the device multiplies bf16 natively")
    return Device(device, name, torch.float32, "the device has no native bf16 multiplication")


def matmul_peak(device: Device, size: int = 2048, patience_s: float = 1.0, most_s: float = 8.0) -> float:
    """The best rate seen in multiplying two square matrices of the compute format, in FLOP/s: what MFU is measured against.

    It looks until nothing better came for `patience_s`, at most `most_s`: a machine that was idle takes seconds to wake up.
    """
    left, right = (torch.randn(size, size, device=device.torch_device, dtype=device.compute) for _ in range(2))
    best = float("inf")
    begin = improved = now = time.perf_counter()
    while now - improved < patience_s and now - begin < most_s:
        start = now
        left @ right
        if device.torch_device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if now - start < 0.99 * best:
            best, improved = now - start, now
    return 2 * size**3 / best


def _cpu_has_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _cpu_name() -> str:
    return f"CPU ({torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads)"
