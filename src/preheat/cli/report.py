"""`preheat report`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from preheat.cli.options import RunPath

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write it [default: RUN/report.html].")]


def run(run: RunPath, out: Out = None) -> None:
    """Write the report of a run: one self-contained HTML file."""
    from preheat.report import write

    target = out or run / "report.html"
    write(run, target)
    print(target)
