"""On which line of a TOML file a key stands: what `tomllib` does not tell."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'""")


def key_lines(text: str) -> dict[str, int]:
    """Dotted key -> line number (from 1), with entries of `[[table]]` addressed by number: `stage.0.until`.

    Keys inside inline tables and arrays get the line on which their value starts.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table: list[str] = []
    depth, quote = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if depth == 0 and not quote:
            header = _HEADER.match(line)
            if header:
                parts = _parts(header[2])
                table = _addressed(parts, counts)
                if header[1] == "[[":
                    name = ".".join(table)
                    counts[name] = counts.get(name, -1) + 1
                    table = [*table, str(counts[name])]
                lines.setdefault(".".join(table), number)
                continue
            key = _KEY.match(line)
            if key:
                lines.setdefault(".".join([*table, *_parts(key[1])]), number)
        depth, quote = _scan(line, depth, quote)
    return lines


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


def _addressed(parts: list[str], counts: dict[str, int]) -> list[str]:
    """The parts of a header with the number of the current entry after each list of tables on the way."""
    path: list[str] = []
    for position, part in enumerate(parts):
        path.append(part)
        name = ".".join(path)
        if name in counts and position < len(parts) - 1:
            path.append(str(counts[name]))
    return path


def _scan(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Bracket depth and open multi-line quote after a line."""
    position = 0
    while position < len(line):
        if quote:
            end = line.find(quote, position)
            if end < 0:
                return depth, quote if len(quote) == 3 else ""
            position, quote = end + len(quote), ""
            continue
        character = line[position]
        if character == "#":
            break
        if character in "\"'":
            quote = character * 3 if line.startswith(character * 3, position) else character
            position += len(quote)
            if quote == '"':
                match = re.compile(r'(?:[^"\\]|\\.)*"').match(line, position)
                position, quote = (match.end(), "") if match else (len(line), "")
            continue
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(character, 0)
        position += 1
    return depth, quote if len(quote) == 3 else ""
