"""Recomputation: what is computed again in the backward pass instead of being kept (arXiv 1604.06174, 2205.05198)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from preheat.model.transformer import Block
from preheat.recipe import Recompute


def apply_recompute(blocks: Sequence[Block], recompute: Recompute) -> None:
    """Wrap whole blocks (`full`, the first `layers` of them or all) or the inner attention of each (`selective`), in place.

    Forward methods are wrapped and modules not replaced, so that parameters keep their names. A router whose block is computed again counts
    its choices twice; what is made of the counts are shares.

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
    module.forward = partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False)
