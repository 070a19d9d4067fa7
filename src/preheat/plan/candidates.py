"""Every layout of a recipe on a cluster that the rules of layouts allow, and why others are not among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import gcd

from preheat.arithmetic import balanced_split, kv_heads, stage_parallel
from preheat.check.subject import divisors
from preheat.plan.planner import Planner, Way, micro_size
from preheat.recipe import Parallel, Recompute

_MICRO_SIZES = (1, 2, 4, 8, 16, 32, 64)
_MOST_PIECES = 8
"""Of a pipeline rank; beyond, messages between stages take over."""
_FEWEST_TOKENS = 2048
"""Of a sequence on a context-parallel rank; with fewer, the exchange costs more than is saved (`layout.context-short`)."""


def candidates(planner: Planner, left_out: Counter[str]) -> Iterator[Way]:
    """Ways that nothing speaks against but memory, all without recomputation.

    Args:
        left_out: counts combinations that are not among them, by reason.
    """
    cluster, model = planner.cluster, planner.recipe.model
    ranks, experts = cluster.count, model.experts
    for tensor in divisors(ranks):
        if not _cuts(planner, tensor):
            left_out["tensor does not divide heads, key/value heads or inner width"] += 1
            continue
        if tensor > max(cluster.gpu.domain, 1):
            left_out[f"tensor-parallel ranks leave the {cluster.gpu.domain} GPUs that fast links join"] += 1
            continue
        for context, pipeline in product(divisors(ranks // tensor), repeat=2):
            reason = _refused(planner, tensor, context, pipeline)
            if reason:
                left_out[reason] += 1
                continue
            base = planner.recipe.parallel.model_copy(
                update={
                    "tensor": tensor,
                    "context": context,
                    "pipeline": pipeline,
                    "sequence": tensor > 1,
                    "recompute": Recompute(),
                    "replicate": 1,
                    "compile": planner.recipe.parallel.compile and tensor == 1,
                }
            )
            spread = _expert_ways(ranks // pipeline, experts.count, tensor) if experts is not None else [(1, 1)]
            for (expert, expert_tensor), piped in product(spread, pipelines(planner, base)):
                split = piped.model_copy(update={"expert": expert, "expert_tensor": expert_tensor})
                yield from _batched(planner, split, left_out)


def _batched(planner: Planner, parallel: Parallel, left_out: Counter[str]) -> Iterator[Way]:
    """With each size of micro-batch that divides all batches of the run, and each kind of sharding that makes sense."""
    copies = planner.replicas(parallel) * parallel.context
    if copies == 1:
        shardings: list[dict[str, object]] = [{"sharding": "none"}]
    else:
        shardings = [{"sharding": "optimizer"}]
        if parallel.pipeline == 1:
            shardings += [{"sharding": "full", "replicate": groups} for groups in _groups(planner, parallel, copies)]
    for size in _MICRO_SIZES:
        way = Way(parallel, size)
        reason = _unbatched(planner, way)
        if reason:
            left_out[reason] += 1
            continue
        for sharding in shardings:
            yield Way(parallel.model_copy(update=sharding), size)


def _unbatched(planner: Planner, way: Way) -> str | None:
    """Why some batch of the run does not divide into micro-batches."""
    for segment in planner.kinds:
        parallel = stage_parallel(way.parallel, segment.stage)
        together = micro_size(way, segment) * planner.replicas(parallel)
        if segment.batch_size % together:
            return "a batch is no whole number of micro-batches on each replica"
        count = segment.batch_size // together
        if parallel.virtual_pipeline > 1 and count % parallel.pipeline:
            return "micro-batches are no multiple of the stages of an interleaved pipeline"
    return None


def _refused(planner: Planner, tensor: int, context: int, pipeline: int) -> str | None:
    """Why these sizes can't be, whatever the rest."""
    ranks, model = planner.cluster.count, planner.recipe.model
    if ranks % (tensor * context * pipeline):
        return "ranks are no multiple of tensor x context x pipeline"
    if pipeline > model.layers:
        return "more pipeline stages than layers"
    for segment in planner.kinds:
        own = segment.stage.context or context
        if ranks % (tensor * own * pipeline):
            return "ranks are no multiple of tensor x context x pipeline in a stage with a context size of its own"
        if own > 1 and segment.seq_len % (2 * own):
            return "sequences do not divide into 2 x context chunks"
        if tensor > 1 and segment.seq_len // own % tensor:
            return "a rank's part of the sequence does not divide over tensor ranks"
        if context > 1 and segment.stage.context is None and segment.seq_len // context < _FEWEST_TOKENS:
            return f"fewer than {_FEWEST_TOKENS:,} tokens of a sequence on a context rank"
    return None


def _cuts(planner: Planner, tensor: int) -> bool:
    model = planner.recipe.model
    groups = kv_heads(model)
    whole = model.mla is not None or groups % tensor == 0 or tensor % groups == 0
    shared = model.experts is None or (model.experts.ffn_hidden * model.experts.shared) % tensor == 0
    return model.heads % tensor == 0 and model.ffn_hidden % tensor == 0 and whole and shared


def pipelines(planner: Planner, base: Parallel) -> Iterator[Parallel]:
    """With each number of pieces a rank; layers that don't divide are split by hand, embedding and head counted as a layer each."""
    layers = planner.recipe.model.layers
    if base.pipeline == 1:
        plain: dict[str, object] = {"virtual_pipeline": 1, "schedule": "1f1b"}
        yield base.model_copy(update={**plain, "pipeline_layers": None if base.pipeline_layers is None else (layers,)})
        return
    for virtual in range(1, _MOST_PIECES + 1):
        pieces = base.pipeline * virtual
        sizes = (layers // pieces,) * pieces
        if layers % pieces:
            if pieces > layers + 2:
                return
            sizes = balanced_split(layers, pieces)
            if min(sizes) < 1:
                continue
        spelled = None if layers % pieces == 0 and planner.recipe.parallel.pipeline_layers is None else sizes
        schedule = "1f1b" if virtual == 1 else "interleaved"
        yield base.model_copy(update={"virtual_pipeline": virtual, "pipeline_layers": spelled, "schedule": schedule})


def _expert_ways(ranks: int, count: int, tensor: int) -> list[tuple[int, int]]:
    """Sizes of expert and expert-tensor parallelism within a pipeline stage of `ranks`."""
    ways = []
    for expert in divisors(gcd(count, ranks)):
        for expert_tensor in {1, tensor}:
            if ranks % (expert * expert_tensor) == 0:
                ways.append((expert, expert_tensor))
    return ways


def _groups(planner: Planner, parallel: Parallel, copies: int) -> list[int]:
    """In how many groups FSDP may shard: one, or such that a group is a few servers."""
    replicas = copies // parallel.context
    server = planner.cluster.gpu.domain // parallel.tensor or 1
    return sorted({1} | {replicas // size for size in (server, 4 * server, 16 * server) if 1 < size < replicas and replicas % size == 0})
