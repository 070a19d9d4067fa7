"""Context parallelism: the tokens of a sequence lie on different ranks, and only attention needs those of the others.

A sequence is cut into twice as many parts as there are ranks, and a rank has one part from its front and its mirror image from its end,
so that all have the same work under a causal mask (zig-zag, as in Megatron-LM and Llama 3, arXiv 2407.21783).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_single_autograd, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from preheat.model import Transformer
from preheat.model.attention import Sight, attend
from preheat.model.mask import seen
from preheat.parallel.ring import ring_attention


def own_positions(length: int, ranks: int, rank: int) -> Tensor:
    """The positions of a sequence that a rank computes, front part first, length / ranks of them.

    Raises:
        ValueError: the sequence cannot be cut into twice as many equal parts as there are ranks.
    """
    if length % (2 * ranks):
        raise ValueError(f"{length} tokens a sequence are not divisible by 2 x context {ranks} = {2 * ranks}")
    parts = torch.arange(length).chunk(2 * ranks)
    return torch.cat((parts[rank], parts[2 * ranks - 1 - rank]))


def apply_context(transformer: Transformer, mesh: DeviceMesh, exchange: str) -> None:
    """Put the exchange of a recipe's `parallel.context_exchange` in the place of every block's inner attention."""
    for block in transformer.every_block:
        block.attention.inner = EXCHANGES[exchange](mesh.get_group())


class ContextAttention(nn.Module):
    """The ranks of a group, and the order in which their tokens stand."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)

    def order(self, sight: Sight) -> Tensor:
        """Where in the concatenation over ranks the tokens of a sequence stand, in the sequence's order, T."""
        device = sight.positions_T.device
        return torch.cat([own_positions(sight.length, self.ranks, rank) for rank in range(self.ranks)]).argsort().to(device)


class GatherAttention(ContextAttention):
    """Every rank gathers all keys and values and computes its own queries (Llama 3, arXiv 2407.21783, section 3.3.2); any mask will do."""

    def forward(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, sight: Sight, cache: None = None) -> Tensor:
        order = self.order(sight)
        k_BKSE, v_BKSE = (all_gather_single_autograd(x.contiguous(), 2, self.group)[:, :, order] for x in (k_BKTE, v_BKTE))
        whole = sight.seen
        if whole is None:
            own = sight.positions_T[:, None] >= torch.arange(sight.length, device=q_BHTE.device)
        else:
            own = whole[..., sight.positions_T, :]
        return attend(q_BHTE, k_BKSE, v_BKSE, sight.scale, seen=own, causal=False)


class UlyssesAttention(ContextAttention):
    """Every rank gets all tokens of its share of the heads and gives back its own of all heads (arXiv 2309.14509); any mask will do."""

    def forward(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, sight: Sight, cache: None = None) -> Tensor:
        order = self.order(sight)
        q, k, v = (self._heads_apart(x)[:, :, order] for x in (q_BHTE, k_BKTE, v_BKTE))
        mask = seen(sight.length, q.device, sight.documents_BT, sight.window)
        y = attend(q, k, v, sight.scale, seen=mask, causal=mask is None)
        return self._tokens_apart(y[:, :, order.argsort()])

    def _heads_apart(self, x_BHTE: Tensor) -> Tensor:
        """From a rank's tokens of all heads to all tokens, rank by rank, of its share of the heads."""
        arrived = self._exchange(torch.stack(x_BHTE.chunk(self.ranks, dim=1)))
        return torch.cat(arrived.unbind(0), dim=2)

    def _tokens_apart(self, x_BHTE: Tensor) -> Tensor:
        arrived = self._exchange(torch.stack(x_BHTE.chunk(self.ranks, dim=2)))
        return torch.cat(arrived.unbind(0), dim=1)

    def _exchange(self, parts: Tensor) -> Tensor:
        even = [1] * self.ranks
        return all_to_all_single_autograd(parts.contiguous(), even, even, self.group)


class RingAttention(ContextAttention):
    """Keys and values go round the ranks, and each computes its queries with what passes (arXiv 2310.01889); plain causal order only."""

    def forward(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, sight: Sight, cache: None = None) -> Tensor:
        assert sight.documents_BT is None, "ring attention masks no documents"
        assert sight.window is None, "ring attention has no window"
        return ring_attention(q_BHTE, k_BKTE, v_BKTE, self.group, sight.scale)


EXCHANGES: dict[str, type[ContextAttention]] = {"ring": RingAttention, "gather": GatherAttention, "ulysses": UlyssesAttention}
