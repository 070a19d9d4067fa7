"""`render` puts charts and tables into the page's template; everything that comes from a file is escaped there."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

import preheat
from preheat.errors import refuse
from preheat.report import figures, tables
from preheat.report.chart import colour_class, svg
from preheat.report.folder import Run, load
from preheat.report.scale import number


def render(run: Path) -> str:
    """The page of a run folder, finished or not, as HTML that needs no other file, no script and no network.

    Raises:
        PreheatError: `run` is no run folder, or a file in it is damaged.
    """
    loaded = load(run)
    templates = PackageLoader("preheat.report", "templates")
    environment = Environment(loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(svg=svg, colour=colour_class, number=number)
    return environment.get_template("page.html.j2").render(_view(loaded))


def write(run: Path, out: Path) -> None:
    """Write the page to `out`, replacing it in one rename.

    Raises:
        PreheatError: as `render`, or `out` cannot be a file; nothing is written then.
    """
    if out.is_dir() or not out.parent.is_dir():
        got = f"{out} is a folder" if out.is_dir() else f"the folder {out.parent} does not exist"
        refuse("report.out", got, "the report is one file", "Name a file in a folder that exists")
    page = render(run)
    partial = out.with_name(out.name + ".partial")
    with partial.open("w", encoding="utf-8", errors="replace") as file:
        file.write(page)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(out)


def _view(run: Run) -> dict[str, object]:
    bands = figures.stage_bands(run)
    sources, mixture = tables.mixture(run)
    events, events_cut = tables.events(run)
    return {
        "run": run,
        "css": resources.files("preheat.report").joinpath("templates", "page.css").read_text("utf-8"),
        "version": preheat.__version__,
        "status": tables.status(run),
        "verdict": tables.verdict(run),
        "unevaluated": tables.unevaluated(run),
        "tiles": tables.tiles(run),
        "bars": tables.bars(run),
        "bands": bands,
        "loss": figures.loss(run, bands),
        "held_out": figures.held_out(run, bands),
        "schedule": figures.schedule(run, bands),
        "stability": figures.stability(run, bands),
        "speed": figures.speed(run, bands),
        "events": events,
        "alarming": figures.ALARMS,
        "events_cut": events_cut,
        "funnels": tables.funnels(run),
        "sources": sources,
        "mixture": mixture,
        "recipe": tables.recipe(run),
        "machine": tables.flat(run.environment) if run.environment else [],
    }
