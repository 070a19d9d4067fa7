"""Line charts as inline SVG that fill whatever width they get: curves are stretched, text and strokes are not.

Positions along x are percentages, positions along y are pixels; colours and strokes are classes of the page's style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markupsafe import Markup

from preheat.report.scale import Scale, fit, number
from preheat.report.thin import Point, runs, thin

COLOURS = 8
"""Classes `c0` to `c7`; beyond them the colours repeat with a dashed line."""
_COLUMNS = 600
_HOVER_COLUMNS = 72
_MAX_MARKS = 120
_TICK_HEIGHT = 15
_WIDTH = 1000
"""Units of the stretched coordinate system along x."""


@dataclass(frozen=True)
class Line:
    """A curve over (tokens, value); a value that is absent or not finite leaves a gap."""

    label: str
    points: Sequence[tuple[float, float | None]]
    colour: int | None = None
    """Index of the palette; None is the faint ink of a background curve."""
    step: bool = False
    """A value holds until the next one."""
    dots: bool = False
    """Each point is also a mark with its own title, as long as they are not too many to be told apart."""
    line: bool = True
    """The marks are joined."""

    @property
    def marked(self) -> bool:
        """The points are drawn as marks."""
        return self.dots and len(self.points) <= _MAX_MARKS


@dataclass(frozen=True)
class Band:
    """A coloured stretch of the x axis."""

    label: str
    start: float
    end: float
    colour: int


@dataclass(frozen=True)
class Mark:
    """Something that happened at `x`: a thin vertical line with a title."""

    x: float
    title: str
    alarm: bool


@dataclass(frozen=True)
class Chart:
    """A figure of the page. `unit` says what y is measured in."""

    title: str
    unit: str
    lines: Sequence[Line]
    x_end: float
    bands: Sequence[Band] = ()
    marks: Sequence[Mark] = ()
    note: str = ""
    y: Literal["fit", "zero", "log"] = "fit"
    percent: bool = False
    height: int = 190
    legend: Literal["lines", "bands", "none"] = "none"
    levels: Sequence[float] = ()
    """Where the y ticks stand, if not at round numbers."""

    @property
    def empty(self) -> bool:
        """There is no value to draw."""
        return not any(runs(line.points) for line in self.lines)

    def text(self, value: float) -> str:
        """A value of this chart as people read it."""
        return f"{number(value * 100, 3)}%" if self.percent else number(value)


def colour_class(index: int | None) -> str:
    """The classes of a palette index."""
    if index is None:
        return "faint"
    return f"c{index % COLOURS}" + (" dashed" if index >= COLOURS else "")


def svg(chart: Chart) -> Markup:
    """The chart as an SVG element."""
    x = Scale(0.0, chart.x_end)
    values = [y for line in chart.lines for run in runs(line.points) for _, y in run]
    y = fit(values, zero=chart.y == "zero", log=chart.y == "log")
    pen = _Pen(chart, x, y)
    parts = [
        *(pen.band(band) for band in chart.bands),
        *pen.grid(),
        pen.curves(),
        *pen.marks(),
        *pen.hover(),
        *(pen.dots(line) for line in chart.lines if line.marked),
    ]
    head = Markup('<svg class="chart" role="img" aria-label="{}" width="100%" height="{}">').format(
        f"{chart.title}, {chart.unit}, over tokens", chart.height
    )
    return head + Markup("").join(parts) + Markup("</svg>")


@dataclass(frozen=True)
class _Pen:
    chart: Chart
    x: Scale
    y: Scale

    def _left(self, value: float) -> str:
        return f"{self.x.share(value) * 100:.2f}%"

    def _top(self, value: float) -> float:
        return round((1 - self.y.share(value)) * self.chart.height, 1)

    def band(self, band: Band) -> Markup:
        width = f"{(self.x.share(band.end) - self.x.share(band.start)) * 100:.2f}%"
        return Markup('<rect class="band {}" x="{}" width="{}" y="0" height="{}"><title>{}</title></rect>').format(
            colour_class(band.colour), self._left(band.start), width, self.chart.height, f"stage {band.label}"
        )

    def grid(self) -> list[Markup]:
        height = self.chart.height
        row = Markup('<line class="grid" x1="0" x2="100%" y1="{0}" y2="{0}"/><text class="ytick" x="-8" y="{0}" dy="0.35em">{1}</text>')
        column = Markup('<text class="xtick" x="{}" y="{}">{}</text>')
        wanted = 5 if height > 250 else 4
        ticks = self._apart(self.chart.levels) or self.y.ticks(wanted)
        rows = [row.format(self._top(tick), self.chart.text(tick)) for tick in ticks]
        columns = [column.format(self._left(tick), height + 18, number(tick)) for tick in self.x.ticks()]
        return [*rows, Markup('<line class="axis" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(height), *columns]

    def _apart(self, levels: Sequence[float]) -> list[float]:
        """The highest level and every lower one whose text does not touch the one above it."""
        kept: list[float] = []
        for level in sorted(levels, reverse=True):
            if not kept or self._top(level) - self._top(kept[-1]) >= _TICK_HEIGHT:
                kept.append(level)
        return kept

    def curves(self) -> Markup:
        frame = Markup('<svg viewBox="0 0 {} {}" preserveAspectRatio="none" width="100%" height="{}">').format(
            _WIDTH, self.chart.height, self.chart.height
        )
        curve = Markup('<path class="curve {}" d="{}"/>')
        paths = [curve.format(colour_class(line.colour), self._path(line)) for line in self.chart.lines if line.line or not line.marked]
        return frame + Markup("").join(paths) + Markup("</svg>")

    def _path(self, line: Line) -> str:
        drawn = []
        for run in runs(line.points):
            points = thin(_corners(run) if line.step else run, self.x.low, self.x.high, _COLUMNS)
            places = [f"{self.x.share(px) * _WIDTH:.1f} {self._top(py):g}" for px, py in points]
            # A lone point is a line of no length, which round caps show as a dot.
            drawn.append("M" + "L".join(places if len(places) > 1 else places * 2))
        return "".join(drawn)

    def dots(self, line: Line) -> Markup:
        dot = Markup('<circle class="dot {}" cx="{}" cy="{}" r="3.5"><title>{}</title></circle>')
        return Markup("").join(
            dot.format(colour_class(line.colour), self._left(x), self._top(y), f"{line.label}: {self.chart.text(y)}\nat {number(x)} tokens")
            for run in runs(line.points)
            for x, y in run
        )

    def marks(self) -> list[Markup]:
        """One line for all marks that share a place, so that thousands of them stay readable and small."""
        shape = Markup('<g class="mark{}"><line x1="{}" x2="{}" y1="0" y2="{}"/><title>{}</title></g>')
        places: dict[str, list[Mark]] = {}
        for mark in self.chart.marks:
            places.setdefault(self._left(mark.x), []).append(mark)
        return [
            shape.format(
                " alarm" if any(mark.alarm for mark in marks) else "",
                place,
                place,
                self.chart.height,
                marks[0].title + (f"\nand {len(marks) - 1:,} more here" if len(marks) > 1 else ""),
            )
            for place, marks in places.items()
        ]

    def hover(self) -> list[Markup]:
        """Invisible columns that tell the range of each curve where the pointer rests."""
        width = self.x.high / _HOVER_COLUMNS
        texts: dict[int, list[str]] = {}
        for line in self.chart.lines:
            if line.marked:
                continue
            bins: dict[int, list[float]] = {}
            for run in runs(line.points):
                for x, y in run:
                    bins.setdefault(min(int(x / width), _HOVER_COLUMNS - 1), []).append(y)
            for index, values in bins.items():
                texts.setdefault(index, []).append(f"{line.label}: {self._range(values)}")
        shape = Markup('<rect class="hover" x="{:.2f}%" width="{:.2f}%" y="0" height="{}"><title>{}</title></rect>')
        share = 100 / _HOVER_COLUMNS
        heads = {index: f"{number(index * width)} to {number((index + 1) * width)} tokens" for index in texts}
        return [
            shape.format(index * share, share, self.chart.height, "\n".join([heads[index], *lines]))
            for index, lines in sorted(texts.items())
        ]

    def _range(self, values: list[float]) -> str:
        low, high = self.chart.text(min(values)), self.chart.text(max(values))
        return low if low == high else f"{low} to {high}"


def _corners(points: list[Point]) -> list[Point]:
    """The corners of a staircase in which a value holds up to its own x, as a step's value does that ends there."""
    corners = [points[0]]
    for (x, before), (_, after) in pairwise(points):
        if before != after:
            corners += [(x, before), (x, after)]
    return [*corners, points[-1]]
