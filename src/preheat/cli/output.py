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
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def complain(problems: Sequence[Problem]) -> None:
    """Problems on standard error, one paragraph each."""
    for problem in problems:
        print(f"{problem.severity}: {problem}", file=sys.stderr)


def problem_json(problem: Problem) -> dict[str, Any]:
    """A problem in the shape that `--json` promises."""
    value = asdict(problem)
    return {key: value[key] for key in ("rule", "severity", "where", "got", "want", "fix", "source")}


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join((indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip() for row in rows)
