"""Seconds of single kernels on a GPU: matrix products by shape, attention, and what moves bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from preheat.errors import refuse
from preheat.hardware import Gpu
from preheat.plan.constants import Common, Kernels, Software

_TILE = 128
"""Rows and columns of the output that one multiprocessor works on at a time."""
_BACKWARD_ATTENTION = 3.0
"""Time of flash attention's backward pass over the forward pass: 2.5 times the products (arXiv 2205.14135), at a lower rate."""
_NARROW = {"fp8": "matrix_fp8", "mxfp8": "matrix_mxfp8", "fp4": "matrix_fp4"}
"""Formats of 8 bits and fewer, and their share of the peak among the constants."""


@dataclass(frozen=True)
class Device:
    """A GPU with the rates that its kernels really reach."""

    matrix: float
    """FLOP/s of large matrix products inside the layers."""
    wide: float
    """FLOP/s of large matrix products that stay in bf16: head, attention."""
    element: int
    """Bytes of an element of an operand inside the layers."""
    memory: float
    """Bytes/s."""
    attention: float
    """FLOP/s of flash attention's forward pass."""
    tiles: int
    """Elements of output that all multiprocessors work on at a time."""
    common: Common

    @classmethod
    def of(cls, gpu: Gpu, kernels: Kernels, common: Common, software: Software, precision: str) -> Device:
        """The rates for a number format: `bf16`, `fp16`, `fp32`, `fp8`, `mxfp8` or `fp4`.

        Raises:
            PreheatError: the GPU does not multiply in it, or nobody measured how well.
        """
        plain = precision if precision in ("fp16", "fp32") else ("bf16" if "bf16" in gpu.peaks else "fp16")
        wide = gpu.peak(plain)
        wide_share = kernels.matrix * software.matrix
        matrix, element = wide * wide_share, 4 if precision == "fp32" else 2
        if precision in _NARROW:
            peak, share = gpu.peak(precision), getattr(kernels, _NARROW[precision])
            if share is None:
                refuse(
                    "plan.precision",
                    f"no throughput of {precision} is known for {gpu.name}",
                    f"known for the generation {gpu.generation}: bf16",
                    "Plan with precision.compute = bf16",
                )
            matrix, element = peak * share * software.matrix, 1
        tiles = kernels.multiprocessors * _TILE * _TILE
        return cls(
            matrix,
            wide * kernels.matrix * software.matrix,
            element,
            gpu.memory_bandwidth * kernels.memory,
            wide * kernels.attention,
            tiles,
            common,
        )

    def product(self, m: float, n: float, k: float, groups: float = 1, wide: bool = False, at_once: float = 1) -> float:
        """Seconds of `groups` products of an (m, k) with a (k, n) matrix, of which `at_once` run beside each other."""
        rate, element = (self.wide, 2) if wide else (self.matrix, self.element)
        lost = 1 + self.common.wave * self.tiles / (m * n * min(groups, at_once))
        slow = self.common.misaligned if (n % 64 or k % 64) else 1.0
        compute = 2 * groups * m * n * k / rate * lost * (1 + self.common.depth / k) * slow
        moved = groups * (element * (m * k + n * k) + 2 * m * n)
        return hypot(compute, moved / self.memory)

    def linear(self, m: float, n: float, k: float, groups: float = 1, wide: bool = False, at_once: float = 1) -> tuple[float, float]:
        """Seconds of a linear layer from k to n features over m rows: forward, and backward with the gradients of inputs and weights."""
        forward = self.product(m, n, k, groups, wide, at_once)
        backward = self.product(m, k, n, groups, wide, at_once) + self.product(n, k, m, groups, wide, at_once)
        if wide or self.element != 1:
            return forward, backward
        # Operands are read in bf16 and written in 8 bits twice, as they are and transposed for the backward pass.
        return forward + groups * 4 * m * k / self.memory, backward + groups * 4 * m * n / self.memory

    def attend(self, rows: float, seen: float, heads: float, width: float, software: Software) -> tuple[float, float]:
        """Seconds of causal attention for `rows` queries a head, each over `seen` positions on average, forward and backward.

        Args:
            width: dims of a head's keys and values together.
        """
        if software.attention == "flash":
            forward = 2 * rows * seen * heads * width / self.attention / software.attention_rate * (1 + _TILE / seen)
            return forward, _BACKWARD_ATTENTION * forward
        square = 2 * seen
        slow = self.common.odd_heads if width // 2 % 8 else 1.0
        products = 2 * rows * square * heads * width / self.wide * (1 + self.common.depth / (width / 2))
        scores = 2 * rows * square * heads
        return (products + 5 * scores / self.memory) * slow, (2 * products + 8 * scores / self.memory) * slow

    def move(self, bytes_moved: float) -> float:
        """Seconds of an elementwise kernel that reads and writes so many bytes."""
        return bytes_moved / self.memory
