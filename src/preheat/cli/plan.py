"""`preheat plan`: what a run takes before anyone rents a GPU, and how wrong such predictions have been."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from preheat.cli.options import AsJson
from preheat.cli.output import print_json, table

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def plan() -> None:
    """Time and memory of a run on a cluster."""


RunsFile = Annotated[
    Path, typer.Option("--runs", metavar="CSV", help="A table of published runs; docs/planner-accuracy.md lists its columns.")
]
LeaveOneOut = Annotated[bool, typer.Option("--leave-one-out", help="Predict each source by constants fitted without it; takes minutes.")]


@app.command()
def calibrate(runs: RunsFile, leave_one_out: LeaveOneOut = False, as_json: AsJson = False) -> None:
    """Predict published runs and say how wrong that was, by source."""
    from preheat.plan import calibrate as calibrate_runs
    from preheat.plan import read_runs, summary

    found = summary(calibrate_runs(read_runs(runs), leave_one_out=leave_one_out))
    if as_json:
        print_json({"schema": "preheat.plan.calibrate/1", **found})
        return
    how = "constants fitted without the source" if leave_one_out else "the constants that ship"
    print(f"{found['rows_used']} rows used, {sum(found['rows_skipped'].values())} figures not; predicted by {how}\n")
    groups = {"all rows": found["overall"], **found["by_group"], **found["by_source"]}
    print(table([["", "figure", "rows", "median |error|", "90th percentile", "bias"], *_accuracy_rows(groups)]))
    print("\nnot used:")
    print(table([[str(count), reason] for reason, count in found["rows_skipped"].items()], indent="  "))
    print("\nfarthest off:")
    worst = [[row["id"], row["source"], row["model"], row["gpus"], f"{row['error']:+.0%}", row["notes"][:60]] for row in found["worst"]]
    print(table(worst, indent="  ") if worst else "  none")


def _accuracy_rows(groups: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, kinds in groups.items():
        for kind, accuracy in kinds.items():
            if accuracy is not None:
                sizes = (accuracy["median_abs_error"], accuracy["p90_abs_error"])
                rows.append([name, kind, str(accuracy["n"]), *(f"{size:.1%}" for size in sizes), f"{accuracy['bias']:+.1%}"])
    return rows
