"""What is wrong with the values of a recipe file, in the words of the file: pydantic's findings with file, line and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from preheat.errors import Problem, Where
from preheat.recipe.fields import NAME
from preheat.recipe.schema import Recipe

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "tuple_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "literal_error": "one of {expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} characters",
}
"""Kind of pydantic's finding -> what belongs there; the braces are filled from the finding."""
_HINTED = 50
"""For so many unknown keys the nearest known name is looked up; whoever has more of them has another file."""


def complaints(error: ValidationError, place: Callable[[list[str]], Where]) -> list[Problem]:
    """Every finding; `place` gives the file and line of a path of keys."""
    problems = []
    for number, finding in enumerate(error.errors(include_url=False)):
        location = [str(part) for part in finding["loc"]]
        where = place(location)
        if finding["type"] == "extra_forbidden":
            hint = _hint(location) if number < _HINTED else ""
            problems.append(Problem("recipe.unknown-key", f"unknown key {shown(location[-1])}", "", hint, where))
        elif finding["type"] == "missing":
            fix = f"Add {location[-1]} to " + (f"[{'.'.join(location[:-1])}]" if location[1:] else "the recipe")
            problems.append(Problem("recipe.missing-key", f"{where.key} is not set", "", fix, where))
        else:
            got, want, fix = _value(finding, where)
            problems.append(Problem("recipe.value", got, want, fix, where))
    return problems


def shown(value: object) -> str:
    """A value as a file writes it, shortened where it is long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number of some {value.bit_length() * 30103 // 100_000} digits"
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _value(finding: Any, where: Where) -> tuple[str, str, str]:
    """What stands there, what belongs there, and the way out."""
    kind, value = finding["type"], finding["input"]
    if kind == "value_error":
        return finding["msg"].removeprefix("Value error, "), "", ""
    if kind == "string_pattern_mismatch" and finding["ctx"]["pattern"] == NAME:
        return shown(value), "a name of letters, digits, '.', '_' and '-', 64 at most, that begins with a letter or digit", ""
    fix = ""
    if kind == "tuple_type" and isinstance(value, dict):
        fix = "Set the whole array" if where.file == "--set" else f"Write [[{where.key}]]"
    if kind == "literal_error" and isinstance(value, str):
        near = difflib.get_close_matches(value[:64], finding["ctx"]["expected"].replace("'", " ").split(), 1, 0.5)
        fix = f"Did you mean {near[0]}?" if near else ""
    numbers = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in finding.get("ctx", {}).items()}
    return shown(value), _WANTED[kind].format_map(numbers) if kind in _WANTED else finding["msg"], fix


def _hint(location: list[str]) -> str:
    known = _fields_at(location[:-1])
    near = difflib.get_close_matches(location[-1][:64], known, 1, 0.5)
    elsewhere = [f"{table}.{location[-1]}" for table in Recipe.model_fields if location[-1] in _fields_at([table])]
    listed = f"Known here: {', '.join(sorted(known))}" if known else ""
    return f"Did you mean {(elsewhere + near)[0]}?" if near or elsewhere else listed


def _fields_at(location: list[str]) -> list[str]:
    """The known keys of the table at a location."""
    table: type[BaseModel] | None = Recipe
    for part in location:
        if part.isdecimal():
            continue
        if table is None or part not in table.model_fields:
            return []
        table = _table_in(table.model_fields[part].annotation)
    fields = list(table.model_fields) if table else []
    return [*fields, "extends", "sources"] if table is Recipe else fields


def _table_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and get_origin(annotation) is None:
        return annotation
    return next((found for part in get_args(annotation) if (found := _table_in(part))), None)
