"""`preheat recipes`: what the catalog holds."""

from __future__ import annotations

from preheat.arithmetic import parameters
from preheat.cli.options import AsJson
from preheat.cli.output import print_json, table
from preheat.recipe import catalog, load
from preheat.units import rounded


def run(as_json: AsJson = False) -> None:
    """List the recipes that preheat ships."""
    rows = []
    for name, description in catalog().items():
        recipe = load(name).recipe
        rows.append(
            {"name": name, "description": description, "parameters": parameters(recipe.model).total, "length": str(recipe.schedule.length)}
        )
    if as_json:
        print_json({"schema": "preheat.recipes/1", "recipes": rows})
        return
    print(table([[row["name"], f"{rounded(row['parameters'])} parameters", row["length"], row["description"]] for row in rows]))
