"""`preheat tune`: find the micro-batch size that trains fastest here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from preheat.check import check, untrained
from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json
from preheat.errors import PreheatError, Problem, RunFailed, refuse
from preheat.recipe import Recompute, load

if TYPE_CHECKING:
    from preheat.train import Try

GIB = 2**30

Limit = Annotated[
    float | None, typer.Option("--memory-limit", metavar="GIB", help="Memory of each process [default: all that its device has free].")
]
Kinds = Annotated[bool, typer.Option("--recompute", help="Try each way to recompute activations too.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps that are timed in each try, after one that is not.")]


def run(
    recipe: RecipeName, sets: Sets = None, memory_limit: Limit = None, recompute: Kinds = False, steps: Steps = 3, as_json: AsJson = False
) -> None:
    """Try micro-batch sizes 1, 2, 4 ... on this machine until memory runs out, and say which trains fastest.

    It trains on random tokens in the shape of the first stage, so it needs no data. Each try has processes of its own.
    """
    loaded = load(recipe, tuple(sets or ()))
    errors = [problem for problem in check(loaded) if problem.severity == "error"] + untrained(loaded)
    if errors:
        raise PreheatError(*errors)
    if memory_limit is not None and not 0 < memory_limit < 1e6:
        refuse("tune.memory", f"--memory-limit {memory_limit:g}", "a number of GiB", "Write for instance --memory-limit 20")
    from preheat.train import best_try, setting, tries

    kinds = get_args(Recompute.model_fields["kind"].annotation) if recompute else (loaded.recipe.parallel.recompute.kind,)
    done = []
    for attempt in tries(loaded.recipe, kinds, steps, None if memory_limit is None else int(memory_limit * GIB)):
        done.append(attempt)
        if not as_json:
            typer.echo(_line(attempt), err=True)
    choice = best_try(done)
    settings = setting(loaded.recipe, choice) if choice is not None else []
    if as_json:
        print_json({"schema": "preheat.tune/1", "tries": [_json(attempt) for attempt in done], "set": settings})
    elif choice is not None:
        print(" ".join(f"--set {entry}" for entry in settings))
    if choice is None:
        got = f"micro-batches of 1 do not fit into {'what is free' if memory_limit is None else f'{memory_limit:g} GiB'}"
        fix = "Split the model over more processes, or give it more memory" if recompute else "Try --recompute, or split the model further"
        raise RunFailed(Problem("tune.nothing-fits", got, "", fix))


def _line(attempt: Try) -> str:
    """One try, for the eye."""
    head = f"micro-batch {attempt.micro_size:>4}  recompute {attempt.recompute:9}"
    result = attempt.result
    if result is None:
        return f"{head}  out of memory"
    return f"{head}  {result.tokens_per_s:>10,.0f} tokens/s  MFU {result.mfu:6.1%}  peak {result.peak_bytes / GIB:7.2f} GiB"


def _json(attempt: Try) -> dict[str, Any]:
    result = attempt.result
    return {
        "micro_size": attempt.micro_size,
        "recompute": attempt.recompute,
        "fits": result is not None,
        "tokens_per_s": result and result.tokens_per_s,
        "mfu": result and result.mfu,
        "peak_bytes": result and result.peak_bytes,
    }
