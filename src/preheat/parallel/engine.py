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
from preheat.model.router import Router
from preheat.parallel.bare import fill_own
from preheat.parallel.compile import apply_compile
from preheat.parallel.context import apply_context, own_positions
from preheat.parallel.experts import SummedCounts, apply_experts
from preheat.parallel.fp8 import apply_fp8
from preheat.parallel.meshes import Meshes, build_meshes
from preheat.parallel.norm import clip_gradients
from preheat.parallel.pipeline import Batch, Piece, Pipeline
from preheat.parallel.recompute import apply_recompute
from preheat.parallel.sharding import apply_sharding, expect_micro_batch, gather_predictions, give_back
from preheat.parallel.tensor import apply_tensor
from preheat.parallel.twins import Twins
from preheat.recipe import Model, Parallel, Precision

_AUTO = Precision()


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

    def __init__(
        self, model: Model, parallel: Parallel, seed: int, device: torch.device, compute: torch.dtype, precision: Precision = _AUTO
    ) -> None:
        """Build on the meta device, lay out, and fill with initial weights that don't depend on the layout.

        Without a process group the model is one plain piece. On the meta device nothing is filled: that shows what a layout leaves of a
        model on this rank, and takes no memory.
        """
        self.config, self.parallel, self.precision, self.device = model, parallel, precision, device
        meshed = "cpu" if device.type == "meta" else device.type
        self.meshes: Meshes | None = build_meshes(parallel, meshed) if dist.is_initialized() else None
        rank = self.meshes.dense.get_local_rank("pipeline") if self.meshes else 0
        with torch.device("meta"):
            self.pieces = [Piece(Transformer(model, chunk), compute) for chunk in pipeline_split(model.layers, parallel)[rank]]
        self._lay_out()
        for piece in self.pieces if device.type != "meta" else ():
            piece.to_empty(device=device)
            init_weights(piece.transformer, model, seed, fill_own)
            gather_predictions(piece)
        self.pipeline: Pipeline | None = None
        self.twins: Twins | None = None
        if self.meshes is not None and parallel.pipeline > 1:
            self.pipeline = Pipeline(self.pieces, model, parallel, self.meshes.dense["pipeline"], device)
            if model.tied_embeddings or model.mtp is not None:
                self.twins = Twins(self.pieces, parallel)

    def named_parameters(self, *, once: bool = False) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters under their names in the whole model.

        Args:
            once: without a copy of what the first rank of the pipeline holds.
        """
        for piece in self.pieces:
            for name, parameter in piece.transformer.named_parameters():
                if not (once and self._is_copy(parameter)):
                    yield name, parameter

    def named_tensors(self, *, once: bool = False) -> Iterator[tuple[str, Tensor]]:
        """The same with the persistent buffers."""
        for piece in self.pieces:
            for name, tensor in piece.transformer.state_dict(keep_vars=True).items():
                if not (once and self._is_copy(tensor)):
                    yield name, tensor

    def _is_copy(self, tensor: Tensor) -> bool:
        return self.twins is not None and any(tensor is copy for copy in self.twins.seconds)

    @property
    def is_first_replica(self) -> bool:
        """Whether this rank is the first of those that hold the same pieces of the model."""
        if self.meshes is None:
            return True
        return all(self.meshes.dense.get_local_rank(axis) == 0 for axis in ("replicate", "shard", "context", "tensor"))

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
    def score(self, inputs_BT: Tensor, labels_BT: Tensor, rope: Rope | None = None, eod: int | None = None) -> float:
        """The summed cross-entropy in nats of samples that every rank is given; each replica scores its share.

        Rows and tokens are added, not scored, until the layout divides them.
        """
        for piece in self.pieces:
            piece.eval()
        parallel = self.parallel
        replicas = self.meshes.data_ranks if self.meshes is not None else 1
        rows, length = inputs_BT.shape
        split = (2 * parallel.context if parallel.context > 1 else 1) * (parallel.tensor if parallel.sequence else 1)
        missing = (0, -length % split, 0, -rows % replicas)
        inputs_BT, labels_BT = nn.functional.pad(inputs_BT, missing), nn.functional.pad(labels_BT, missing, value=-1)
        own = self.own_samples(len(inputs_BT))
        losses = self._run(inputs_BT[own], labels_BT[own], own.stop - own.start, Objective(1, rope, eod), train=False)
        for piece in self.pieces:
            give_back(piece)
        return losses.cross_entropy.item()

    def clip(self, most: float) -> float:
        """Scale the gradients so that their norm over all ranks is at most `most`; returns the norm before."""
        twins = self.twins.seconds if self.twins is not None else []
        return clip_gradients([parameter for _, parameter in self.named_parameters()], most, twins).item()

    @torch.no_grad()
    def finish_step(self, bias_rate: float) -> list[Balance]:
        """Let the routers take the step's counts of all tokens into account, see `preheat.model.finish_step`."""
        records = []
        for piece in self.pieces:
            if self.meshes is not None:
                _sum_counts([*routers(piece.transformer).values()], self.meshes.routed)
            record = finish_step(piece.transformer, bias_rate)
            records += [record] if record is not None else []
        return records

    def _lay_out(self) -> None:
        """Split the pieces on the meta device, in the order in which the parts build on each other."""
        parallel, meshes = self.parallel, self.meshes
        blocks = [block for piece in self.pieces for block in piece.transformer.every_block]
        if self.precision.compute == "fp8":
            apply_fp8(blocks, self.precision.fp8_recipe, self.device)
        if meshes is not None:
            for piece in self.pieces:
                _split(piece.transformer, parallel, meshes)
        if parallel.compile:
            apply_compile(blocks, parallel)
        apply_recompute(blocks, parallel.recompute)
        if meshes is not None:
            for piece in self.pieces:
                apply_sharding(piece, meshes, parallel, piece.compute)

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
            expect_micro_batch(piece, self.parallel.sharding, last=first + micro_size >= samples)
            total = piece(**batch.rows(slice(first, first + micro_size)).keywords())
            if train:
                (total / tokens).backward()
        sums, piece.sums = piece.sums, None
        assert sums is not None, "a batch has samples"
        return sums

    def _over_all_tokens(self, sums: Tensor, objective: Objective) -> Losses:
        if self.meshes is None:
            return Losses(*sums)
        dist.all_reduce(sums, group=self.meshes.scored)
        balance = sums[Losses._fields.index("balance")].clone()
        if self.parallel.sequence:
            # Tensor ranks have the same loss of all tokens, but each routed tokens of its own.
            dist.all_reduce(balance, group=self.meshes.dense.get_group("tensor"))
        losses = Losses(*sums)
        total = losses.cross_entropy + losses.z + balance + objective.prediction_weight * losses.prediction
        return losses._replace(balance=balance, total=total)


def _sum_counts(every: list[Router], group: dist.ProcessGroup) -> None:
    """Add up what the routers of all ranks counted, in one message. Counts are whole numbers below 2^53."""
    counts = [count for router in every for count in (router.choices, router.dropped, router.shares)]
    if counts:
        sums = torch.cat([count.double() for count in counts])
        dist.all_reduce(sums, group=group)
        for count, summed in zip(counts, sums.split([len(count) for count in counts]), strict=True):
            count.copy_(summed)


def _split(transformer: Transformer, parallel: Parallel, meshes: Meshes) -> None:
    """Everything but data parallelism."""
    if parallel.tensor > 1:
        apply_tensor(transformer, meshes.dense["tensor"], parallel.sequence)
    if parallel.expert * parallel.expert_tensor > 1:
        for module in transformer.modules():
            if isinstance(module, Experts):
                apply_experts(module, meshes.expert["expert", "expert_tensor"], meshes.exchange)
    if parallel.context > 1:
        apply_context(transformer, meshes.dense["context"], parallel.context_exchange)
    parts = [axis for axis, split in (("context", parallel.context > 1), ("tensor", parallel.sequence)) if split]
    for router in routers(transformer).values():
        router.sequence_counts = SummedCounts([meshes.dense.get_group(axis) for axis in parts])
