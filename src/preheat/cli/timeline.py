"""`preheat timeline`: everything that holds at a moment of the run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from preheat.arithmetic import Timeline
from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json, table
from preheat.errors import refuse
from preheat.recipe import load
from preheat.units import Quantity

At = Annotated[
    str | None,
    typer.Option("--at", metavar="MOMENT", help='A moment: "2000 steps", "85%", "20B tokens" [default: where anything changes].'),
]


def run(recipe: RecipeName, at: At = None, sets: Sets = None, as_json: AsJson = False) -> None:
    """Show clock, learning rate, batch, stage and mixture at a moment, or the whole run."""
    loaded = load(recipe, tuple(sets or ()))
    try:
        timeline = Timeline(loaded.recipe)
        if at is not None:
            moments = [_moment(timeline, Quantity.parse(at))]
        else:
            starts = [Quantity.parse(f"{segment.start.steps} steps") for segment in timeline.segments]
            moments = [_moment(timeline, start) for start in [*starts, Quantity.parse("100%")]]
    except ValueError as error:
        refuse("run.timeline", str(error), "", "")
    if as_json:
        print_json(
            {"schema": "preheat.timeline/1", **moments[0]} if at is not None else {"schema": "preheat.timeline/1", "moments": moments}
        )
        return
    header = ["step", "tokens", "samples", "lr", "stage", "batch", "seq_len", "rope base", "mix"]
    rows = [
        [f"{m['step']:_}", f"{m['tokens']:_}", f"{m['samples']:_}", f"{m['lr']:.3g}", m["stage"], str(m["batch_size"]), str(m["seq_len"])]
        + ["-" if m["rope_theta"] is None else f"{m['rope_theta']:_g}", ", ".join(f"{n} {w:g}" for n, w in m["mix"].items())]
        for m in moments
    ]
    print(table([header, *rows]))


def _moment(timeline: Timeline, quantity: Quantity) -> dict[str, Any]:
    clock, segment = timeline.at(quantity)
    return {
        "tokens": clock.tokens,
        "samples": clock.samples,
        "step": clock.steps,
        "lr": timeline.learning_rate(clock.tokens),
        "batch_size": segment.batch_size,
        "stage": segment.stage.name,
        "seq_len": segment.seq_len,
        "rope_theta": segment.rope_theta,
        "mix": {name: float(weight) for name, weight in segment.stage.mix.items()},
    }
