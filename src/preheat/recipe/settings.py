"""`--set key.path=value`: changes of single values on top of a file."""

from __future__ import annotations

import tomllib
from typing import Any

from preheat.errors import refuse

MAX_PARTS = 16
"""A key with more parts than this leads nowhere."""


def settings(sets: tuple[str, ...], base: dict[str, Any]) -> dict[str, Any]:
    """The options as tables that lie on top of `base`; entries of lists are addressed by their name or number.

    Raises:
        PreheatError: an option without `=`, a key that leads nowhere, or one that belongs to a file.
    """
    values: dict[str, Any] = {}
    for option in sets:
        key, equals, text = option.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts) or len(parts) > MAX_PARTS:
            refuse("recipe.set", f"--set {option[:200]}", "key.path=value", "Write for instance --set schedule.peak_lr=1e-3")
        if parts[0] in ("extends", "sources"):
            refuse("recipe.set", f"--set {option[:200]}", f"{parts[0]} belongs to a recipe file", "Write a file that extends another one")
        _put(values, base, parts, _value(text.strip()), option)
    return values


def plain_copy(value: Any) -> Any:
    """A deep copy of plain TOML values."""
    if isinstance(value, dict):
        return {key: plain_copy(entry) for key, entry in value.items()}
    return [plain_copy(entry) for entry in value] if isinstance(value, list) else value


def _value(text: str) -> Any:
    """A TOML value, or else the text itself, which need not be in quotes."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def _put(values: dict[str, Any], base: Any, parts: list[str], value: Any, option: str) -> None:
    """Write `value` at the dotted path; a list on the way is copied whole from `base` first."""
    target: Any = values
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(target, list):
            index = next((i for i, entry in enumerate(target) if isinstance(entry, dict) and entry.get("name") == part), None)
            if index is None and part.isdecimal() and int(part[:9]) < len(target):
                index = int(part)
            if index is None:
                names = [str(entry.get("name", i)) if isinstance(entry, dict) else str(i) for i, entry in enumerate(target)]
                refuse("recipe.set", f"--set {option}: {'.'.join(parts[:depth])} has no entry {part!r}", f"one of {', '.join(names)}", "")
            if last:
                target[index] = value
                return
            base, target = (base[index] if isinstance(base, list) and index < len(base) else None), target[index]
            continue
        if not isinstance(target, dict):
            refuse("recipe.set", f"--set {option}: {'.'.join(parts[:depth])} is a value and no table", "", "Shorten the key")
        if last:
            target[part] = value
            return
        base = base.get(part) if isinstance(base, dict) else None
        if part not in target:
            target[part] = plain_copy(base) if isinstance(base, list) else {}
        target = target[part]
