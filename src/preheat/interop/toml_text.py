"""Writes plain values as TOML: tables with headings where a person reads them, one line where a comment carries them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_INLINE = 100
"""Characters up to which an array stays on one line."""


def document(values: Mapping[str, Any]) -> str:
    """A TOML file: first the plain keys, then a heading for each table and for each entry of a list of tables."""
    lines: list[str] = []
    _table(values, "", lines)
    return "\n".join(lines).strip() + "\n"


def one_line(value: Any) -> str:
    """A value on one line; tables become inline tables."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {one_line(entry)}" for key, entry in value.items() if entry is not None) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return "[" + ", ".join(one_line(entry) for entry in value) + "]"
    return repr(value)


def _table(values: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    later = {key: value for key, value in values.items() if _headed(value)}
    for key, value in values.items():
        if value is not None and key not in later:
            lines += _pair(key, value)
    for key, value in later.items():
        name = f"{prefix}.{_key(key)}" if prefix else _key(key)
        for entry in value if isinstance(value, list | tuple) else [value]:
            lines += ["", f"[[{name}]]" if isinstance(value, list | tuple) else f"[{name}]"]
            _table(entry, name, lines)


def _headed(value: Any) -> bool:
    """Whether a value gets headings: a table, or a list of tables that hold more than the pairs of a ramp."""
    if isinstance(value, Mapping):
        return bool(value)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(entry, Mapping) for entry in value):
        return False
    return any(len(entry) > 2 or any(isinstance(part, Mapping) for part in entry.values()) for entry in value)


def _pair(key: str, value: Any) -> list[str]:
    text = f"{_key(key)} = {one_line(value)}"
    if len(text) <= _INLINE or not isinstance(value, list | tuple):
        return [text]
    return [f"{_key(key)} = [", *(f"  {one_line(entry)}," for entry in value), "]"]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)
