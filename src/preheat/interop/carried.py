"""Recipe values that a foreign command cannot say, carried along in its comments: `#: key = value`, and `#- key` for a key that is absent.

The exporter writes a line for each value that reading its own command back would get wrong, and the importer reads the lines back, so
that nothing is lost silently and the way there and back gives the same recipe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from preheat.errors import refuse
from preheat.interop.toml_text import one_line

CARRIED = "#: "
ABSENT = "#- "


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted key and wanted value wherever two nested tables differ; lists are taken whole, None stands for an absent key."""
    rows: list[tuple[str, Any]] = []
    for key in [*wanted, *(key for key in found if key not in wanted)]:
        want, got, name = wanted.get(key), found.get(key), f"{prefix}{key}"
        if want == got:
            continue
        if isinstance(want, Mapping) and isinstance(got, Mapping):
            rows += differences(want, got, f"{name}.")
        else:
            rows.append((name, want))
    return rows


def comment_lines(rows: list[tuple[str, Any]]) -> list[str]:
    """One comment for each difference."""
    return [f"{ABSENT}{key}" if value is None else f"{CARRIED}{key} = {one_line(value)}" for key, value in rows]


def apply_comments(values: dict[str, Any], text: str, file: str) -> list[str]:
    """Put the values that a text carries in its comments into a nested table; returns their keys.

    Raises:
        PreheatError: a comment of this form that is no TOML.
    """
    keys: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(CARRIED):
            try:
                found = tomllib.loads(line.removeprefix(CARRIED))
            except (tomllib.TOMLDecodeError, RecursionError) as error:
                refuse("megatron.carried", f"{line[:60]!r}: {error}", "#: key = value", "Remove the line", file=file, line=number)
            _merge(values, found)
            keys.append(line.removeprefix(CARRIED).partition("=")[0].strip())
        elif line.startswith(ABSENT):
            _remove(values, line.removeprefix(ABSENT).strip().split("."))
            keys.append(line.removeprefix(ABSENT).strip())
    return keys


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _remove(values: dict[str, Any], parts: list[str]) -> None:
    table: Any = values
    for part in parts[:-1]:
        table = table.get(part) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(parts[-1], None)
