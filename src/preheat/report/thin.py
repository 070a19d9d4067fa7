"""Fewer points for the same picture: first, smallest, largest and last of each pixel column (M4, Jugel et al., VLDB 2014)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby

Point = tuple[float, float]


def runs(points: Iterable[tuple[float, float | None]]) -> list[list[Point]]:
    """Split at values that are absent or not finite: a line must not bridge them."""
    found: list[list[Point]] = [[]]
    for x, y in points:
        if y is not None and math.isfinite(y):
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return found if found[-1] else found[:-1]


def thin(points: list[Point], low: float, high: float, columns: int) -> list[Point]:
    """At most four points for each of `columns` equal parts of [low, high]; `points` are ordered by x. No spike is lost."""
    width = (high - low) / columns
    kept: list[Point] = []
    for _, group in groupby(points, key=lambda point: int((point[0] - low) / width)):
        column = list(group)
        if len(column) <= 4:
            kept += column
            continue
        values = [y for _, y in column]
        wanted = {0, values.index(min(values)), values.index(max(values)), len(column) - 1}
        kept += [column[index] for index in sorted(wanted)]
    return kept
