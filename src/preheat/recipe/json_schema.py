"""The JSON Schema of a recipe file."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from preheat.recipe.fields import Table
from preheat.recipe.schema import Recipe


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a recipe file, for editors; `extends` and `sources` belong to the file and not to the recipe."""
    schema = Recipe.model_json_schema()
    for table in _tables(Table):
        described = schema if table is Recipe else schema["$defs"].get(table.__name__, {})
        for name, text in _descriptions(table).items():
            if name in described.get("properties", {}):
                described["properties"][name].setdefault("description", text)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "A catalog recipe or a file next to this one whose values are the start.",
    }
    schema["properties"]["sources"] = {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Dotted key or table -> where its numbers come from.",
    }
    schema.pop("required", None)
    return schema


def _tables(parent: type[Table]) -> Iterator[type[Table]]:
    for table in parent.__subclasses__():
        yield table
        yield from _tables(table)


def _descriptions(table: type[Table]) -> dict[str, str]:
    """Field -> the text under it. pydantic's use_attribute_docstrings finds the same, but reads the source at every start."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return found
