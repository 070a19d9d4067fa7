"""The embedding that the first and the last piece of a pipeline both hold, where the head or multi-token prediction reads it too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from preheat.arithmetic import meshes
from preheat.arithmetic.pipeline import V_SHAPED
from preheat.parallel.pipeline import Piece
from preheat.recipe import Parallel


class Twins:
    """Both copies get the sum of both gradients, and so stay equal to the last bit."""

    def __init__(self, pieces: Sequence[Piece], parallel: Parallel) -> None:
        self.copies: list[Tensor] = []
        """This rank's: one, none, or both."""
        self.seconds: list[Tensor] = []
        """Those of the last piece, that a norm over the whole model must not count again."""
        for transformer in (piece.transformer for piece in pieces):
            if transformer.embedding is not None:
                self.copies.append(transformer.embedding.weight)
                self.seconds += [transformer.embedding.weight] if transformer.chunk.last else []
        self.group: dist.ProcessGroup | None = None
        if parallel.schedule in V_SHAPED:  # both ends lie on one rank
            return
        dense, _ = meshes(parallel, dist.get_world_size())
        for line in dense.groups("pipeline"):
            group = dist.new_group([line[0], line[-1]])
            if dist.get_rank() in (line[0], line[-1]):
                self.group = group

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """Add the gradients of the copies, after the backward pass."""
        for copy in self.copies:
            if copy.grad is None:  # it is only read by prediction layers, whose weight is 0
                copy.grad = torch.zeros_like(copy)
        own = [copy.grad.to_local() for copy in self.copies if isinstance(copy.grad, DTensor)]
        if len(own) == 2:
            own[0] += own[1]
            own[1].copy_(own[0])
        elif self.group is not None:
            dist.all_reduce(own[0], group=self.group)
