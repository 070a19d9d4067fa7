"""The course of a twin: a dozen steps that pass a ramp, the end of the warm-up, every stage and every piece of the schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from preheat.recipe import Recipe, RopeScaling
from preheat.rehearse.axes import Axes
from preheat.rehearse.lengths import Lengths

Values = dict[str, Any]

MOST_STAGES, MOST_PIECES, MOST_CHANGES = 8, 6, 4
WARMUP, RAMP, TAIL = 3, 2, 4
"""Steps: of the warm-up, before the batch grows, and of the last stage, so that a run killed shortly before the end has seen it."""


FEWEST_SAMPLES = 4
"""In a batch, so that each source of a mixture has a chance."""


def steps(recipe: Recipe) -> int:
    """How many steps the twin takes."""
    return max(12, 2 * min(len(recipe.stage), MOST_STAGES) + TAIL)


def checkpoint_step(recipe: Recipe) -> int:
    """The step past the middle after which the twin is saved."""
    return steps(recipe) // 2 + 1


def kept(count: int, most: int) -> list[int]:
    """The entries of a list that stay: the first ones and the last."""
    return list(range(count)) if count <= most else [*range(most - 1), count - 1]


def course(recipe: Recipe, axes: Axes, replicas: int, lengths: Lengths) -> Values:
    """The tables `batch`, `schedule`, `stage`, `checkpoint` and `evaluation` of the twin, as they differ from the recipe's.

    Args:
        replicas: data-parallel replicas that every batch must divide among.
    """
    small, full = _batch_sizes(recipe, axes, replicas)
    ends = _stage_ends(recipe)
    stages = kept(len(recipe.stage), MOST_STAGES)
    return {
        "batch": {
            "global_size": full,
            "micro_size": _micro(recipe.batch.micro_size),
            "seq_len": lengths.short[recipe.batch.seq_len],
            "ramp": _ramp(recipe, stages, ends, small, full),
        },
        "schedule": _schedule(recipe),
        "stage": [_stage(recipe, index, end, small, full, lengths) for index, end in zip(stages, ends, strict=True)],
        "checkpoint": {"every": f"{checkpoint_step(recipe)} steps"},
        "evaluation": {"every": "4 steps" if recipe.evaluation.every is not None else None, "held_out_tokens": 256, "tasks": []},
    }


def changes(entries: list[Values], total: int) -> list[Values]:
    """A setting that changes over the run: its first values and its last, spread over the steps."""
    places = kept(len(entries), MOST_CHANGES)
    return [entries[place] | {"at": f"{round(total * i / len(places))} steps"} for i, place in enumerate(places)]


def scaling(table: RopeScaling | None, lengths: Lengths) -> Values | None:
    """A table `rope_scaling` for the twin's sequences."""
    if table is None:
        return None
    return table.model_dump(mode="json") | {"original_max_positions": lengths.original(table.original_max_positions, table.factor)}


def _micro(size: int) -> int:
    return min(size, 2)


def _batch_sizes(recipe: Recipe, axes: Axes, replicas: int) -> tuple[int, int]:
    """The size that a ramp starts with, and the full one; each gives every replica the micro-batches that its pipeline needs."""
    micro = max(_micro(size) for size in [recipe.batch.micro_size, *(stage.micro_size or 1 for stage in recipe.stage)])
    v_shaped = axes.pipeline > 1 and recipe.parallel.schedule == "dualpipe-v"
    least = replicas * micro * (4 if v_shaped else 2)
    small = least * -(-FEWEST_SAMPLES // least)
    smaller = [stage.global_size for stage in recipe.stage if stage.global_size and stage.global_size < recipe.batch.global_size]
    return small, 2 * small if smaller or len(recipe.batch.ramp) > 1 else small


def _ramp(recipe: Recipe, stages: list[int], ends: list[int], small: int, full: int) -> list[Values]:
    if len(recipe.batch.ramp) < 2:
        return [{"at": "0 steps", "size": full}] if recipe.batch.ramp else []
    starts = [0, *ends[:-1]]
    ramped = [place for place, index in enumerate(stages) if recipe.stage[index].global_size is None]
    if not ramped:  # every stage has a batch of its own
        return []
    start, end = starts[ramped[0]], ends[ramped[0]]
    return [{"at": "0 steps", "size": small}, {"at": f"{start + min(RAMP, end - start - 1)} steps", "size": full}]


def _stage_ends(recipe: Recipe) -> list[int]:
    count, total = min(len(recipe.stage), MOST_STAGES), steps(recipe)
    return [*(round((total - TAIL) * (place + 2) / count) for place in range(count - 1)), total]


def _stage(recipe: Recipe, index: int, end: int, small: int, full: int, lengths: Lengths) -> Values:
    stage, batch = recipe.stage[index], recipe.batch
    size = stage.global_size
    return stage.model_dump(mode="json") | {
        "until": None if index == len(recipe.stage) - 1 else f"{end} steps",
        "seq_len": lengths.short[stage.seq_len] if stage.seq_len else None,
        "rope_scaling": scaling(stage.rope_scaling, lengths),
        "global_size": None if size is None else small if size < batch.global_size else full if size == batch.global_size else 2 * full,
        "micro_size": _micro(stage.micro_size) if stage.micro_size else None,
        "context": None,
    }


def _schedule(recipe: Recipe) -> Values:
    schedule, total = recipe.schedule, steps(recipe)
    warmup = WARMUP if schedule.warmup.amount else 0
    pieces = kept(len(schedule.segment), MOST_PIECES)
    ends = [warmup + round((total - warmup) * (place + 1) / len(pieces)) for place in range(len(pieces))]
    assert all(before < after for before, after in pairwise([warmup, *ends])), ends
    tail = schedule.decay_length
    return {
        "length": f"{total} steps",
        "warmup": f"{warmup} steps",
        "decay_length": None if tail is None else f"{TAIL} steps" if tail.amount else "0 steps",
        "segment": [
            schedule.segment[piece].model_dump(mode="json") | {"until": None if end == total else f"{end} steps"}
            for piece, end in zip(pieces, ends, strict=True)
        ],
    }
