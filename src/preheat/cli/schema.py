"""`preheat schema`: the JSON Schema of a recipe file."""

from __future__ import annotations

from preheat.cli.output import print_json
from preheat.recipe.json_schema import json_schema


def run() -> None:
    """Print the JSON Schema of a recipe file, for editors."""
    print_json(json_schema())
