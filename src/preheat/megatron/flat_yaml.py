"""Reads the flat `key: value` files in which Megatron-LM arguments are passed around. Not YAML: no tags, no anchors, only sections.

A key is an argument with or without its dashes (`num-layers`, `num_layers`, `--num-layers`). A key without a value opens a section whose
indented lines are read the same way; the section ENV_VARS holds environment variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from preheat.errors import refuse

_LINE = re.compile(r"(?P<indent>[ \t]*)(?P<key>[\w.-]+)[ \t]*:(?:[ \t]+(?P<value>.*))?$")


@dataclass(frozen=True)
class Entry:
    """One line: the section that it is in, its key and its values (a list has several, `true` and `false` are kept as texts)."""

    section: str
    key: str
    values: tuple[str, ...]
    line: int


def looks_flat(text: str) -> bool:
    """Whether a text is of this form rather than a command: its first line with content is `key:` or `key: value`."""
    for line in text.splitlines()[:200]:
        bare = line.strip()
        if bare and not bare.startswith("#") and bare != "---":
            return _LINE.match(line) is not None and "://" not in bare.split()[0]
    return False


def read_flat(text: str, file: str | None = None) -> list[Entry]:
    """The entries of a text, in order.

    Raises:
        PreheatError: a line of another form, a tag, an anchor, a key twice, with file and line.
    """
    entries: list[Entry] = []
    section, seen = "", dict[tuple[str, str], int]()
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw).rstrip()
        if not line.strip() or line.strip() == "---":
            continue
        match = _LINE.match(line)
        if match is None:
            refuse("megatron.yaml", f"{line.strip()[:60]!r} is no `key: value`", "", "One argument on each line", file=file, line=number)
        if not match["indent"]:
            section = ""
        value = (match["value"] or "").strip()
        if value[:1] in ("!", "&", "*"):
            refuse("megatron.yaml", f"{value[:40]!r} is a YAML tag or anchor", "a plain value", "Write the value", file=file, line=number)
        if not value:
            section = match["key"]
            continue
        key = (section, match["key"])
        if key in seen:
            refuse("megatron.yaml", f"{match['key']} is given again", f"first on line {seen[key]}", "Keep one", file=file, line=number)
        seen[key] = number
        entries.append(Entry(section, match["key"], _values(value), number))
    return entries


def _values(text: str) -> tuple[str, ...]:
    if text.startswith("[") and text.endswith("]") and "(" not in text and "*" not in text:
        return tuple(_unquoted(part.strip()) for part in text[1:-1].split(",") if part.strip())
    return (_unquoted(text),)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _without_comment(line: str) -> str:
    quote = ""
    for position, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and line[:position].rstrip().endswith((":", "[", ",")):
            quote = character
        elif character == "#" and (position == 0 or line[position - 1] in " \t"):
            return line[:position]
    return line
