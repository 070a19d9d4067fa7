"""Cross-entropy against a large vocabulary in chunks of rows, so that the N x V logits are never held whole.

At 16,384 tokens and 128,256 entries the fp32 logits alone would take 8.4 GB, and their gradient as much again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LOGITS_AT_ONCE = {"cpu": 2**20}
"""Logits per chunk by device: on a CPU a chunk stays in the cache (4 MiB in fp32) ..."""
LOGITS_AT_ONCE_ELSEWHERE = 2**27
"""... on a GPU it fills the chip (512 MiB in fp32)."""


def summed_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
    """The sum of -log softmax(hidden @ weight.T)[label] over N tokens: a scalar in nats, fp32.

    The products run in the number format of autocast, the softmax in fp32. Where a gradient will be needed it is computed along with
    the loss, chunk by chunk: the same three products as without chunks and nothing recomputed.
    """
    if torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad):
        loss: Tensor = _SummedCrossEntropy.apply(hidden_ND, weight_VD, labels_N)
        return loss
    return token_cross_entropies(hidden_ND, weight_VD, labels_N).sum()


@torch.no_grad()
def token_cross_entropies(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
    """-log softmax(hidden @ weight.T)[label] for each of N tokens in nats, fp32, without gradient."""
    hidden_ND, weight_VD = _autocast(hidden_ND), _autocast(weight_VD)
    losses_N = torch.empty(len(labels_N), dtype=torch.float32, device=hidden_ND.device)
    for rows in _chunks(len(labels_N), weight_VD):
        losses_N[rows] = nn.functional.cross_entropy(
            nn.functional.linear(hidden_ND[rows], weight_VD).float(), labels_N[rows], reduction="none"
        )
    return losses_N


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
        hidden, weight = _autocast(hidden_ND), _autocast(weight_VD)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad_ND, weight_grad_VD = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        for rows in _chunks(len(labels_N), weight):
            log_softmax_CV = nn.functional.linear(hidden[rows], weight).float().log_softmax(dim=-1)
            labels_C1 = labels_N[rows, None]
            loss -= log_softmax_CV.gather(1, labels_C1).sum()
            # The gradient of the loss in the logits is softmax - 1 at the label.
            logits_grad_CV = log_softmax_CV.exp_()
            logits_grad_CV.scatter_add_(1, labels_C1, torch.full_like(labels_C1, -1, dtype=torch.float32))
            logits_grad_CV = logits_grad_CV.to(hidden.dtype)
            hidden_grad_ND[rows] = logits_grad_CV @ weight
            if weight_grad_VD.dtype == hidden.dtype:
                weight_grad_VD.addmm_(logits_grad_CV.T, hidden[rows])
            else:
                weight_grad_VD += logits_grad_CV.T @ hidden[rows]
        ctx.save_for_backward(hidden_grad_ND, weight_grad_VD)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_grad_ND, weight_grad_VD = ctx.saved_tensors
        return hidden_grad_ND * scale, weight_grad_VD * scale, None


def _chunks(rows: int, weight_VD: Tensor) -> Iterator[slice]:
    size = max(1, LOGITS_AT_ONCE.get(weight_VD.device.type, LOGITS_AT_ONCE_ELSEWHERE) // len(weight_VD))
    for start in range(0, rows, size):
        yield slice(start, start + size)


def _autocast(x: Tensor) -> Tensor:
    """The tensor in the number format that autocast gives to products on its device, once instead of once a chunk."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x
