"""`preheat export megatron`: the command that trains a recipe with Megatron-LM."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json
from preheat.errors import refuse
from preheat.interop import export_megatron
from preheat.recipe import load

app = typer.Typer(help="Write a recipe for another program.", no_args_is_help=True)

Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="World size [default: the recipe's parallel.gpus].")]
Version = Annotated[str, typer.Option("--megatron-version", metavar="VERSION", help="Version of megatron-core: 0.17, 0.18 or 0.19.")]
Yaml = Annotated[bool, typer.Option("--yaml", help="Flat key: value lines instead of a script.")]
Part = Annotated[int | None, typer.Option("--part", metavar="N", min=1, help="Only this part of a run that takes several commands.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of printing; never over a file.")]


@app.callback()
def programs() -> None:
    """Write a recipe for another program."""


@app.command("megatron")
def megatron(
    recipe: RecipeName,
    gpus: Gpus = None,
    version: Version = "0.19",
    yaml: Yaml = False,
    part: Part = None,
    out: Out = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """The complete torchrun command for a recipe, with what Megatron-LM cannot say in comments."""
    loaded = load(recipe, tuple(sets or ())).recipe
    count = gpus or loaded.parallel.gpus
    if count is None:
        refuse("usage", "no --gpus, and the recipe names none", "", "Add --gpus N")
    export = export_megatron(loaded, count, version, form="yaml" if yaml else "script", part=part)
    if out is not None:
        write_new(out, export.text)
    if as_json:
        print_json({"schema": "preheat.export/1", **asdict(export)})
    elif out is None:
        print(export.text, end="")
    else:
        print(f"{out}: {len(export.parts)} command{'s' if len(export.parts) > 1 else ''}")
        for note in export.notes:
            print(f"note: {note}")


def write_new(path: Path, text: str) -> None:
    """Write a text to a file that does not exist yet."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        refuse("usage", f"{path} exists", "", "Remove it or choose another name")
    except OSError as error:
        refuse("usage", f"{path}: {error.strerror}", "", "Choose another name")
