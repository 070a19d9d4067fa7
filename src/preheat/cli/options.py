"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe of the catalog, or the path of a .toml file.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value: --set schedule.peak_lr=1e-3 (repeatable).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON of a stable shape.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
DataPath = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The prepared data [default: prepared/NAME].")]


def data_folder(given: Path | None, name: str) -> Path:
    """Where the prepared data of a recipe lies."""
    return given or Path("prepared") / name
