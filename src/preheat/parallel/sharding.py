"""Data parallelism with weights, gradients and optimizer state sharded over the replicas (FSDP2; ZeRO, arXiv 1910.02054)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

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
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if compute != torch.float32 else MixedPrecisionPolicy()

    def shard(module: nn.Module, mesh: DeviceMesh) -> None:
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=again)

    transformer = piece.transformer
    for block in (*transformer.blocks.values(), *(prediction.block for prediction in transformer.predictions.values())):
        if isinstance(block.feed_forward, Experts):
            shard(block.feed_forward.experts, meshes.expert_sharding)
            # The router's weights stay in fp32: rounded ones would choose other experts.
            fully_shard(block.feed_forward.router, mesh=meshes.dense_sharding, reshard_after_forward=again)
        shard(block, meshes.dense_sharding)
    shard(piece, meshes.dense_sharding)
    for module in sharded(piece):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def sharded(piece: nn.Module) -> Iterator[FSDPModule]:
    """The modules that `apply_sharding` sharded."""
    return (module for module in piece.modules() if isinstance(module, FSDPModule))
