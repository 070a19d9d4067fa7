"""`preheat check`: everything that is wrong with a recipe, in one report."""

from __future__ import annotations

from typing import Annotated

import typer

from preheat.check import RULES, check
from preheat.cli.options import AsJson, Sets
from preheat.cli.output import print_json, problem_json
from preheat.errors import PreheatError, Problem, refuse
from preheat.recipe import load

MaybeRecipe = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A recipe of the catalog, or the path of a .toml file.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="RULE", help="Say what a rule is about; `all` lists them.")]


def run(recipe: MaybeRecipe = None, sets: Sets = None, explain: Explain = None, as_json: AsJson = False) -> None:
    """Check a recipe: every problem, its rule, the numbers that disagree and what to change."""
    if explain is not None:
        _explain(explain)
        return
    if recipe is None:
        refuse("usage", "no recipe was named", "", "Write `preheat check RECIPE`; `preheat recipes` lists the shipped ones")
    try:
        problems = check(load(recipe, tuple(sets or ())))
        unreadable = False
    except PreheatError as error:
        problems, unreadable = list(error.problems), True
    errors = [problem for problem in problems if problem.severity == "error"]
    if as_json:
        print_json({"schema": "preheat.check/1", "ok": not errors, "problems": [problem_json(problem) for problem in problems]})
    else:
        _report(recipe, problems)
    raise typer.Exit(2 if unreadable else 1 if errors else 0)


def _report(recipe: str, problems: list[Problem]) -> None:
    for problem in problems:
        print(f"{problem.severity}: {problem}")
    counts = [
        f"{n} {kind}{'s' if n > 1 else ''}" for kind in ("error", "warning", "note") if (n := sum(p.severity == kind for p in problems))
    ]
    print(f"{recipe}: {', '.join(counts) or 'nothing to complain about'} ({len(RULES)} rules)")


def _explain(name: str) -> None:
    if name == "all":
        for rule in RULES.values():
            print(f"{rule.name}: {rule.explanation.splitlines()[0]}")
    elif name in RULES:
        print(f"{name} ({RULES[name].severity})\n\n{RULES[name].explanation}")
    else:
        refuse("usage", f"no rule is called {name!r}", "", "`preheat check --explain all` lists them")
