"""Which rows a rank holds, against cutting the tensor with torch.chunk in the order in which the engine cuts it."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from preheat.parallel import own_block


def cut(tensor: torch.Tensor, dim: int, ranks: int, rank: int) -> torch.Tensor:
    parts = torch.chunk(tensor, ranks, dim)
    return parts[rank] if rank < len(parts) else tensor.narrow(dim, 0, 0)


@pytest.mark.parametrize(
    ("replicas", "tensor", "rows"),
    [(3, 2, 259), (2, 2, 259), (3, 2, 256), (5, 3, 7), (4, 2, 3), (1, 4, 10), (6, 1, 13), (7, 2, 50_257)],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_fsdp_cuts_what_tensor_parallelism_left(replicas: int, tensor: int, rows: int, dim: int) -> None:
    whole = torch.arange(3 * rows).view((rows, 3) if dim == 0 else (3, rows))
    covered = torch.zeros_like(whole)
    for rank in range(2 * replicas * tensor):
        dist.init_process_group("fake", rank=rank, world_size=2 * replicas * tensor, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2, replicas, tensor))
            _, replica, place = mesh.get_coordinate() or ()
            own = cut(cut(whole, dim, tensor, place), dim, replicas, replica)
            placements = [Replicate(), _StridedShard(dim, split_factor=tensor), Shard(dim)]
            held = DTensor.from_local(own.contiguous(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
            start, shape = own_block(held)
            block = tuple(slice(begin, begin + size) for begin, size in zip(start, shape, strict=True))
            assert torch.equal(whole[block], own)
            covered[block] += 1
        finally:
            dist.destroy_process_group()
    assert (covered == 2).all(), "each value once in each of the two groups"


def test_axes_that_cut_one_after_the_other() -> None:
    whole = torch.arange(44).view(11, 4)
    for rank in range(6):
        dist.init_process_group("fake", rank=rank, world_size=6, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2, 3))
            held = distribute_tensor(whole, mesh, [Shard(0), Shard(0)], src_data_rank=None)
            start, shape = own_block(held)
            assert torch.equal(whole[start[0] : start[0] + shape[0]], held.to_local())
        finally:
            dist.destroy_process_group()
