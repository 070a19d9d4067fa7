"""Which block of a DTensor a rank holds."""

from __future__ import annotations

from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard


def own_block(tensor: DTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where this rank's part of a tensor starts in the whole, and its shape.

    FSDP cuts what tensor parallelism left, though its axis comes first in the mesh; that is what a strided shard says. Cuts are those of
    `torch.chunk`, which leaves the last ranks with less or nothing. (torch's own `compute_local_shape_and_global_offset` is wrong for a
    strided shard of parts of different lengths, as 259 rows over two tensor ranks and three replicas.)
    """
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    assert place is not None
    start, shape = [0] * tensor.dim(), list(tensor.shape)
    for last in (False, True):
        for placement, coordinate, ranks in zip(tensor.placements, place, mesh.shape, strict=True):
            if isinstance(placement, Shard | _StridedShard) and isinstance(placement, _StridedShard) == last:
                each = -(-shape[placement.dim] // ranks)
                begin = min(coordinate * each, shape[placement.dim])
                start[placement.dim] += begin
                shape[placement.dim] = min(each, shape[placement.dim] - begin)
    assert tuple(shape) == tuple(tensor.to_local().shape)
    return tuple(start), tuple(shape)
