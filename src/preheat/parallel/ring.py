"""Ring attention with its backward pass (arXiv 2310.01889), for sequences that lie zig-zag over the ranks of a group.

In round i a rank has the keys and values of rank (rank - i). Of its own front and back half and theirs it needs: in round 0 the causal
product; from a rank before it, all queries with the other's front half; from one after it, its back half with all of the other's. Each
product is of the same size. Parts of a row are joined by their log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from preheat.errors import Problem, RunFailed


def ring_attention(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, group: dist.ProcessGroup, scale: float) -> Tensor:
    """Causal attention of this rank's queries to the keys and values of all ranks, B x H x T x width of v."""
    # The kernels take one width for queries, keys and values: a narrower value is filled with zeros, which stay zero.
    width = v_BKTE.shape[-1]
    v_BKTE = torch.nn.functional.pad(v_BKTE, (0, q_BHTE.shape[-1] - width))
    out: Tensor = _Ring.apply(q_BHTE.contiguous(), k_BKTE.contiguous(), v_BKTE.contiguous(), group, scale)
    return out[..., :width]


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, scale: float) -> Tensor:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        out = torch.zeros_like(q, dtype=torch.float32)
        log_sums = torch.full(q.shape[:3], -torch.inf, device=q.device)
        passing = (k, v)
        for round_ in range(ranks):
            following, works = _send_on(passing, group) if round_ < ranks - 1 else (passing, [])
            rows, columns, causal = _needed(round_, rank, q.shape[2])
            part, part_log_sums = _forward(q[:, :, rows], passing[0][:, :, columns], passing[1][:, :, columns], causal, scale)
            together = torch.logaddexp(log_sums[:, :, rows], part_log_sums)
            old_share, new_share = (log_sums[:, :, rows] - together).exp(), (part_log_sums - together).exp()
            out[:, :, rows] = out[:, :, rows] * old_share[..., None] + part.float() * new_share[..., None]
            log_sums[:, :, rows] = together
            _wait(works)
            passing = following
        ctx.save_for_backward(q, k, v, out.to(q.dtype), log_sums)
        ctx.group, ctx.scale = group, scale
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, log_sums = ctx.saved_tensors
        ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        out_grad = out_grad.contiguous()
        q_grad, k_grad, v_grad = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        passing, grads = (k, v), (k_grad, v_grad)
        for round_ in range(ranks):
            following, works = _send_on(passing, ctx.group) if round_ < ranks - 1 else (passing, [])
            rows, columns, causal = _needed(round_, rank, q.shape[2])
            grad_rows, q_rows, out_rows, log_sum_rows = (x[:, :, rows].contiguous() for x in (out_grad, q, out, log_sums))
            k_columns, v_columns = (x[:, :, columns].contiguous() for x in passing)
            parts = _backward(grad_rows, q_rows, k_columns, v_columns, out_rows, log_sum_rows, causal, ctx.scale)
            q_grad[:, :, rows] += parts[0]
            grads[0][:, :, columns] += parts[1]
            grads[1][:, :, columns] += parts[2]
            _wait(works)
            passing = following
            # The gradients of keys and values travel with them, and are at home after as many rounds as there are ranks.
            grads, works = _send_on(grads, ctx.group)
            _wait(works)
        return q_grad.to(q.dtype), grads[0].to(k.dtype), grads[1].to(v.dtype), None, None


def _needed(round_: int, rank: int, length: int) -> tuple[slice, slice, bool]:
    """The rows of queries and columns of keys that are multiplied in a round, and whether causally."""
    front, back, every = slice(0, length // 2), slice(length // 2, length), slice(0, length)
    if round_ == 0:
        return every, every, True
    return (every, front, False) if round_ <= rank else (back, every, False)


def _send_on(tensors: tuple[Tensor, Tensor], group: dist.ProcessGroup) -> tuple[tuple[Tensor, Tensor], list[dist.Work]]:
    """Send to the next rank, receive from the one before."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if ranks == 1:
        return tensors, []
    arriving = (torch.empty_like(tensors[0]), torch.empty_like(tensors[1]))
    sends = [dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % ranks) for x in tensors]
    receives = [dist.P2POp(dist.irecv, x, group=group, group_peer=(rank - 1) % ranks) for x in arriving]
    return arriving, dist.batch_isend_irecv(sends + receives)


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of each row's scores; key heads are repeated for their groups of query heads."""
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    _refuse_other_device(q)
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, log_sums


def _backward(
    out_grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sums: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    heads = k.shape[1]
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(out_grad, q, k, v, out, log_sums, 0.0, causal, scale=scale)
    q_grad, k_grad, v_grad = (grad.float() for grad in grads)
    return q_grad, _summed(k_grad, heads), _summed(v_grad, heads)


def _repeated(x_BKTE: Tensor, heads: int) -> Tensor:
    return x_BKTE.repeat_interleave(heads // x_BKTE.shape[1], dim=1)


def _summed(x_BHTE: Tensor, heads: int) -> Tensor:
    return x_BHTE.unflatten(1, (heads, -1)).sum(2)


def _refuse_other_device(q: Tensor) -> None:
    if q.device.type != "cpu":
        got = f"ring attention on {q.device.type}"
        raise RunFailed(
            Problem("parallel.ring-device", got, "only the CPU's kernel is proven", "Take parallel.context_exchange = 'gather'")
        )
