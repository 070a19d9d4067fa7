"""Matrix multiplications in fp8 (arXiv 2209.05433) by torchao: scaled to the present maxima of each tensor, or of each of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from preheat.errors import refuse
from preheat.model.transformer import Block

STEP = 16
"""What matrix dims are multiples of (cuBLASLt)."""


def apply_fp8(blocks: Sequence[Block], scaling: str | None, device: torch.device) -> None:
    """Let the linear layers of blocks multiply in fp8, in place and before anything else is applied to them.

    Routers, whose small differences decide, and the stacked matrices of routed experts stay as they are; head and embedding are in no
    block. Weights, gradients and what is added up keep their number formats. A device without fp8 emulates it, slowly and with the same
    rounding.

    Raises:
        PreheatError: a matrix has a dim that is no multiple of `STEP`.
        ModuleNotFoundError: torchao is not installed.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    assert scaling in ("tensorwise", "rowwise"), "what this engine does not run was refused before"
    config = replace(Float8LinearConfig.from_recipe_name(scaling), emulate=not _multiplies_fp8(device))
    for block in blocks:
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear) and (module.in_features % STEP or module.out_features % STEP):
                got = f"{name} of a block is a matrix of {module.out_features} x {module.in_features}"
                refuse("precision.fp8-shape", got, f"fp8 needs multiples of {STEP}", "Change the width, or precision.compute")
        convert_to_float8_training(block, config=config)


def _multiplies_fp8(device: torch.device) -> bool:
    """From Ada and Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
