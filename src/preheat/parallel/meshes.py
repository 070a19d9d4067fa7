"""The process groups of a layout: the dense mesh (pipeline, replicate, shard, context, tensor) and the expert mesh over the same ranks.

All groups are made here, by all ranks in the same order: a group that only some ranks ask for would leave them waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from preheat.arithmetic import layout
from preheat.recipe import Parallel


@dataclass(frozen=True)
class Meshes:
    """Both meshes of a run, tensor ranks next to each other and pipeline ranks farthest apart, as in `preheat.arithmetic.meshes`."""

    dense: DeviceMesh
    """Axes pipeline, replicate, shard, context, tensor."""
    expert: DeviceMesh
    """Axes pipeline, replicate, shard, expert, expert_tensor."""
    dense_sharding: DeviceMesh
    """The ranks that dense weights are sharded over, or replicated over first: what FSDP gets."""
    expert_sharding: DeviceMesh
    """The same for experts."""
    exchange: dist.ProcessGroup
    """The ranks between which tokens travel to experts: axes expert and expert_tensor."""
    scored: dist.ProcessGroup
    """Ranks with different tokens of the batch, whose losses add up."""
    routed: dist.ProcessGroup
    """Ranks that route different tokens: with sequence parallelism tensor ranks too."""

    @property
    def data_rank(self) -> int:
        """Which replica of the batch this rank computes, from 0."""
        return self.dense.get_local_rank("replicate") * self.dense.size(2) + self.dense.get_local_rank("shard")

    @property
    def data_ranks(self) -> int:
        return self.dense.size(1) * self.dense.size(2)


def build_meshes(parallel: Parallel, device_type: str) -> Meshes:
    """Lay the meshes over all ranks of the default process group.

    Raises:
        ValueError: the layout does not divide the ranks; the message names the numbers.
    """
    sizes = layout(parallel, dist.get_world_size())
    if parallel.sharding != "none" and sizes.dense_dp % parallel.replicate:
        raise ValueError(f"{sizes.dense_dp} replicas do not divide into {parallel.replicate} groups that each hold everything")
    dense = init_device_mesh(
        device_type,
        (parallel.pipeline, *_split(parallel, sizes.dense_dp), parallel.context, parallel.tensor),
        mesh_dim_names=("pipeline", "replicate", "shard", "context", "tensor"),
    )
    expert = init_device_mesh(
        device_type,
        (parallel.pipeline, *_split(parallel, sizes.expert_dp), parallel.expert, parallel.expert_tensor),
        mesh_dim_names=("pipeline", "replicate", "shard", "expert", "expert_tensor"),
    )
    axes = ("replicate", "shard", "context")
    return Meshes(
        dense,
        expert,
        _sharding(dense, parallel),
        expert["replicate", "shard"],
        expert["expert", "expert_tensor"]._flatten("exchange").get_group(),
        dense[axes]._flatten("scored").get_group(),
        dense[(*axes, "tensor") if parallel.sequence else axes]._flatten("routed").get_group(),
    )


def _split(parallel: Parallel, copies: int) -> tuple[int, int]:
    """How many groups of replicas hold everything, and how many ranks each group shards it over.

    Where experts have fewer copies than there are groups, a group holds a part of them, and each copy is whole.
    """
    groups = copies if parallel.sharding == "none" else gcd(parallel.replicate, copies)
    return groups, copies // groups


def _sharding(dense: DeviceMesh, parallel: Parallel) -> DeviceMesh:
    """Context-parallel ranks hold the same weights for other tokens: for weights and gradients they are replicas like the others."""
    if parallel.sharding == "none":
        return DeviceMesh._concatenate([dense["replicate", "context"]._flatten("whole"), dense["shard"]])
    return DeviceMesh._concatenate([dense["replicate"], dense["shard", "context"]._flatten("split")])
