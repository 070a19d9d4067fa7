"""Compilation of blocks by TorchDynamo and Inductor: each block is compiled once for all that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from preheat.model.feed_forward import FeedForward
from preheat.model.transformer import Block
from preheat.recipe import Parallel


def apply_compile(blocks: Sequence[Block], parallel: Parallel) -> None:
    """Compile whole blocks in place where nothing is exchanged within them, else what lies between the exchanges.

    Attention over context-parallel ranks and experts stay as they are; tensor-parallel blocks were refused before (rule engine.compile).
    Forward methods are compiled and modules not replaced, so that parameters keep their names; what is wrapped around them later, such as
    recomputation, calls the compiled one.

    A shape too many for the compiler is an error, and not a silent return to uncompiled speed.
    """
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for block in blocks:
        for module in _compiled(block, parallel):
            module.forward = torch.compile(module.forward)


def _compiled(block: Block, parallel: Parallel) -> Iterator[nn.Module]:
    dense = isinstance(block.feed_forward, FeedForward)
    if dense and parallel.context == 1:
        yield block
        return
    if parallel.context == 1:
        yield block.attention
    if dense:
        yield block.feed_forward
