"""`preheat timeline`: everything that holds at a moment of the run."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from preheat.arithmetic import Segment, Timeline, attention_factor, rotary_frequencies, stage_parallel
from preheat.check import refuse_absurd
from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json, table
from preheat.errors import refuse
from preheat.recipe import Recipe, load
from preheat.units import Quantity

At = Annotated[
    str | None,
    typer.Option("--at", metavar="MOMENT", help='A moment: "2000 steps", "85%", "20B tokens" [default: where anything changes].'),
]


def run(recipe: RecipeName, at: At = None, sets: Sets = None, as_json: AsJson = False) -> None:
    """Show clock, learning rate, batch, stage and mixture at a moment, or the whole run."""
    loaded = load(recipe, tuple(sets or ()))
    refuse_absurd(loaded)
    try:
        timeline = Timeline(loaded.recipe)
        if at is not None:
            moments = [_moment(loaded.recipe, timeline, Quantity.parse(at))]
        else:
            starts = [Quantity.parse(f"{segment.start.steps} steps") for segment in timeline.segments]
            moments = [_moment(loaded.recipe, timeline, start) for start in [*starts, Quantity.parse("100%")]]
    except ValueError as error:
        refuse("run.timeline", str(error), "", "" if at is not None else "`preheat check` lists every problem")
    if as_json:
        print_json(
            {"schema": "preheat.timeline/1", **moments[0]} if at is not None else {"schema": "preheat.timeline/1", "moments": moments}
        )
        return
    header = ["step", "tokens", "samples", "lr", "stage", "batch", "seq_len", "rope base", "mix"]
    print(table([header, *(_row(moment) for moment in moments)]))


def _row(moment: dict[str, Any]) -> list[str]:
    clock = [f"{moment[key]:_}" for key in ("step", "tokens", "samples")]
    base = "-" if moment["rope_theta"] is None else f"{moment['rope_theta']:_g}"
    mix = ", ".join(f"{name} {weight:g}" for name, weight in moment["mix"].items())
    return [*clock, f"{moment['lr']:.3g}", moment["stage"], str(moment["batch_size"]), str(moment["seq_len"]), base, mix]


def _moment(recipe: Recipe, timeline: Timeline, quantity: Quantity) -> dict[str, Any]:
    clock, segment = timeline.at(quantity)
    experts, mtp = recipe.model.experts, recipe.model.mtp
    bias = timeline.in_force(experts.bias_update_rate, clock.tokens) if experts else None
    ahead = timeline.in_force(mtp.loss_weight, clock.tokens) if mtp else None
    return {
        "tokens": clock.tokens,
        "samples": clock.samples,
        "step": clock.steps,
        "lr": timeline.learning_rate(clock.tokens),
        "batch_size": segment.batch_size,
        "stage": segment.stage.name,
        "seq_len": segment.seq_len,
        "rope_theta": segment.rope_theta,
        "rope_scaling": None if segment.rope_scaling is None else segment.rope_scaling.model_dump(mode="json", exclude_none=True),
        **_rotary(recipe, segment),
        "context": stage_parallel(recipe.parallel, segment.stage).context,
        "bias_update_rate": bias.rate if bias else None,
        "mtp_loss_weight": ahead.weight if ahead else None,
        "mix": {name: float(weight) for name, weight in segment.stage.mix.items()},
    }


def _rotary(recipe: Recipe, segment: Segment) -> dict[str, float | None]:
    """How far the slowest dims reach before they have turned once, in positions, and by how much queries and keys grow."""
    if segment.rope_theta is None:
        return {"longest_wavelength": None, "attention_factor": None}
    slowest = rotary_frequencies(recipe.model, segment.rope_theta, segment.rope_scaling)[-1]
    return {"longest_wavelength": 2 * math.pi / slowest, "attention_factor": attention_factor(segment.rope_scaling)}
