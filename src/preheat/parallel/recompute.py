"""Recomputation: what is computed again in the backward pass instead of being kept (arXiv 1604.06174, 2205.05198)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from preheat.model import routers
from preheat.model.transformer import Block
from preheat.recipe import Recompute


def apply_recompute(blocks: Sequence[Block], recompute: Recompute) -> None:
    """Wrap whole blocks (`full`, the first `layers` of them or all) or the inner attention of each (`selective`), in place.

    Forward methods are wrapped and modules not replaced, so that parameters keep their names.

    Args:
        blocks: all of a pipeline rank's.
    """
    if recompute.kind == "full":
        for block in blocks[: recompute.layers]:
            _again(block)
    elif recompute.kind == "selective":
        for block in blocks:
            _again(block.attention.inner)


def _again(module: nn.Module) -> None:
    module.forward = partial(
        checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (nullcontext(), _Uncounted(module))
    )


class _Uncounted:
    """Routers count the tokens of a forward pass, and not again those of a backward pass, which may enter this several times.

    Twice as many would do, for only shares are made of the counts; but DualPipe's order computes some micro-batches again once and others
    twice.
    """

    def __init__(self, module: nn.Module) -> None:
        self.counts = [count for router in routers(module).values() for count in (router.choices, router.dropped, router.shares)]

    def __enter__(self) -> None:
        self.before = [count.clone() for count in self.counts]

    def __exit__(self, *_: object) -> None:
        for count, before in zip(self.counts, self.before, strict=True):
            count.copy_(before)
