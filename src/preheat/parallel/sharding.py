"""Data parallelism with weights, gradients and optimizer state sharded over the replicas (FSDP2; ZeRO, arXiv 1910.02054)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from preheat.arithmetic.pipeline import SPLIT_BACKWARD
from preheat.model.experts import Experts
from preheat.parallel.meshes import Meshes
from preheat.parallel.pipeline import Piece
from preheat.recipe import Parallel


def apply_sharding(piece: Piece, meshes: Meshes, parallel: Parallel, compute: torch.dtype) -> None:
    """Shard a model, or the piece of one, in place: each block on its own, experts over their own replicas, then the rest.

    `full` gathers a block's weights for its forward pass and again for its backward pass; `optimizer` keeps them in between, which is
    what others call the distributed optimizer (ZeRO-1 at ZeRO-3's layout); `none` keeps whole weights on every replica.
    Gradients are summed over replicas and never averaged: the loss is already divided by the tokens of the whole batch.
    """
    again = parallel.sharding == "full"
    # Without a pipeline the backward pass begins with what is in no block: its weights need not be let go of before.
    rest_again = again and parallel.pipeline > 1
    splits = parallel.pipeline > 1 and parallel.schedule in SPLIT_BACKWARD
    assert not (again and splits), f"FSDP loses gradients where {parallel.schedule} gathers weights again; check says so"
    exact = MixedPrecisionPolicy()
    rounded = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)

    def shard(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy, again: bool = again) -> None:
        split = _even(mesh.size(1)) if mesh is meshes.expert_sharding else None
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=again, shard_placement_fn=split)

    transformer = piece.transformer
    for block in transformer.every_block:
        if isinstance(block.feed_forward, Experts):
            shard(block.feed_forward.experts, meshes.expert_sharding, rounded)
            # A rounded router would choose other experts.
            shard(block.feed_forward.router, meshes.dense_sharding, exact)
        shard(block, meshes.dense_sharding, rounded)
    # A rounded embedding would make a rounded stream: blocks add to one in fp32, as they do in one process.
    shard(piece, meshes.dense_sharding, exact, rest_again)
    for module in piece.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _even(copies: int) -> Callable[[nn.Parameter], Shard | None]:
    """Let `copies` ranks share a stack of experts evenly: whole experts where there are enough of them, else a width that divides.

    By whole experts alone, one expert of two copies would lie on the first of them, and the second would hold nothing.
    """

    def split(stack: nn.Parameter) -> Shard | None:
        local = stack.to_local() if isinstance(stack, DTensor) else stack
        taken = {placement.dim for placement in stack.placements if isinstance(placement, Shard)} if isinstance(stack, DTensor) else set()
        if local.shape[0] % copies == 0:
            return None
        return next((Shard(dim) for dim in range(1, stack.ndim) if dim not in taken and stack.shape[dim] % copies == 0), None)

    return split


def expect_micro_batch(piece: Piece, sharding: str, last: bool) -> None:
    """Say before a micro-batch of a step whether it is the last one; without a pipeline, which says so itself.

    Gradients travel once, with the last one. With `full` they do not fit whole: each micro-batch scatters its own, and only what replicas
    add up waits for the last.
    """
    if not isinstance(piece, FSDPModule):
        return
    full = sharding == "full"
    piece.set_requires_gradient_sync(last or full)
    piece.set_requires_all_reduce(last)
    piece.set_reshard_after_backward(last or full)


def gather_predictions(piece: Piece) -> None:
    """Gather the weights of layers that predict further tokens once, and let go of them; after they have values, on all ranks.

    Where their weight is 0 they don't run, and PyTorch's FSDP (2.13) falls over layers that it never gathered when a backward pass in bf16
    leaves its gradients for later micro-batches.
    """
    for module in piece.transformer.predictions.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


def give_back(piece: Piece) -> None:
    """Let go of weights that a forward pass gathered and no backward pass follows: until then modules hold them in place of their own."""
    for module in piece.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
