"""Charts of runs over time as SVG elements, lines and areas, and what all charts are made of, without a script.

Colours are classes of the page's style sheet, one set for light and one for dark: `c0`... distinguish runs (after Okabe
and Ito, for people with any kind of colour vision, and with dashes), `s0`... are steps of one scale (viridis). Elements
are of `xml.etree`, so that no text of a trace is ever markup.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

COLOURS: Final = 6
UNITS: Final = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"))
TIME_STEPS_MS: Final = tuple(
    count * unit_ms
    for unit_ms, counts in (
        (SECOND_MS, (1, 5, 15, 30)),
        (MINUTE_MS, (1, 5, 15, 30)),
        (HOUR_MS, (1, 3, 6, 12)),
        (DAY_MS, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
    )
    for count in counts
)
"""Distances between marks of a time axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes of a chart: from 0 to `to_ms` and from 0 to `top`, in `unit`."""

    to_ms: float
    top: float
    unit: str
    width: int = 400
    height: int = 160
    left: int = 46
    above: int = 22
    below: int = 24
    right: int = 18

    def x(self, ms: float) -> float:
        """Return the abscissa of a time."""
        return self.left + (self.width - self.left - self.right) * ms / self.to_ms

    def y(self, value: float) -> float:
        """Return the ordinate of a value."""
        return self.height - self.below - (self.height - self.above - self.below) * value / self.top


def new_chart(width: float, height: float, title: str) -> Element:
    """Return a chart without content."""
    chart = Element("svg", {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": title})
    SubElement(chart, "title").text = title
    return chart


def empty_chart(axes: Axes, title: str) -> Element:
    """Return a chart with title, grid and marks of both axes."""
    chart = new_chart(axes.width, axes.height, title)
    draw_text(chart, axes.left, 13, title, "name")
    draw_text(chart, axes.width - axes.right, 13, axes.unit, "unit")
    for value in value_marks(axes.top, 4 if axes.height < 220 else 6):
        draw_segment(chart, (axes.left, axes.y(value), axes.width - axes.right, axes.y(value)), "grid")
        draw_text(chart, axes.left - 6, axes.y(value) + 4, f"{value:,g}", "end")
    for ms, text in time_marks(axes.to_ms, 6 if axes.width < 600 else 10):
        draw_segment(chart, (axes.x(ms), axes.y(0), axes.x(ms), axes.y(0) + 4), "axis")
        draw_text(chart, axes.x(ms), axes.height - 7, text, "middle")
    draw_segment(chart, (axes.left, axes.y(0), axes.width - axes.right, axes.y(0)), "axis")
    return chart


def draw_line(chart: Element, axes: Axes, points: Sequence[tuple[float, float | None]], classes: str) -> None:
    """Draw a line through (ms, value), interrupted where there is no value."""
    moves = []
    for has_value, stretch in groupby(points, key=lambda point: point[1] is not None):
        if has_value:
            coordinates = " ".join(f"{axes.x(ms):.1f},{axes.y(value or 0):.1f}" for ms, value in stretch)
            moves.append(f"M{coordinates}")
    SubElement(chart, "path", {"class": f"line {classes}", "d": " ".join(moves)})


def draw_stack(chart: Element, axes: Axes, step_ms: float, layers: Mapping[str, Sequence[float]], colours: str) -> None:
    """Draw areas on top of each other, the first at the bottom. `colours`: class prefix, `s` or `c`."""
    lower = [0.0] * len(next(iter(layers.values()), ()))
    for index, (name, values) in enumerate(layers.items()):
        upper = [low + value for low, value in zip(lower, values, strict=True)]
        if any(values):
            outline = [*_stair_corners(axes, step_ms, upper), *reversed(list(_stair_corners(axes, step_ms, lower)))]
            area = SubElement(chart, "path", {"class": f"area {colours}{index % 8}", "d": f"M{' '.join(outline)}Z"})
            SubElement(area, "title").text = name
        lower = upper


def value_marks(top: float, count: int) -> list[float]:
    """Return round values from 0 to `top`, about `count` at most."""
    size = 10 ** math.floor(math.log10(top / count)) if top > 0 else 1
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * count >= top)
    return [round(step * index, 10) for index in range(int(top / step + 1e-9) + 1)]


def time_marks(to_ms: float, count: int) -> list[tuple[float, str]]:
    """Return round times from 0 on with their texts, about `count` at most."""
    step_ms = next((step_ms for step_ms in TIME_STEPS_MS if step_ms * count >= to_ms), TIME_STEPS_MS[-1])
    unit_ms, unit = next(((ms, name) for ms, name in UNITS if step_ms % ms == 0), UNITS[-1])
    times_ms = (index * step_ms for index in range(int(to_ms // step_ms) + 1))
    return [(ms, f"{ms // unit_ms} {unit}") for ms in times_ms]


def _stair_corners(axes: Axes, step_ms: float, values: Sequence[float]) -> Iterator[str]:
    """Yield the corners of means over intervals."""
    for index, value in enumerate(values):
        y = f"{axes.y(value):.1f}"
        yield f"{axes.x(index * step_ms):.1f},{y}"
        yield f"{axes.x((index + 1) * step_ms):.1f},{y}"


def draw_segment(chart: Element, ends: tuple[float, float, float, float], css_class: str) -> None:
    """Draw a straight line. `ends`: x and y of one end, x and y of the other."""
    coordinates = {name: f"{value:.1f}" for name, value in zip(("x1", "y1", "x2", "y2"), ends, strict=True)}
    SubElement(chart, "line", {"class": css_class, **coordinates})


def draw_text(chart: Element, x: float, y: float, text: str, css_class: str) -> None:
    """Write a text that begins, ends or has its middle at a point, by its class."""
    SubElement(chart, "text", {"class": css_class, "x": f"{x:.1f}", "y": f"{y:.1f}"}).text = text
