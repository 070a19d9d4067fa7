"""A JSON tree as a readable document: the outer keys become headings, the inner ones `Key: value` lines."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator

_BREAK = re.compile(r"</?(?:br|p|div|li|tr)\b[^<>]{0,500}>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:a|b|i|u|em|ol|ul|td|th|sub|sup|span|small|strong|table|tbody|h[1-6])\b[^<>]{0,500}>", re.IGNORECASE)
_LABEL_END = re.compile(r"(?: \d+)?:")
_TRANSPARENT = frozenset({"text", "value", "content"})
"""Keys that only say "here is the value of the key above"."""


def render(text: str) -> str | None:
    """The document, or None if the text is no JSON. Null and empty values have nothing to show."""
    try:
        tree = json.loads(text, strict=False, parse_int=str)  # As they are written, of however many digits.
        return "\n".join(_section(tree, 1)).strip()
    except (ValueError, RecursionError):
        return None


def _section(node: object, level: int) -> Iterator[str]:
    """A heading for every key with named keys below, as long as the tree is more than two levels deep; then lines."""
    if not isinstance(node, dict):
        yield from _lines("", node, "")
        return
    deep = _reaches(node, 3)
    for key, value in node.items():
        if deep and isinstance(value, dict) and _reaches(value, 1):
            yield f"\n{'#' * level} {_plain(key)}\n"
            yield from _section(value, level + 1)
        else:
            yield from _lines(key, value, "")


def _reaches(node: object, levels: int) -> bool:
    """Whether that many levels of keys with a name of their own lie below a node."""
    if levels <= 0:
        return True
    if isinstance(node, dict):
        return any(_reaches(value, levels - (key.strip() not in _TRANSPARENT)) for key, value in node.items())
    return isinstance(node, list) and any(_reaches(value, levels) for value in node)


def _lines(key: str, node: object, indent: str) -> Iterator[str]:
    """`Key: value`, and what belongs under it with a deeper indent."""
    name = _plain(key)
    if isinstance(node, dict):
        own = [inner for inner, value in node.items() if inner.strip() in _TRANSPARENT and not isinstance(value, dict | list)]
        value_key = own[0] if len(own) == 1 else None
        rest = [(inner, value) for inner, value in node.items() if inner != value_key]
        if value_key is not None:
            yield from _labelled(name, node[value_key], indent)
        elif name and rest:
            yield f"{indent}{name}:"
        for inner, value in rest:
            yield from _lines(inner, value, indent + "  " * bool(name))
    elif isinstance(node, list):
        if name and node:
            yield f"{indent}{name}:"
        for value in node:
            if isinstance(value, dict | list):
                yield from _lines("", value, indent + "  " * bool(name))
            else:
                yield from _paragraphs("- ", _shown(value), indent)
    else:
        yield from _labelled(name, node, indent)


def _labelled(name: str, value: object, indent: str) -> Iterator[str]:
    """The value under its name; the name stays away where the value brings it along, as in `note: estimates vary`."""
    text = _shown(value)
    outer, colon, label = name.rpartition(":")
    label = label.strip().lower()
    brought = label and text[: len(label)].lower() == label and _LABEL_END.match(text, len(label))
    prefix = (f"{outer}: " if colon else "") if brought else f"{name}: " if name else ""
    yield from _paragraphs(prefix, text, indent)


def _paragraphs(prefix: str, text: str, indent: str) -> Iterator[str]:
    """One line a paragraph: the first with the prefix, the others deeper; nothing for an empty text."""
    first, *rest = [line for line in text.split("\n") if line] or [""]
    if first:
        yield indent + prefix + first
    for line in rest:
        yield f"{indent}  {line}"


def _shown(value: object) -> str:
    return "" if value is None else _plain(value if isinstance(value, str) else json.dumps(value))


def _plain(text: str) -> str:
    """Without simple HTML: tags go, breaks and paragraphs are line ends, entities are characters."""
    if "<" in text:
        text = _TAG.sub("", _BREAK.sub("\n", text))
    return "\n".join(" ".join(line.split()) for line in html.unescape(text).split("\n")).strip()
