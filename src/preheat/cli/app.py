"""The `preheat` program: its verbs, and how it says that something is wrong."""

from __future__ import annotations

import sys

import typer

from preheat.cli import check, data, evaluate, recipes, report, sample, schema, show, timeline, train
from preheat.cli.output import complain
from preheat.errors import PreheatError

app = typer.Typer(
    name="preheat",
    help="Pretraining recipes you can trust: check, prepare data, train, evaluate, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (recipes, show, check, timeline, schema, train, evaluate, sample, report):
    app.command(name=verb.__name__.rpartition(".")[2])(verb.run)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the program. Exit code 0: done; 1: a finding or a failed run; 2: wrong usage or input."""
    try:
        app()
    except PreheatError as error:
        complain(error.problems)
        sys.exit(error.exit_code)
