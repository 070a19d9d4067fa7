"""Reads the flat `key: value` files in which Megatron-LM arguments are passed around. Not YAML: no tags, no anchors, only sections.

A key is an argument with or without its dashes (`num-layers`, `num_layers`, `--num-layers`). A key without a value opens a section whose
indented lines are read the same way; of a file with a section MODEL_ARGS the others are left aside, but for ENV_VARS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from preheat.errors import refuse

_MOST_ITEMS = 5_000
_LINE = re.compile(r"(?P<key>[\w.-]+)[ \t]*:(?:[ \t]+(?P<value>.*))?$")


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
            return _LINE.match(bare) is not None and "://" not in bare.split()[0]
    return False


def read_flat(text: str, file: str | None = None) -> list[Entry]:
    """The entries of a text, in order.

    Raises:
        PreheatError: a line of another form, a tag, an anchor, a list without end, with file and line.
    """
    reader = _Reader(file)
    for number, raw in enumerate(text.splitlines(), 1):
        reader.line(raw, number)
    return reader.entries


class _Reader:
    def __init__(self, file: str | None) -> None:
        self.file = file
        self.entries: list[Entry] = []
        self.section = ""
        self.open: tuple[int, str, str, int] | None = None
        """Indent, section, key and line of a key that has no value yet."""
        self.block: int | None = None
        """Indent of a key whose block of text is being passed over."""

    def line(self, raw: str, number: int) -> None:
        indent = len(raw) - len(raw.lstrip())
        if self.block is not None and (not raw.strip() or indent > self.block):
            return
        self.block = None
        line = _without_comment(raw).strip()
        if not line or line == "---":
            return
        if self.open is not None and indent >= self.open[0] and line.startswith("- "):
            self._item(line[2:].strip(), number)
            return
        match = _LINE.match(line)
        if match is None:
            if self.open is not None and indent > self.open[0] and " " not in line:
                self._add(self.open[1], self.open[2], _values(self._plain(line, number)), self.open[3])
                self.open = None
                return
            refuse("megatron.yaml", f"{line[:60]!r} is no `key: value`", "", "One argument on each line", file=self.file, line=number)
        self._key(match["key"], (match["value"] or "").strip(), indent, number)

    def _key(self, key: str, value: str, indent: int, number: int) -> None:
        if not indent:
            self.section = ""
        elif self.open is not None and indent > self.open[0]:
            self.section = self.open[2]
        self.open = None
        if value in ("|", ">", "|-", ">-"):
            self.block = indent
        elif value:
            self._add(self.section, key, _values(self._plain(value, number)), number)
        else:
            self.open = (indent, self.section, key, number)

    def _item(self, text: str, number: int) -> None:
        """An entry of a list in lines."""
        assert self.open is not None
        _, section, key, line = self.open
        value = _unquoted(self._plain(text, number))
        if self.entries and (self.entries[-1].section, self.entries[-1].key, self.entries[-1].line) == (section, key, line):
            before = self.entries.pop()
            if len(before.values) >= _MOST_ITEMS:
                refuse(
                    "megatron.yaml", f"more than {_MOST_ITEMS:_} values of {key}", "", "This is no argument", file=self.file, line=number
                )
            self.entries.append(Entry(section, key, (*before.values, value), line))
        else:
            self._add(section, key, (value,), line)

    def _add(self, section: str, key: str, values: tuple[str, ...], number: int) -> None:
        self.entries.append(Entry(section, key, values, number))

    def _plain(self, value: str, number: int) -> str:
        if value[:1] in ("!", "&", "*"):
            refuse("megatron.yaml", f"{value[:40]!r} is a YAML tag or anchor", "a plain value", "Write it out", file=self.file, line=number)
        return value


def _values(text: str) -> tuple[str, ...]:
    """The words of a plain value, one value in quotes, or those of a list: `[a, b]`; a list expression `([0]*3+[1])` is one."""
    bare = _unquoted(text)
    if bare.startswith("[") and bare.endswith("]") and "[" not in bare[1:] and "*" not in bare:
        return tuple(_unquoted(part) for part in re.split(r"[,\s]+", bare[1:-1].strip()) if part)
    return (bare,) if bare != text else tuple(text.split())


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
