"""`preheat check`: everything that is wrong with a recipe, or with a Megatron-LM command, in one report."""

from __future__ import annotations

import difflib
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from preheat.check import READING, RULES, Machine, Rule, check
from preheat.cli.options import AsJson, Sets
from preheat.cli.output import print_json, problem_json, visible
from preheat.errors import PreheatError, Problem, refuse
from preheat.hardware import Cluster
from preheat.recipe import load

MaybeRecipe = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A recipe of the catalog, or the path of a .toml file.")]
GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="N[xTYPE]", help="GPUs to run on: 64, 64xH100 or 8x96GB [default: the recipe's own number].")
]
Megatron = Annotated[Path | None, typer.Option("--megatron", metavar="FILE", help="Check a Megatron-LM command, script or YAML instead.")]
Version = Annotated[str, typer.Option("--megatron-version", metavar="0.17|0.18|0.19", help="The Megatron-LM that shall read it.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="RULE", help="Say what a rule is about; `all` lists them.")]

MAX_BYTES = 1_000_000
"""A command file larger than this is none."""


def run(
    recipe: MaybeRecipe = None,
    gpus: GpusOption = None,
    megatron: Megatron = None,
    megatron_version: Version = "0.19",
    sets: Sets = None,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Check a recipe: every problem, its rule, the numbers that disagree and what to change."""
    if explain is not None:
        _explain(explain)
        return
    if (recipe is None) == (megatron is None):
        got = "no recipe was named" if recipe is None else "a recipe and a Megatron-LM file were named"
        refuse("usage", got, "one of them", "Write `preheat check RECIPE` or `preheat check --megatron FILE`; `preheat recipes` lists")
    where = Cluster.parse(gpus) if gpus is not None else None
    unreadable = False
    try:
        if megatron is not None:
            problems = _megatron(megatron, where, megatron_version)
        else:
            problems = check(load(str(recipe), tuple(sets or ())), where, Machine.here())
    except PreheatError as error:
        problems, unreadable = list(error.problems), True
    errors = [problem for problem in problems if problem.severity == "error"]
    if as_json:
        print_json({"schema": "preheat.check/1", "ok": not errors, "problems": [problem_json(problem) for problem in problems]})
    else:
        _report(str(megatron or recipe), where, problems)
    raise typer.Exit(2 if unreadable else 1 if errors else 0)


def _megatron(file: Path, gpus: Cluster | None, version: str) -> list[Problem]:
    from preheat.check.megatron import check_megatron

    if gpus is None:
        refuse("usage", "--megatron without --gpus", "", "Say how many ranks torchrun would start: --gpus 64")
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        refuse("megatron.file", f"{file}: {error.strerror}", "", "Give the path of a command, a script or a YAML file")
    except UnicodeDecodeError as error:
        refuse("megatron.file", f"byte 0x{raw[error.start]:02x} is no UTF-8", "", "Save the file as UTF-8", file=file)
    if len(raw) > MAX_BYTES:
        refuse("megatron.file", f"more than {MAX_BYTES:_} bytes", "", "This is no command file", file=file)
    return check_megatron(text, str(file), gpus.count, version)


def _report(name: str, gpus: Cluster | None, problems: list[Problem]) -> None:
    """The problems grouped by rule, errors first, with the file and line of each key."""
    known = _summaries(any(problem.rule.startswith("megatron.") for problem in problems))
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.severity, problem.rule), []).append(problem)
    for (severity, rule), found in groups.items():
        about = known.get(rule)
        print(f"{severity} {rule}" + (f": {about}" if about else ""))
        for problem, after in zip(found, [*found[1:], None], strict=True):
            place, text = str(problem.where), f"{problem.got}; {problem.want}" if problem.want else problem.got
            print(textwrap.indent(f"{visible(place)}\n    {visible(text)}" if place else visible(text), "  "))
            if problem.fix and (after is None or after.fix != problem.fix):  # several findings may have one way out
                print(f"      -> {visible(problem.fix)}")
        print()
    counts = [
        f"{n} {kind}{'s' if n > 1 else ''}" for kind in ("error", "warning", "note") if (n := sum(p.severity == kind for p in problems))
    ]
    where = f" on {gpus}" if gpus else ""
    print(f"{visible(name)}{where}: {', '.join(counts) or 'nothing to complain about'}")


def _explain(name: str) -> None:
    if name == "all":
        summaries = _summaries(with_megatron=True)
        width = max(map(len, summaries))
        for rule, summary in summaries.items():
            print(f"{rule:{width}}  {_severity(rule):7}  {summary}")
        return
    known = _rules(name.startswith("megatron."))
    if name in READING:
        print(f"{name} ({_severity(name)})\n\n{READING[name]}")
    elif name in known:
        ignorable = "; [[ignore]] may silence it" if known[name].arguable else ""
        print(f"{name} ({known[name].severity}{ignorable})\n\n{known[name].explanation}")
    else:
        near = difflib.get_close_matches(name, [*known, *READING], 1, 0.5)
        hint = f"Did you mean {near[0]}? " if near else ""
        refuse("usage", f"no rule is called {name!r}", "", f"{hint}`preheat check --explain all` lists them")


def _summaries(with_megatron: bool) -> dict[str, str]:
    """Name -> first line of what it is about."""
    rules = {rule.name: rule.summary for rule in _rules(with_megatron).values()}
    return rules | {name: text.partition("\n")[0] for name, text in READING.items()}


def _severity(name: str) -> str:
    return "warning" if name == "ignore.unused" else "error" if name in READING else _rules(with_megatron=True)[name].severity


def _rules(with_megatron: bool) -> dict[str, Rule[Any]]:
    """Rules about recipes, and where they are wanted those about Megatron-LM commands."""
    rules: dict[str, Rule[Any]] = {**RULES}
    if with_megatron:
        from preheat.check.megatron import MEGATRON_RULES

        rules |= MEGATRON_RULES
    return rules
