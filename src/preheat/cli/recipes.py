"""`preheat recipes`: what the catalog holds."""

from __future__ import annotations

from typing import Any

from preheat.arithmetic import parameters
from preheat.cli.options import AsJson
from preheat.cli.output import print_json, table
from preheat.recipe import catalog, load
from preheat.units import rounded


def run(as_json: AsJson = False) -> None:
    """List the recipes that preheat ships."""
    rows: list[dict[str, Any]] = []
    for name, description in catalog().items():
        recipe = load(name).recipe
        count, length = parameters(recipe.model), str(recipe.schedule.length)
        rows.append({"name": name, "description": description, "parameters": count.total, "active": count.active, "length": length})
    if as_json:
        print_json({"schema": "preheat.recipes/1", "recipes": rows})
        return
    print(table([[row["name"], _size(row), row["length"], row["description"]] for row in rows]))


def _size(row: dict[str, Any]) -> str:
    active = "" if row["active"] == row["parameters"] else f", {rounded(row['active'])} active"
    return f"{rounded(row['parameters'])} parameters{active}"
