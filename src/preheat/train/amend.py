"""What a run may change half-way: its future. Its weights must fit, and what it has read must be what the new recipe would have read.

So a resumed run stands at the same place of the new recipe as of the old one, and no sample repeats or is left out because of the change.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from preheat.arithmetic import Timeline
from preheat.errors import refuse
from preheat.model import Transformer
from preheat.recipe import Model, Recipe

Past = list[tuple[int, int, int, int, dict[str, Fraction]]]


def refuse_unfit(before: Recipe, now: Recipe, step: int) -> list[str]:
    """Refuse a recipe that a run can't go on with after `step`; what changes for the very next step beside what the recipes say.

    Raises:
        PreheatError: tensors of another shape, other optimizer states, another seed, or another past.
    """
    fix = "Choose another --run folder; `--init-from` begins a new run with given weights"
    if step == 0:
        return []
    shapes, new_shapes = (_shapes(recipe.model) for recipe in (before, now))
    for name in sorted(shapes.keys() | new_shapes.keys()):
        if shapes.get(name) != new_shapes.get(name):
            got = f"{name} is {shapes.get(name, 'not there')}, and in the new recipe {new_shapes.get(name, 'not there')}"
            refuse("run.amend-shapes", got, "a run keeps its tensors", fix)
    for key in ("name", "state_precision"):
        old, new = getattr(before.optimizer, key), getattr(now.optimizer, key)
        if old != new:
            refuse("run.amend-optimizer", f"optimizer.{key}: {old} -> {new}", "a run keeps its optimizer's states", fix)
    if before.seed != now.seed:
        refuse("run.amend-seed", f"seed: {before.seed} -> {now.seed}", "a run keeps the order of its samples", fix)
    old_timeline, new_timeline = Timeline(before), Timeline(now)
    if step >= new_timeline.end.steps:
        got = f"the run is at step {step:_}"
        refuse("run.amend-length", got, f"the new schedule ends at step {new_timeline.end.steps:_}", "Give it a longer schedule.length")
    longest, new_longest = (max(segment.seq_len for segment in timeline.segments) for timeline in (old_timeline, new_timeline))
    if longest != new_longest:
        got = f"the longest sequence: {longest} -> {new_longest} tokens"
        refuse("run.amend-past", got, "the order of samples goes by it, from the first sample on", fix)
    for old_part, new_part in zip(_past(old_timeline, step), _past(new_timeline, step), strict=False):
        if old_part != new_part:
            got = f"the run has read {_said(old_part)}, and by the new recipe would have read {_said(new_part)}"
            refuse("run.amend-past", got, f"it is at step {step:_}", "Change what comes after it: with a stage, or an entry of the ramp")
    if step >= old_timeline.end.steps:
        return []
    old_rate, new_rate = (timeline.step(step + 1).lr for timeline in (old_timeline, new_timeline))
    return [f"learning rate of step {step + 1:_}: {old_rate:g} -> {new_rate:g}"] if old_rate != new_rate else []


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in Transformer(model).state_dict().items()}


def _past(timeline: Timeline, step: int) -> Past:
    """What was read up to a step: (last step, stage, batch, sequence length, mixture) of stretches that look alike."""
    past: Past = []
    for segment in timeline.segments:
        if segment.start.steps < step:
            total = sum(segment.stage.mix.values())
            mix = {name: weight / total for name, weight in segment.stage.mix.items()}
            kind = (segment.stage_index, segment.batch_size, segment.seq_len, mix)
            if past and past[-1][1:] == kind:
                past.pop()
            past.append((min(segment.end.steps, step), *kind))
    return past


def _said(part: tuple[int, int, int, int, dict[str, Fraction]]) -> str:
    end, stage, batch, length, mix = part
    shares = ", ".join(f"{name} {float(weight):.3g}" for name, weight in mix.items())
    return f"{batch} x {length} tokens a step in stage {stage + 1} until step {end:_} ({shares})"
