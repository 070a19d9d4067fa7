"""How results and problems are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from preheat.errors import Problem


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    readable = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
    text = json.dumps(value, indent=2, ensure_ascii=not readable)
    print(text.encode("utf-8", "backslashreplace").decode("utf-8"))  # a file name need not be UTF-8


def visible(text: str) -> str:
    """A text from a file in one line, with line breaks, terminal commands and other unprintable characters as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def complain(problems: Sequence[Problem]) -> None:
    """Problems on standard error, one paragraph each."""
    for problem in problems:
        print(f"{problem.severity}: {visible(str(problem))}", file=sys.stderr)


def problem_json(problem: Problem) -> dict[str, Any]:
    """A problem in the shape that `--json` promises."""
    value = asdict(problem)
    return {key: value[key] for key in ("rule", "severity", "where", "got", "want", "fix", "source")}


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows in aligned columns."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join((indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip() for row in rows)
