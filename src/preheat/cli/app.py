"""The `preheat` program: its verbs, and how it says that something is wrong."""

from __future__ import annotations

import gc
import io
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from preheat.cli.output import complain
from preheat.errors import PreheatError, Problem

VERBS = (
    "recipes",
    "show",
    "check",
    "timeline",
    "plan",
    "schema",
    "data",
    "tune",
    "train",
    "rehearse",
    "runs",
    "evaluate",
    "sample",
    "report",
    "import",
    "export",
)
"""A module of this folder for each (with a trailing underscore where the word is Python's own): either a function `run` that is the verb,
or a `typer.Typer` called `app` that holds the words after it."""


class Verbs(TyperGroup):
    """Imports a verb when it is asked for, so that `check` answers without the time that the others take to load."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All verbs, in the order in which one uses them."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb, or None when there is none of that name."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"preheat.cli.{cmd_name}{'_' if cmd_name == 'import' else ''}")
        gc.freeze()
        gc.enable()
        if hasattr(module, "app"):
            command: Any = typer.main.get_group(module.app)
        else:
            single = typer.Typer(add_completion=False)
            single.command()(module.run)
            command = typer.main.get_command(single)
        command.name = cmd_name
        return command


app = typer.Typer(name="preheat", cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def program() -> None:
    """Pretraining recipes you can trust: check, prepare data, train, evaluate, report."""


EXTRAS = {
    "data": ("numpy", "tokenizers", "tiktoken", "rensa"),
    "fp8": ("torchao",),
    "train": ("torch", "safetensors", "tensorboard", "jinja2"),
}
"""Extra -> the packages that it brings and the core does without."""


def run() -> None:
    """Run the verb that the command line names, and say what is wrong where it ends with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to end
    try:
        app()
    except PreheatError as error:
        complain(error.problems)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        extra = next((name for name, packages in EXTRAS.items() if (error.name or "").partition(".")[0] in packages), None)
        if extra is None:
            raise
        fix = f"Install it with: pip install 'preheat[{extra}]'"
        complain([Problem("usage.extra", f"the package {error.name} is not installed", "this command needs it", fix)])
        sys.exit(2)
    except OSError as error:
        complain([Problem("os", f"{error.filename or 'a file'}: {error.strerror or error}", "", "")])
        sys.exit(1)
