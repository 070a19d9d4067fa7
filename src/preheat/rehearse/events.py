"""What happens along a run, step by step: what a rehearsal has to live through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preheat.arithmetic import Segment, Timeline
from preheat.recipe import Recipe
from preheat.units import Quantity


@dataclass(frozen=True)
class Event:
    """The first step to which it applies, and what it is."""

    step: int
    what: str


def events(recipe: Recipe) -> tuple[Event, ...]:
    """The events of a short run in order; it looks at every step."""
    return tuple(sorted(_events(recipe, Timeline(recipe)), key=lambda event: event.step))


def _events(recipe: Recipe, timeline: Timeline) -> Iterator[Event]:
    for before, after in zip(timeline.segments, timeline.segments[1:], strict=False):
        yield Event(after.start.steps + 1, _switch(before, after))
    rate = timeline.learning_rate
    if rate.warmup:
        yield Event(_reaching(timeline, rate.warmup), f"the warm-up ends at a rate of {rate.peak:g}")
    begin, level = rate.warmup, rate.peak
    for piece in rate.pieces:
        if piece.lr != level:
            how = f"jumps to {piece.lr:g}" if piece.shape == "constant" else f"begins its {piece.shape} way to {piece.lr:g}"
            yield Event(_reaching(timeline, begin + 1), f"the rate {how}")
        begin, level = piece.end, piece.lr
    model = recipe.model
    for change in model.mtp.loss_weight[1:] if model.mtp else ():
        yield Event(_after(timeline, change.at), f"the weight of multi-token prediction becomes {change.weight:g}")
    for speed in model.experts.bias_update_rate[1:] if model.experts else ():
        yield Event(_after(timeline, speed.at), f"the speed of the experts' bias becomes {speed.rate:g}")


def _switch(before: Segment, after: Segment) -> str:
    changed = []
    if before.batch_size != after.batch_size:
        changed.append(f"batch {before.batch_size} -> {after.batch_size}")
    if before.stage_index == after.stage_index:
        return ", ".join(changed)
    if before.seq_len != after.seq_len:
        changed.append(f"sequences {before.seq_len} -> {after.seq_len}")
    if before.rope_theta != after.rope_theta:
        changed.append(f"rope base {before.rope_theta:_g} -> {after.rope_theta:_g}")
    if before.rope_scaling != after.rope_scaling:
        changed.append("other stretched rotary frequencies" if after.rope_scaling else "rotary frequencies no longer stretched")
    if before.stage.mix != after.stage.mix:
        changed.append("another mixture")
    return f"stage {after.stage.name}" + (f": {', '.join(changed)}" if changed else "")


def _reaching(timeline: Timeline, tokens: int) -> int:
    """The first step that ends at or after so many tokens."""
    return next(number for number in range(1, timeline.end.steps + 1) if timeline.step(number).end.tokens >= tokens)


def _after(timeline: Timeline, moment: Quantity) -> int:
    """The first step that starts at or after a moment."""
    return timeline.at(moment)[0].steps + 1
