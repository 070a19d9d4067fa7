"""Cross-entropy over a vocabulary that is split over tensor-parallel ranks: none holds a token's logits whole (arXiv 1909.08053)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from preheat.model.autocast import autocast
from preheat.model.cross_entropy import SummedLosses, row_chunks


class VocabularyCrossEntropy(nn.Module):
    """Takes the place of `model.cross_entropy.CrossEntropy` where the output matrix is sharded over its rows."""

    def __init__(self, mesh: DeviceMesh, stream: Placement) -> None:
        """`stream`: how the tokens of the hidden states lie over the ranks of the mesh."""
        super().__init__()
        self.mesh, self.stream = mesh, stream

    def forward(self, hidden_BTD: Tensor, weight_VD: DTensor, labels_BT: Tensor, z_loss: float = 0.0) -> SummedLosses:
        """As `summed_cross_entropy`, for a rank's tokens and rows and the labels of all tokens; every rank returns the same sums."""
        hidden_ND = gather_tokens(hidden_BTD, self.mesh, self.stream).flatten(0, 1)
        # DTensor gives every rank but the last the same number of rows, as torch.chunk does.
        first_row = self.mesh.get_local_rank() * -(-weight_VD.shape[0] // self.mesh.size())
        sums = _Summed.apply(hidden_ND, weight_VD.to_local(), labels_BT.flatten(), z_loss, first_row, self.mesh.get_group())
        return SummedLosses(*sums)


def gather_tokens(x_BTD: Tensor, mesh: DeviceMesh, stream: Placement) -> Tensor:
    """All tokens of a stream that lies over the ranks as `stream` says; what each rank then sends back is a part of their gradient."""
    whole = DTensor.from_local(x_BTD, mesh, [stream], run_check=False).redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Partial()])


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, z_loss: float, first_row: int, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight = autocast(hidden_ND), autocast(weight_VD)
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        cross_entropy = torch.zeros((), dtype=torch.float32, device=hidden.device)
        z = torch.zeros_like(cross_entropy)
        hidden_grad_ND, weight_grad_VD = torch.zeros_like(hidden_ND), torch.zeros_like(weight_VD)
        for rows in row_chunks(len(labels_N), weight):
            scored_C1 = labels_N[rows, None] >= 0
            hidden_CD = torch.where(scored_C1, hidden[rows], 0)
            logits_CV = nn.functional.linear(hidden_CD, weight).float()
            chunk = _Chunk(logits_CV, labels_N[rows, None] - first_row, group)
            normaliser_C1 = torch.where(scored_C1, chunk.log_normaliser_C1, 0)
            cross_entropy += torch.where(scored_C1, chunk.log_normaliser_C1 - chunk.label_C1, 0).sum()
            z += z_loss * normaliser_C1.square().sum()
            if wanted:
                grad_CV = chunk.softmax_CV * ((1 + 2 * z_loss * normaliser_C1) * scored_C1)
                grad_CV.scatter_add_(1, chunk.index_C1, -(chunk.here_C1 & scored_C1).float())
                grad_CV = grad_CV.to(hidden.dtype)
                hidden_grad_ND[rows] = grad_CV @ weight
                weight_grad_VD += grad_CV.T @ hidden_CD
        ctx.save_for_backward(hidden_grad_ND, weight_grad_VD)
        ctx.mark_non_differentiable(cross_entropy, z)
        return cross_entropy + z, cross_entropy, z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden_grad_ND, weight_grad_VD = ctx.saved_tensors
        return hidden_grad_ND * scale, weight_grad_VD * scale, None, None, None, None


class _Chunk:
    """The softmax over all ranks' logits of some tokens, of which this rank has V columns."""

    def __init__(self, logits_CV: Tensor, index_C1: Tensor, group: dist.ProcessGroup) -> None:
        """`index_C1`: the label counted from this rank's first column."""
        self.here_C1 = (index_C1 >= 0) & (index_C1 < logits_CV.shape[1])
        self.index_C1 = index_C1.clamp(0, logits_CV.shape[1] - 1)
        largest_C1 = logits_CV.amax(dim=1, keepdim=True)
        dist.all_reduce(largest_C1, dist.ReduceOp.MAX, group=group)
        logits_CV = logits_CV - largest_C1
        label_C1 = torch.where(self.here_C1, logits_CV.gather(1, self.index_C1), 0)
        exponentials_CV = logits_CV.exp_()
        sums_C2 = torch.cat((exponentials_CV.sum(dim=1, keepdim=True), label_C1), dim=1)
        dist.all_reduce(sums_C2, group=group)
        self.softmax_CV = exponentials_CV.div_(sums_C2[:, :1])
        self.log_normaliser_C1 = sums_C2[:, :1].log() + largest_C1
        self.label_C1 = sums_C2[:, 1:] + largest_C1
