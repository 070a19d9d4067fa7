"""A model laid out over the ranks of a run: what every layout has to do alike, and the only face that training sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from preheat.arithmetic import Rope, pipeline_split
from preheat.model import Balance, Losses, Transformer, documents, finish_step, init_weights, routers
from preheat.model.experts import Experts
from preheat.parallel.bare import fill_own
from preheat.parallel.context import apply_context, own_positions
from preheat.parallel.experts import SummedCounts, apply_experts
from preheat.parallel.meshes import Meshes, build_meshes
from preheat.parallel.norm import clip_gradients
from preheat.parallel.pipeline import Batch, Piece, Pipeline
from preheat.parallel.recompute import apply_recompute
from preheat.parallel.sharding import apply_sharding, sharded
from preheat.parallel.tensor import apply_tensor
from preheat.parallel.twins import Twins
from preheat.recipe import Model, Parallel


@dataclass(frozen=True)
class Objective:
    """What a step minimises, and how its sequences are read."""

    tokens: int
    """Of the whole batch over all replicas: what summed losses are divided by."""
    rope: Rope | None = None
    eod: int | None = None
    """The end-of-document token where documents are masked."""
    prediction_weight: float = 0.0
    z_loss: float = 0.0


class Engine:
    """The pieces of a model that this rank holds.

    Every layout gives the loss, the gradients and the weights of one process: gradients are summed over whatever ranks saw different
    tokens, and never averaged, for each is already divided by the tokens of the whole batch.
    """

    def __init__(self, model: Model, parallel: Parallel, seed: int, device: torch.device, compute: torch.dtype) -> None:
        """Build on the meta device, lay out, and fill with initial weights that don't depend on the layout.

        Without a process group the model is one plain piece.
        """
        self.model, self.parallel, self.device = model, parallel, device
        self.meshes: Meshes | None = build_meshes(parallel, device.type) if dist.is_initialized() else None
        rank = self.meshes.dense.get_local_rank("pipeline") if self.meshes else 0
        with torch.device("meta"):
            self.pieces = [Piece(Transformer(model, chunk), compute) for chunk in pipeline_split(model.layers, parallel)[rank]]
        for piece in self.pieces:
            _lay_out(piece, parallel, self.meshes)
            piece.to_empty(device=device)
            init_weights(piece.transformer, model, seed, fill_own)
        self.pipeline: Pipeline | None = None
        self.twins: Twins | None = None
        if self.meshes is not None and parallel.pipeline > 1:
            self.pipeline = Pipeline(self.pieces, model, parallel, self.meshes.dense["pipeline"], device)
            if model.tied_embeddings or model.mtp is not None:
                self.twins = Twins(self.pieces, parallel)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters under their names in the whole model; of two that are the same one in the model, both."""
        for piece in self.pieces:
            yield from piece.transformer.named_parameters()

    def own_samples(self, batch_size: int) -> slice:
        """The samples of a batch that this rank's replica reads.

        Raises:
            ValueError: the batch does not divide among the replicas.
        """
        if self.meshes is None:
            return slice(0, batch_size)
        replicas, own = self.meshes.data_ranks, self.meshes.data_rank
        if batch_size % replicas:
            raise ValueError(f"a batch of {batch_size} samples is not divisible by {replicas} replicas")
        each = batch_size // replicas
        return slice(own * each, (own + 1) * each)

    def accumulate(self, inputs_BT: Tensor, labels_BT: Tensor, micro_size: int, objective: Objective) -> Losses:
        """Add the gradients of this replica's samples, micro-batch by micro-batch; returns the summed losses of the whole batch."""
        for piece in self.pieces:
            piece.train()
        losses = self._run(inputs_BT, labels_BT, micro_size, objective, train=True)
        if self.twins is not None:
            self.twins.sum_gradients()
        return losses

    @torch.no_grad()
    def score(self, inputs_BT: Tensor, labels_BT: Tensor, micro_size: int, rope: Rope | None = None) -> float:
        """The summed cross-entropy of samples that every rank is given; each replica scores its share."""
        for piece in self.pieces:
            piece.eval()
        replicas = self.meshes.data_ranks if self.meshes is not None else 1
        missing = -len(inputs_BT) % (replicas * micro_size)
        inputs_BT = nn.functional.pad(inputs_BT, (0, 0, 0, missing))
        labels_BT = nn.functional.pad(labels_BT, (0, 0, 0, missing), value=-1)
        own = self.own_samples(len(inputs_BT))
        losses = self._run(inputs_BT[own], labels_BT[own], micro_size, Objective(1, rope), train=False)
        return losses.cross_entropy.item()

    def clip(self, most: float) -> float:
        """Scale the gradients so that their norm over all ranks is at most `most`; returns the norm before."""
        group = self.meshes.dense.get_group("pipeline") if self.meshes is not None and self.pipeline is not None else None
        twins = self.twins.seconds if self.twins is not None else []
        return clip_gradients([parameter for _, parameter in self.named_parameters()], most, group, twins).item()

    @torch.no_grad()
    def finish_step(self, bias_rate: float) -> list[Balance]:
        """Let the routers take the step's counts of all tokens into account, see `preheat.model.finish_step`."""
        records = []
        for piece in self.pieces:
            if self.meshes is not None:
                for router in routers(piece.transformer).values():
                    for counted in (router.choices, router.dropped, router.shares):
                        self._sum_over_tokens(counted)
            record = finish_step(piece.transformer, bias_rate)
            records += [record] if record is not None else []
        return records

    def _run(self, inputs_BT: Tensor, labels_BT: Tensor, micro_size: int, objective: Objective, train: bool) -> Losses:
        settings: dict[str, object] = {"rope": objective.rope, "z_loss": objective.z_loss, "prediction_weight": objective.prediction_weight}
        if self.parallel.context > 1 and self.meshes is not None:
            rank = self.meshes.dense.get_local_rank("context")
            settings["part_T"] = own_positions(inputs_BT.shape[1], self.parallel.context, rank).to(self.device)
        for piece in self.pieces:
            piece.settings = settings
        batch = Batch(inputs_BT, labels_BT, documents(inputs_BT, objective.eod) if objective.eod is not None else None)
        if self.pipeline is None:
            sums = self._one_piece(batch, micro_size, objective.tokens, train)
        else:
            sums = self.pipeline.step(batch, micro_size, objective.tokens) if train else self.pipeline.score(batch)
        return self._over_all_tokens(sums, objective)

    def _one_piece(self, batch: Batch, micro_size: int, tokens: int, train: bool) -> Tensor:
        (piece,) = self.pieces
        samples = len(batch.tokens_BT)
        for first in range(0, samples, micro_size):
            last = first + micro_size >= samples
            for module in sharded(piece):
                # Gradients travel once, with those of the last micro-batch.
                module.set_requires_gradient_sync(last, recurse=False)
            total = piece(**batch.rows(slice(first, first + micro_size)).keywords())
            if train:
                (total / tokens).sum().backward()
        sums, piece.sums = piece.sums, None
        assert sums is not None, "a batch has samples"
        return sums

    def _over_all_tokens(self, sums: Tensor, objective: Objective) -> Losses:
        losses = Losses(*sums)
        if self.meshes is None:
            return losses
        for axis in ("replicate", "shard", "context"):
            dist.all_reduce(sums, group=self.meshes.dense.get_group(axis))
        balance = sums[Losses._fields.index("balance")].clone()
        if self.parallel.sequence:
            # Tensor ranks have the same loss of all tokens, but each routed tokens of its own.
            dist.all_reduce(balance, group=self.meshes.dense.get_group("tensor"))
        losses = Losses(*sums)
        total = losses.cross_entropy + losses.z + balance + objective.prediction_weight * losses.prediction
        return losses._replace(balance=balance, total=total)

    def _sum_over_tokens(self, counted: Tensor) -> None:
        assert self.meshes is not None
        for axis in ("replicate", "shard", "context", *(("tensor",) if self.parallel.sequence else ())):
            dist.all_reduce(counted, group=self.meshes.dense.get_group(axis))


def _lay_out(piece: Piece, parallel: Parallel, meshes: Meshes | None) -> None:
    """Split a piece on the meta device, in the order in which the parts build on each other."""
    transformer = piece.transformer
    if meshes is not None and parallel.tensor > 1:
        apply_tensor(transformer, meshes.dense["tensor"], parallel.sequence)
    if meshes is not None and parallel.expert * parallel.expert_tensor > 1:
        for module in transformer.modules():
            if isinstance(module, Experts):
                apply_experts(module, meshes.expert["expert", "expert_tensor"])
    if meshes is not None and parallel.context > 1:
        apply_context(transformer, meshes.dense["context"], parallel.context_exchange)
    if meshes is not None:
        parts = [axis for axis, split in (("context", parallel.context > 1), ("tensor", parallel.sequence)) if split]
        for router in routers(transformer).values():
            router.sequence_counts = SummedCounts([meshes.dense.get_group(axis) for axis in parts])
    apply_recompute(transformer, parallel.recompute)
    if meshes is not None:
        apply_sharding(piece, meshes, parallel, piece.compute)
