"""Expert parallelism: experts lie on different ranks, and tokens travel to them and back (GShard, arXiv 2006.16668)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from preheat.model.experts import Experts
from preheat.parallel.bare import compute_bare, distribute


def apply_experts(layer: Experts, mesh: DeviceMesh, group: dist.ProcessGroup) -> None:
    """Split a layer's experts over the mesh (expert, expert_tensor), in place: whole experts over the first axis, the inner width of each
    over the second. `group` is of all ranks of the mesh.
    """
    experts = layer.experts
    # Weights are X x O x I and biases X x O; the inner width is O of the first matrices and I of the last one.
    for linear, inner_dim in ((experts.gate, 1), (experts.up, 1), (experts.out, 2)):
        if linear is not None:
            assert linear.bias is None or mesh.size(1) == 1, "the output bias of an expert that is split would be added by each part"
            distribute(linear, mesh, partial(_placements, inner_dim))
            compute_bare(linear)
    experts.forward = Travel(experts.forward, mesh, group)  # type: ignore[method-assign]


def _placements(inner_dim: int, name: str) -> list[Placement]:
    """Of a stack's weights or biases; the output bias has no inner dim, and is whole."""
    return [Shard(0), Replicate() if name == "bias" and inner_dim == 2 else Shard(inner_dim)]


class Travel:
    """The experts of all ranks as one function of rows: rows go to the ranks that hold their expert, and come back as that expert's output.

    Where an expert is split over several ranks, each of them gets its rows and returns a part of the sum.
    """

    def __init__(self, experts: Callable[[Tensor, Tensor], Tensor], mesh: DeviceMesh, group: dist.ProcessGroup) -> None:
        """`experts` is this rank's own: rows sorted by expert and the counts of each -> their outputs."""
        self.experts, self.group = experts, group
        self.ranks, self.copies = mesh.size(0), mesh.size(1)

    def __call__(self, rows_MD: Tensor, counts_X: Tensor) -> Tensor:
        """The output of each row's expert, M x D; the rows are sorted by expert, of which there are as many as `counts_X` has entries."""
        # R ranks (expert by expert and part by part), Y experts on each.
        counts_RY = counts_X.view(self.ranks, -1).repeat_interleave(self.copies, dim=0)
        arriving_RY = torch.empty_like(counts_RY)
        dist.all_to_all_single(arriving_RY, counts_RY, group=self.group)
        leaving, arriving = counts_RY.sum(1).tolist(), arriving_RY.sum(1).tolist()
        parts = rows_MD.split(leaving[:: self.copies])
        there_SD = all_to_all_single_autograd(_joined(parts, self.copies), arriving, leaving, self.group)
        # They arrive by sender and then by expert; the experts take them by expert.
        expert_S = torch.arange(counts_RY.shape[1], device=rows_MD.device).repeat(len(arriving))
        order_S = expert_S.repeat_interleave(arriving_RY.flatten()).argsort(stable=True)
        out_SD = self.experts(there_SD[order_S], arriving_RY.sum(0))
        back_SD = torch.empty_like(out_SD).index_copy(0, order_S, out_SD)
        back_MD = all_to_all_single_autograd(back_SD, leaving, arriving, self.group)
        if self.copies == 1:
            return back_MD
        pieces = back_MD.split(leaving)
        return torch.cat([torch.stack(pieces[i : i + self.copies]).sum(0) for i in range(0, len(pieces), self.copies)])


def _joined(parts: tuple[Tensor, ...], copies: int) -> Tensor:
    return torch.cat([part for part in parts for _ in range(copies)]) if copies > 1 else torch.cat(parts)


class SummedCounts(nn.Module):
    """Adds up what ranks that hold parts of the same sequences counted in them."""

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        super().__init__()
        self.groups = groups

    @torch.no_grad()
    def forward(self, counts_BX: Tensor) -> Tensor:
        for group in self.groups:
            dist.all_reduce(counts_BX, group=group)
        return counts_BX
