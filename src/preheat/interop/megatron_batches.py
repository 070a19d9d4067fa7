"""What is to be exported, and its batch sizes as Megatron-LM counts them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from preheat.arithmetic import Segment, Timeline, layout, linear_ramp, stage_parallel
from preheat.errors import refuse
from preheat.interop.megatron_windows import Window
from preheat.recipe import Recipe
from preheat.units import short

Group = list[tuple[str, ...]]
"""Arguments, each a flag and its values."""


@dataclass(frozen=True)
class Request:
    """What is to be exported."""

    recipe: Recipe
    timeline: Timeline
    version: str
    gpus: int

    def before(self, version: str) -> bool:
        """Whether the wanted version is older than this one."""
        return [int(part) for part in self.version.split(".")] < [int(part) for part in version.split(".")]


def micro_size(request: Request, window: Window) -> int:
    """Samples per forward pass that divide every batch that is counted, on every replica; the recipe's own where it does."""
    parallel = stage_parallel(request.recipe.parallel, request.recipe.stage[window.stage_index])
    replicas = layout(parallel, request.gpus).dense_dp
    size = window.segments[0].micro_size
    for segment in counted(request, window):
        if segment.batch_size % replicas:
            refuse(
                "export.batch",
                f"a batch of {segment.batch_size} in stage {segment.stage.name}",
                f"a multiple of {replicas} replicas",
                "Change the batch, the layout or --gpus",
                key="batch.global_size",
            )
        size = math.gcd(size, segment.batch_size // replicas)
    return size


def counted(request: Request, window: Window) -> list[Segment]:
    """All segments up to the end of a window since the sequence length last changed: Megatron-LM counts iterations over these."""
    kept: list[Segment] = []
    for segment in request.timeline.segments:
        if segment.start.tokens >= window.end:
            break
        if kept and kept[-1].seq_len != segment.seq_len:
            kept = []
        kept.append(segment)
    return kept


def batch_arguments(request: Request, window: Window) -> Group:
    """One size, or the whole history of sizes: from it Megatron-LM works out how many iterations the samples make."""
    sizes = _sizes(request, window)
    group: Group = [("--micro-batch-size", str(micro_size(request, window)))]
    if len(sizes) == 1:
        return [*group, ("--global-batch-size", str(sizes[0][1]))]
    if not request.before("0.18"):
        entries = [f"{short(at).replace('_', '')}:{size}" for at, size in sizes]
        return [*group, ("--step-batch-size-schedule", " ".join(entries))]
    return [*group, ("--global-batch-size", str(sizes[-1][1])), ("--rampup-batch-size", *_old_ramp(request, window, sizes))]


def _sizes(request: Request, window: Window) -> list[tuple[int, int]]:
    """Tokens and batch size of each change, the first at 0; a threshold of the ramp as the recipe has it."""
    written = {}
    for ramp in request.recipe.batch.ramp:
        at = request.timeline.tokens(ramp.at)
        written[request.timeline.at(ramp.at)[0].tokens] = at
    found: list[tuple[int, int]] = []
    for segment in counted(request, window):
        if not found:
            found.append((0, segment.batch_size))
        elif found[-1][1] != segment.batch_size:
            found.append((written.get(segment.start.tokens, segment.start.tokens), segment.batch_size))
    return found


def _old_ramp(request: Request, window: Window, sizes: list[tuple[int, int]]) -> tuple[str, ...]:
    """The older ramp, where its increments are even.

    Raises:
        PreheatError: they are not.
    """
    seq_len = window.segments[0].seq_len
    starts, batches = [at // seq_len for at, _ in sizes], [size for _, size in sizes]
    increment = batches[1] - batches[0]
    if increment > 0 and batches == list(range(batches[0], batches[-1] + 1, increment)):
        even = linear_ramp(batches[0], increment, starts[-1], batches[-1])
        if all(abs(int(entry.at.amount) - start) <= size for entry, start, size in zip(even, starts, batches, strict=True)):
            return str(batches[0]), str(increment), str(starts[-1])
    return refuse(
        "export.ramp",
        f"batch sizes {', '.join(map(str, batches))} from {', '.join(f'{start:_}' for start in starts)} samples on",
        "core 0.17 knows even increments over even numbers of samples",
        "Export for 0.18 or newer",
        key="batch.ramp",
    )
