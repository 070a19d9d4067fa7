"""Which layers lie on which pipeline rank, and how much of a step the pipeline stands idle."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from preheat.recipe import Parallel

V_SHAPED = ("zero-bubble-v", "dualpipe-v")
"""Schedules in which the pieces go down the ranks and up again."""

SPLIT_BACKWARD = ("zero-bubble", *V_SHAPED)
"""Schedules that compute the gradients of inputs and of weights at different times (arXiv 2401.10241)."""


@dataclass(frozen=True)
class Chunk:
    """A run of consecutive layers that one pipeline rank computes at a time."""

    index: int
    """Position in the model, from 0."""
    layers: range
    first: bool
    """The embedding comes before these layers."""
    last: bool
    """The final norm and the head come after these layers."""


def pipeline_split(layers: int, parallel: Parallel) -> tuple[tuple[Chunk, ...], ...]:
    """The chunks of each pipeline rank.

    Chunk c of pipeline * virtual_pipeline lies on rank c mod pipeline, so that virtual stages go round the ranks (interleaved 1F1B,
    arXiv 2104.04473). DualPipe (arXiv 2412.19437) holds every chunk twice: rank r has chunk r and its mirror image.

    Raises:
        ValueError: the layers do not divide, or `pipeline_layers` has another length or sum; the message names the numbers.
    """
    stages, pieces = parallel.pipeline, parallel.pipeline * parallel.virtual_pipeline
    sizes = parallel.pipeline_layers
    if sizes is None:
        if layers % pieces:
            over = f"{stages} pipeline stages" + (f" x {parallel.virtual_pipeline} virtual" if parallel.virtual_pipeline > 1 else "")
            hint = f"; give pipeline_layers, for instance {list(balanced_split(layers, pieces))}" if pieces <= min(layers, 32) else ""
            raise ValueError(f"{layers} layers are not divisible by {over}{hint}")
        sizes = (layers // pieces,) * pieces
    if len(sizes) != pieces:
        raise ValueError(
            f"pipeline_layers has {len(sizes)} entries, and pipeline {stages} x virtual_pipeline {parallel.virtual_pipeline} "
            f"makes {pieces} pieces"
        )
    if sum(sizes) != layers:
        raise ValueError(f"pipeline_layers sums to {sum(sizes)}, and the model has {layers} layers")
    chunks, start = [], 0
    for index, size in enumerate(sizes):
        chunks.append(Chunk(index, range(start, start + size), index == 0, index == pieces - 1))
        start += size
    if parallel.schedule == "dualpipe" and stages > 1:
        if parallel.virtual_pipeline > 1:
            raise ValueError(f"dualpipe takes one chunk a stage and direction, and virtual_pipeline is {parallel.virtual_pipeline}")
        return tuple(tuple(chunks[i] for i in sorted({rank, stages - 1 - rank})) for rank in range(stages))
    if parallel.schedule in V_SHAPED:
        if parallel.virtual_pipeline != 2:
            raise ValueError(f"{parallel.schedule} has two pieces a rank, and virtual_pipeline is {parallel.virtual_pipeline}")
        return tuple((chunks[rank], chunks[pieces - 1 - rank]) for rank in range(stages))
    return tuple(tuple(chunks[rank::stages]) for rank in range(stages))


def balanced_split(layers: int, pieces: int, *, embedding: int = 1, head: int = 1) -> tuple[int, ...]:
    """Layers per piece such that pieces are as even as they can be when embedding and head weigh as much as so many layers.

    Spare places fall to the last pieces first. Example: 126 layers in 16 pieces -> 7, fourteen times 8, 7 (Llama 3 405B).
    """
    slots = layers + (embedding + head if pieces > 1 else 0)
    sizes = [slots // pieces + (1 if piece < slots % pieces else 0) for piece in range(pieces)]
    if pieces > 1:
        sizes[0] -= embedding
        sizes[-1] -= head
        for end in (0, -1):  # with fewer layers than pieces an end piece may be short of its slot
            while sizes[end] < 0:
                sizes[max(range(pieces), key=lambda piece: sizes[piece])] -= 1
                sizes[end] += 1
    return tuple(sizes)


def in_flight(parallel: Parallel, rank: int, micro_batches: int) -> float:
    """Micro-batches whose activations a pipeline rank holds at once, each of all its layers.

    1F1B holds as many as there are ranks from this one to the last (arXiv 2104.04473, section 2.2); interleaved, rank r is
    2 (p - r - 1) + (v - 1) p + 1 passes through a piece ahead (section 2.3). Zero-bubble schedules put off gradients of weights until
    all ranks hold as much as the first, which is p (arXiv 2401.10241, 2405.15362). DualPipe holds p + 1 of either direction's pieces
    (arXiv 2412.19437, table 2), and in V shape on half the ranks 2 p + 1 of half the size.
    """
    ranks, pieces = parallel.pipeline, parallel.virtual_pipeline
    if ranks == 1:
        return 1
    if parallel.schedule == "dualpipe":
        return min(micro_batches, (ranks + 1) / 2)
    if parallel.schedule == "dualpipe-v":
        return min(micro_batches, ranks + 0.5)
    if parallel.schedule in SPLIT_BACKWARD:
        return min(micro_batches, ranks)
    if pieces == 1:
        return min(micro_batches, ranks - rank)
    return min(micro_batches * pieces, 2 * (ranks - rank - 1) + (pieces - 1) * ranks + 1) / pieces


def bubble(parallel: Parallel, micro_batches: int) -> Fraction:
    """Share of a step in which a rank waits: (p - 1) / (v * m + p - 1) for 1F1B with v virtual stages (arXiv 2104.04473, section 2.2)."""
    waiting = parallel.pipeline - 1
    return Fraction(waiting, parallel.virtual_pipeline * micro_batches + waiting)
