"""The process groups of a layout: the dense mesh (pipeline, replicate, shard, context, tensor) and the expert mesh over the same ranks."""

from __future__ import annotations

from dataclasses import dataclass

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
    dense_split, expert_split = _split(parallel, sizes.dense_dp), _split(parallel, sizes.expert_dp)
    dense = init_device_mesh(
        device_type,
        (parallel.pipeline, *dense_split, parallel.context, parallel.tensor),
        mesh_dim_names=("pipeline", "replicate", "shard", "context", "tensor"),
    )
    expert = init_device_mesh(
        device_type,
        (parallel.pipeline, *expert_split, parallel.expert, parallel.expert_tensor),
        mesh_dim_names=("pipeline", "replicate", "shard", "expert", "expert_tensor"),
    )
    return Meshes(dense, expert, _sharding(dense, parallel), expert["replicate", "shard"])


def _split(parallel: Parallel, data: int) -> tuple[int, int]:
    """How many groups of replicas hold everything, and how many ranks each group shards it over."""
    return (data, 1) if parallel.sharding == "none" else (1, data)


def _sharding(dense: DeviceMesh, parallel: Parallel) -> DeviceMesh:
    """Context-parallel ranks hold the same weights for other tokens: for weights and gradients they are replicas like the others."""
    if parallel.sharding == "none":
        dense["replicate", "context"]._flatten("replicate_context")
        return dense["replicate_context", "shard"]
    dense["shard", "context"]._flatten("shard_context")
    return dense["replicate", "shard_context"]
