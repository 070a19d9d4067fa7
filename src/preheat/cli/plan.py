"""`preheat plan`: what a run takes before anyone rents a GPU, and how wrong such predictions have been."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json, problem_json, table, visible
from preheat.errors import PreheatError, refuse

if TYPE_CHECKING:
    from preheat.hardware import Cluster
    from preheat.plan import LayoutPlan, Planner, RunPlan
    from preheat.proof import Proof
    from preheat.recipe import Loaded


class RecipeOrCalibrate(TyperGroup):
    """`preheat plan RECIPE`, and `preheat plan calibrate`: a first word that is not `calibrate` belongs to a recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the hidden name of the command before a recipe."""
        if args and args[0] != "calibrate":
            args = ["recipe", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Leave the hidden name out of usage lines."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == "recipe" else name, command, rest


app = typer.Typer(add_completion=False, no_args_is_help=True, cls=RecipeOrCalibrate)


@app.callback()
def plan() -> None:
    """Memory, speed, days and dollars of a recipe on a cluster: `preheat plan RECIPE --gpus 64xH100`."""


Gpus = Annotated[str | None, typer.Option("--gpus", metavar="NxTYPE", help="GPUs to run on: 64xH100, 4xA100-40.")]
ProgramName = Annotated[str, typer.Option("--program", metavar="megatron|preheat", help="The training program that is planned for.")]
Hardware = Annotated[Path | None, typer.Option("--hardware", metavar="FILE", help="TOML file with kinds of GPU of your own.")]
Prepared = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="Prepared data, to count epochs of each source.")]
SaveWait = Annotated[
    float | None,
    typer.Option("--save-wait", metavar="SECONDS", min=0, max=86_400, help="What training waits for a save, if you measured it."),
]
DoSearch = Annotated[bool, typer.Option("--search", help="Rank all legal layouts.")]
Top = Annotated[int | None, typer.Option("--top", min=1, max=100, help="How many layouts --search shows; 10 if not said.")]
MaxDays = Annotated[float | None, typer.Option("--max-days", metavar="D", min=0, help="The run shall take no longer.")]
Budget = Annotated[float | None, typer.Option("--budget", metavar="USD", min=0, help="The run shall cost no more.")]
Advise = Annotated[bool, typer.Option("--advise", help="What to change first, each with what it would give here.")]
Prove = Annotated[bool, typer.Option("--prove", help="Build the real model of one rank without memory, and compare; needs torch.")]


@app.command("recipe", hidden=True, epilog="preheat plan calibrate --help: how wrong such predictions have been on published runs.")
def recipe_(
    recipe: RecipeName,
    gpus: Gpus = None,
    sets: Sets = None,
    program: ProgramName = "megatron",
    hardware: Hardware = None,
    data: Prepared = None,
    save_wait: SaveWait = None,
    do_search: DoSearch = False,
    top: Top = None,
    max_days: MaxDays = None,
    budget: Budget = None,
    advise: Advise = False,
    prove: Prove = False,
    as_json: AsJson = False,
) -> None:
    """Whether a recipe fits on a cluster, how fast it is, how long it runs and what it costs; with --search, which layout is best."""
    from preheat import plan as room
    from preheat.check import refuse_absurd
    from preheat.recipe import load

    if top is not None and not do_search:
        refuse("usage", f"--top {top} without --search", "", "Add --search, or leave --top out")
    loaded = load(recipe, tuple(sets or ()))
    refuse_absurd(loaded)
    cluster = _cluster(gpus, hardware, loaded)
    refused = room.refusals(loaded, cluster)
    if refused and (advise or prove or not (do_search and room.other_layouts_would_do(loaded, cluster))):
        raise PreheatError(*refused)
    planner = room.Planner(loaded.recipe, cluster, room.program(program))
    sizes, limits = _sizes(data), room.Limits(max_days, budget)

    def whole(layout: LayoutPlan) -> RunPlan:
        return room.whole_run(planner, layout, sizes, save_wait)

    answer = room.Answer(
        planner,
        loaded,
        tuple(refused),
        whole,
        limits,
        search=(top or 10) if do_search else None,
        advise=advise,
        proof=_prove if prove else None,
    )
    if as_json:
        print_json({"schema": "preheat.plan/1", **answer.json(problem_json)})
    else:
        print("\n".join(map(visible, answer.lines())))
    raise typer.Exit(0 if answer.good else 1)


def _cluster(gpus: str | None, hardware: Path | None, loaded: Loaded) -> Cluster:
    from preheat.hardware import Cluster

    if gpus is None:
        own = loaded.recipe.parallel.gpus
        got = f"the recipe is laid out for {own:_} GPUs of no kind" if own is not None else "the recipe names no GPUs"
        refuse("plan.gpus", got, "a number and a kind of GPU", f"Say what it shall run on: --gpus {own or 8}xH100")
    cluster = Cluster.parse(gpus, hardware)
    if cluster.assumed:
        refuse("plan.gpus", f"--gpus {gpus} names no kind", "speed and price depend on it", f"Write for instance --gpus {gpus}xH100")
    return cluster


def _sizes(data: Path | None) -> dict[str, int]:
    """Tokens of each source of prepared data."""
    if data is None:
        return {}
    from preheat.data import Manifest

    return {source.name: source.train.tokens for source in Manifest.load(data).sources}


def _prove(planner: Planner) -> Proof:
    from preheat.proof import prove

    return prove(planner.recipe, planner.cluster.count)


RunsFile = Annotated[
    Path, typer.Option("--runs", metavar="CSV", help="A table of published runs; docs/planner-accuracy.md lists its columns.")
]
LeaveOneOut = Annotated[bool, typer.Option("--leave-one-out", help="Predict each source by constants fitted without it; takes minutes.")]


@app.command()
def calibrate(runs: RunsFile, leave_one_out: LeaveOneOut = False, as_json: AsJson = False) -> None:
    """Predict published runs and say how wrong that was, by source; exit code 1 where no row could be used."""
    from preheat.plan import calibrate as calibrate_runs
    from preheat.plan import calibration_json, predicted_memory, read_runs

    def progress(source: str) -> None:
        typer.echo(f"fitting without {source}", err=True)

    found = calibration_json(calibrate_runs(read_runs(runs), leave_one_out=leave_one_out, memory=predicted_memory, progress=progress))
    if as_json:
        print_json({"schema": "preheat.plan.calibrate/1", **found})
    else:
        _print_accuracy(found, leave_one_out)
    raise typer.Exit(0 if found["rows_used"] else 1)


def _print_accuracy(found: dict[str, Any], leave_one_out: bool) -> None:
    how = "constants fitted without the source" if leave_one_out else "the constants that ship"
    print(f"{found['rows_used']} rows used, {sum(found['rows_skipped'].values())} figures not; predicted by {how}\n")
    groups = {"all rows": found["overall"], **found["by_group"], **found["by_source"]}
    print(table([["", "figure", "rows", "median |error|", "90th percentile", "bias"], *_accuracy_rows(groups)]))
    if found["rows_skipped"]:
        print("\nnot used:")
        print(table([[str(count), reason] for reason, count in found["rows_skipped"].items()], indent="  "))
    if found["rows_assumed"]:
        print("\nassumed where a used row does not say:")
        print(table([[str(count), what] for what, count in found["rows_assumed"].items()], indent="  "))
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
