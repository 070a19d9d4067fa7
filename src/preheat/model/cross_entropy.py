"""Cross-entropy against a large vocabulary in chunks of rows, so that the N x V logits are never held whole.

At 16,384 tokens and 128,256 entries the fp32 logits alone would take 8.4 GB, and their gradient as much again. A label below 0 means that
nothing is predicted there: the position adds nothing to a sum, gets no gradient, and whatever its hidden state holds (NaN too) is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from preheat.model.autocast import autocast

LOGITS_AT_ONCE = {"cpu": 2**20}
"""Logits per chunk by device: on a CPU a chunk stays in the cache (4 MiB in fp32) ..."""
LOGITS_AT_ONCE_ELSEWHERE = 2**27
"""... on a GPU it fills the chip (512 MiB in fp32)."""
ROWS_AT_LEAST = 128
"""But each chunk reads the whole matrix and adds to the whole of its gradient, which fewer rows don't repay."""


class SummedLosses(NamedTuple):
    """Sums over the scored tokens in nats, each a scalar in fp32."""

    total: Tensor
    """The sum of the other two; it alone carries a gradient."""
    cross_entropy: Tensor
    z: Tensor
    """`z_loss` times the squared logarithms of the softmax's normalisers."""


class CrossEntropy(nn.Module):
    """`summed_cross_entropy` as a module without weights: tensor parallelism puts its own in this place."""

    def forward(self, hidden_BTD: Tensor, weight_VD: Tensor, labels_BT: Tensor, z_loss: float = 0.0) -> SummedLosses:
        return summed_cross_entropy(hidden_BTD.flatten(0, 1), weight_VD, labels_BT.flatten(), z_loss)


def summed_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, z_loss: float = 0.0) -> SummedLosses:
    """-log softmax(hidden @ weight.T)[label] + z_loss * (log of the softmax's normaliser)^2, summed over N tokens.

    The products run in the number format of autocast, the softmax in fp32. Where a gradient will be needed it is computed along with
    the loss, chunk by chunk: the same three products as without chunks and nothing recomputed. Rows that only pad a vocabulary are left
    out by passing the others: `weight_VD[:vocab_size]`.

    Args:
        labels_N: int64; below 0 where nothing is scored.
        z_loss: PaLM's coefficient (arXiv 2204.02311, section 5).
    """
    if torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad):
        return SummedLosses(*_SummedCrossEntropy.apply(hidden_ND, weight_VD, labels_N, z_loss))
    hidden_ND, weight_VD = autocast(hidden_ND), autocast(weight_VD)
    cross_entropy = z = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
    room_2CV = _room(len(labels_N), weight_VD)
    for rows in row_chunks(len(labels_N), weight_VD):
        chunk = _Chunk(hidden_ND[rows], weight_VD, labels_N[rows], room_2CV)
        cross_entropy = cross_entropy + chunk.cross_entropy_C1.sum()
        z = z + z_loss * chunk.log_normaliser_C1.square().sum()
    return SummedLosses(cross_entropy + z, cross_entropy, z)


@torch.no_grad()
def token_cross_entropies(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
    """-log softmax(hidden @ weight.T)[label] for each of N tokens in nats, fp32, without gradient; 0 where nothing is scored."""
    hidden_ND, weight_VD = autocast(hidden_ND), autocast(weight_VD)
    losses_N = torch.empty(len(labels_N), dtype=torch.float32, device=hidden_ND.device)
    room_2CV = _room(len(labels_N), weight_VD)
    for rows in row_chunks(len(labels_N), weight_VD):
        losses_N[rows] = _Chunk(hidden_ND[rows], weight_VD, labels_N[rows], room_2CV).cross_entropy_C1[:, 0]
    return losses_N


class _Chunk:
    """Logits of C rows after the softmax, in the second half of the room until the next chunk, and what both losses read of them."""

    def __init__(self, hidden_CD: Tensor, weight_VD: Tensor, labels_C: Tensor, room_2CV: Tensor) -> None:
        self.scored_C1 = labels_C[:, None] >= 0
        self.labels_C1 = labels_C[:, None].clamp(min=0)
        # Replaced and not multiplied by 0: what is not a number stays so under any factor.
        self.hidden_CD = torch.where(self.scored_C1, hidden_CD, 0)
        logits_CV, self.log_softmax_CV = room_2CV[:, : len(labels_C)]
        if weight_VD.dtype == logits_CV.dtype:
            torch.mm(self.hidden_CD, weight_VD.T, out=logits_CV)
        else:
            logits_CV.copy_(self.hidden_CD @ weight_VD.T)
        logit_C1 = logits_CV.gather(1, self.labels_C1)
        torch.log_softmax(logits_CV, dim=-1, out=self.log_softmax_CV)
        label_C1 = self.log_softmax_CV.gather(1, self.labels_C1)
        self.cross_entropy_C1 = torch.where(self.scored_C1, -label_C1, 0)
        self.log_normaliser_C1 = torch.where(self.scored_C1, logit_C1 - label_C1, 0)

    def logits_grad(self, z_loss: float) -> Tensor:
        """The gradient of both losses in the logits, C x V: softmax * (1 + 2 * z_loss * log normaliser) - 1 at the label.

        It takes the place of `log_softmax_CV`. Rows that are not scored hold anything finite: their hidden states are 0 here, and whoever
        multiplies with the matrix leaves them out.
        """
        grad_CV = self.log_softmax_CV.exp_()
        if z_loss:
            grad_CV *= 1 + 2 * z_loss * self.log_normaliser_C1
        return grad_CV.scatter_add_(1, self.labels_C1, torch.full_like(self.labels_C1, -1, dtype=torch.float32))


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, z_loss: float) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight = autocast(hidden_ND), autocast(weight_VD)
        cross_entropy = torch.zeros((), dtype=torch.float32, device=hidden.device)
        z = torch.zeros_like(cross_entropy)
        hidden_grad_ND, weight_grad_VD = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        room_2CV = _room(len(labels_N), weight)
        for rows in row_chunks(len(labels_N), weight):
            chunk = _Chunk(hidden[rows], weight, labels_N[rows], room_2CV)
            cross_entropy += chunk.cross_entropy_C1.sum()
            z += z_loss * chunk.log_normaliser_C1.square().sum()
            logits_grad_CV = chunk.logits_grad(z_loss).to(hidden.dtype)
            hidden_grad_ND[rows] = torch.where(chunk.scored_C1, logits_grad_CV @ weight, 0)
            if weight_grad_VD.dtype == hidden.dtype:
                weight_grad_VD.addmm_(logits_grad_CV.T, chunk.hidden_CD)
            else:
                weight_grad_VD += logits_grad_CV.T @ chunk.hidden_CD
        ctx.save_for_backward(hidden_grad_ND, weight_grad_VD)
        ctx.mark_non_differentiable(cross_entropy, z)
        return cross_entropy + z, cross_entropy, z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None]:
        # Not in place: a pipeline that computes gradients of inputs and of weights apart comes here twice.
        hidden_grad_ND, weight_grad_VD = ctx.saved_tensors
        return hidden_grad_ND * scale, weight_grad_VD * scale, None, None


def row_chunks(rows: int, weight_VD: Tensor) -> Iterator[slice]:
    """Slices of so many rows that their logits fit what `LOGITS_AT_ONCE` says."""
    size = _chunk_rows(weight_VD)
    for start in range(0, rows, size):
        yield slice(start, start + size)


def _chunk_rows(weight_VD: Tensor) -> int:
    return max(ROWS_AT_LEAST, LOGITS_AT_ONCE.get(weight_VD.device.type, LOGITS_AT_ONCE_ELSEWHERE) // len(weight_VD))


def _room(rows: int, weight_VD: Tensor) -> Tensor:
    """Memory for the logits of a chunk and for their softmax, used again by each: fresh memory costs a CPU more than what is done in it."""
    size = min(rows, _chunk_rows(weight_VD))
    return torch.empty(2, size, len(weight_VD), dtype=torch.float32, device=weight_VD.device)
