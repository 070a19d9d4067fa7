"""`preheat runs`: the runs of a folder and where they stand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from preheat.cli.options import AsJson
from preheat.cli.output import print_json, table
from preheat.errors import refuse
from preheat.units import duration, short

Root = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where run folders lie.")]


def run(root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs below a folder with state, stage, loss and the time left."""
    from preheat.report.runs import RunState, run_states

    if not root.is_dir():
        refuse("run.folder", f"there is no folder {root}", "", "Give the folder that holds your runs")
    states = run_states(root)
    if as_json:
        print_json({"schema": "preheat.runs/1", "runs": [asdict(state) | {"path": str(state.path)} for state in states]})
        return

    def row(state: RunState) -> list[str]:
        steps = f"{state.step:_}" + (f" of {state.total_steps:_}" if state.total_steps is not None else "")
        loss = "" if state.loss is None else f"loss {state.loss:.4f}"
        left = "" if state.seconds_left is None else f"{duration(state.seconds_left)} left"
        amended = f"amended {state.amendments}x" if state.amendments else ""
        return [str(state.path), state.state, state.stage or "", steps, f"{short(state.tokens)} tokens", loss, left, amended]

    print(table([row(state) for state in states]) if states else f"no runs in {root}")
