"""Pipeline parallelism: the pieces of a model on different ranks, and the order in which micro-batches pass through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    _PipelineSchedule,
)

from preheat.arithmetic import pipeline_split
from preheat.model import Losses, Transformer
from preheat.model.transformer import Stream
from preheat.recipe import Model, Parallel

SCHEDULES: dict[str, type[_PipelineSchedule]] = {
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zero-bubble-v": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
"""The schedules of a recipe that this engine runs, by name."""


@dataclass(frozen=True)
class Batch:
    """Whole sequences, int64."""

    tokens_BT: Tensor
    labels_BT: Tensor
    documents_BT: Tensor | None
    """See `preheat.model.documents`; None where documents don't matter."""

    def rows(self, rows: slice) -> Batch:
        return Batch(self.tokens_BT[rows], self.labels_BT[rows], self.documents_BT[rows] if self.documents_BT is not None else None)

    def keywords(self) -> dict[str, Any]:
        """As arguments of `Piece`."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


class Piece(nn.Module):
    """A piece of a transformer as a stage of a pipeline: plain tensors in and out."""

    def __init__(self, transformer: Transformer, compute: torch.dtype) -> None:
        super().__init__()
        self.transformer = transformer
        self.compute = compute
        self.settings: dict[str, Any] = {}
        """Further arguments of the forward pass, the same for all micro-batches of a step."""
        self.sums: Tensor | None = None
        """What the last piece adds up of the losses of its micro-batches, in the order of `Losses`."""

    def forward(self, *before: Tensor, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> Any:
        """From what the piece before returned to what the next one takes; of the last piece the total loss, summed."""
        chunk = self.transformer.chunk
        with torch.autocast(tokens_BT.device.type, self.compute, enabled=self.compute != torch.float32):
            out = self.transformer(
                tokens_BT,
                labels_BT if chunk.last else None,
                before=None if chunk.first else Stream(before[0], before[1] if len(before) > 1 else None),
                documents_BT=documents_BT,
                **self.settings,
            )
        if chunk.last:
            sums = torch.stack([part.detach() for part in out])
            self.sums = sums if self.sums is None else self.sums + sums
            return out.total
        # Embeddings from tensor ranks are a view of their DTensor; FSDP warns of a view, that nothing may be written into it.
        x_BTD = out.x_BTD if chunk.layers else out.x_BTD.clone()
        if self.transformer.config.experts is None:
            return x_BTD
        # A piece without routers passes on a zero that hangs on its output, for the gradient of every output is sent back.
        penalty = out.penalty if out.penalty is not None else 0.0 * x_BTD.flatten()[0].float()
        return x_BTD, penalty


class Pipeline:
    """The pieces of one pipeline rank, run by a schedule of `torch.distributed.pipelining`."""

    def __init__(self, pieces: list[Piece], model: Model, parallel: Parallel, mesh: DeviceMesh, device: torch.device) -> None:
        self.pieces, self.model, self.parallel, self.mesh, self.device = pieces, model, parallel, mesh, device
        self.rank = mesh.get_local_rank()
        self.divisor = 1.0
        self._made: dict[tuple[int, int, int], _PipelineSchedule] = {}
        """Of the newest shape of a step: each holds buffers, and a ramp does not come back."""

    def step(self, batch: Batch, micro_size: int, divisor: float) -> Tensor:
        """Forward and backward passes of all micro-batches; the losses of `Losses`, summed, on all pipeline ranks.

        Args:
            divisor: what the summed loss is divided by before the backward pass.
        """
        schedule = self._schedule(micro_size, len(batch.tokens_BT) // micro_size, batch.tokens_BT.shape[1])
        self.divisor = divisor
        arguments = (batch.tokens_BT,) if any(piece.transformer.chunk.first for piece in self.pieces) else ()
        target = batch.labels_BT if any(piece.transformer.chunk.last for piece in self.pieces) else None
        schedule.step(*arguments, target=target, return_outputs=False, **batch.keywords())
        return self._sums()

    def score(self, batch: Batch) -> Tensor:
        """Forward passes alone, of the whole batch piece after piece; the losses as `step` returns them."""
        group, stages = self.mesh.get_group(), len(self.pieces) * self.parallel.pipeline
        ranks = {chunk.index: rank for rank, chunks in enumerate(pipeline_split(self.model.layers, self.parallel)) for chunk in chunks}
        by_index = {piece.transformer.chunk.index: piece for piece in self.pieces}
        stream: list[Tensor] = []
        for index in range(stages):
            if index not in by_index:
                continue
            if index and ranks[index - 1] != self.rank:
                samples, length = batch.tokens_BT.shape
                stream = [x.detach() for x in self._between(samples, length, self.device)]
                for x in stream:
                    dist.recv(x, group=group, group_src=ranks[index - 1])
            out = by_index[index](*(stream if index else (batch.tokens_BT,)), **batch.keywords())
            stream = list(out) if isinstance(out, tuple) else [out]
            if index + 1 < stages and ranks[index + 1] != self.rank:
                for x in stream:
                    dist.send(x.contiguous(), group=group, group_dst=ranks[index + 1])
        return self._sums()

    def _sums(self) -> Tensor:
        sums = torch.zeros(len(Losses._fields), device=self.device)
        for piece in self.pieces:
            if piece.sums is not None:
                sums, piece.sums = piece.sums, None
        dist.all_reduce(sums, group=self.mesh.get_group())
        return sums

    def _between(self, samples: int, length: int, device: torch.device) -> list[Tensor]:
        """What passes from piece to piece, by its shapes."""
        parallel = self.parallel
        own = length // (parallel.context * (parallel.tensor if parallel.sequence else 1))
        between = [torch.empty((samples, own, self.model.hidden), device=device, requires_grad=True)]
        if self.model.experts is not None:
            between.append(torch.empty((), device=device, requires_grad=True))
        return between

    def _schedule(self, micro_size: int, parts: int, length: int) -> _PipelineSchedule:
        key = (micro_size, parts, length)
        if key not in self._made:
            kind = SCHEDULES[self.parallel.schedule]
            if kind is Schedule1F1B and parts < self.parallel.pipeline:
                kind = ScheduleGPipe  # what 1F1B comes to when all forward passes fit in; PyTorch's refuses
            stages = [self._stage(piece, micro_size, length) for piece in self.pieces]
            single = issubclass(kind, PipelineScheduleSingle)
            make: Callable[..., _PipelineSchedule] = kind
            self._made.clear()
            self._made[key] = make(
                stages[0] if single else stages,
                n_microbatches=parts,
                loss_fn=lambda total, _: total / self.divisor,
                scale_grads=False,
            )
        return self._made[key]

    def _stage(self, piece: Piece, micro_size: int, length: int) -> PipelineStage:
        """With the shapes of what comes in and goes out, so that no trial run is needed."""
        chunk, meta = piece.transformer.chunk, torch.device("meta")
        between = tuple(self._between(micro_size, length, meta))
        tokens = torch.empty((micro_size, length), dtype=torch.int64, device=meta)
        return PipelineStage(
            piece,
            chunk.index,
            len(self.pieces) * self.parallel.pipeline,
            self.device,
            input_args=(tokens,) if chunk.first else between,
            output_args=(torch.empty((), device=meta, requires_grad=True),) if chunk.last else between,
            group=self.mesh.get_group(),
            dw_builder=(lambda: _nothing) if chunk.last and self._embeds_in_series() else None,
        )

    def _embeds_in_series(self) -> bool:
        """Whether one prediction reads the last piece's embedding on the way to where another, or the head, reads it again.

        PyTorch (2.13), which computes the gradients of weights apart from those of inputs, then passes the way between twice. Such a piece
        computes both at once, when it is the inputs' turn.
        """
        depths = self.model.mtp.layers if self.model.mtp is not None else 0
        return depths > 1 or (depths == 1 and self.model.tied_embeddings)


def _nothing() -> None:
    """What is left to do for weights whose gradients were computed with those of the inputs."""
