"""`preheat rehearse`: run the shrunken twin of a recipe in its own layout on this machine."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from preheat import rehearse as room
from preheat.arithmetic import smallest_world
from preheat.check import check
from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json, table
from preheat.errors import PreheatError, refuse
from preheat.hardware import Cluster
from preheat.recipe import load

GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="N[xTYPE]", help="GPUs of the real run [default: the recipe's, or as few as it takes].")
]
Processes = Annotated[int, typer.Option("--nproc", min=1, max=64, help="Processes at most on this machine.")]
Explain = Annotated[bool, typer.Option("--explain", help="Print the twin's recipe with what is different and why, and run nothing.")]
Keep = Annotated[Path | None, typer.Option("--keep", metavar="FOLDER", help="Leave recipes, data, runs and logs in this folder.")]


def run(
    recipe: RecipeName,
    gpus: GpusOption = None,
    nproc: Processes = 8,
    explain: Explain = False,
    keep: Keep = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Rehearse a recipe: a small twin of the same layout and schedule trains on CPUs, is killed, and goes on in another layout.

    Every step is compared with one process. Exit code 1 when a step differs or a run does not get through.
    """
    loaded = load(recipe, tuple(sets or ()))
    where = Cluster.parse(gpus) if gpus is not None else None
    errors = [problem for problem in check(loaded, where) if problem.severity == "error"]
    if errors:
        raise PreheatError(*errors)
    parallel = loaded.recipe.parallel
    twin = room.twin(loaded.recipe, where.count if where else parallel.gpus or smallest_world(parallel), nproc)
    if explain:
        if as_json:
            print_json(room.as_json(twin, []))
        else:
            print(room.explained(twin), end="")
        return
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        refuse("rehearse.folder", f"{keep} is there already and not empty", "a new folder", "Choose another one for --keep")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does it: the processes go too
    begin = time.monotonic()
    if not as_json:
        print(f"{twin.recipe.name}: {twin.axes.ranks} of at most {nproc} processes", flush=True)
    with tempfile.TemporaryDirectory(prefix="preheat-rehearsal-") as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        legs = room.rehearse(twin, folder.resolve(), lambda line: None if as_json else print(line, flush=True))
    if as_json:
        print_json(room.as_json(twin, legs))
    else:
        for heading, rows in room.tables(twin, legs):
            print(f"\n{heading}\n{table(rows, '  ')}")
        print(f"\n{room.verdict(twin, legs)} ({time.monotonic() - begin:.0f} s)")
    raise typer.Exit(0 if all(leg.agrees for leg in legs) else 1)
