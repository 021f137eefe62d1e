"""The picture of a sweep: a point for each run in two measures, and its Pareto front, as an SVG file of its own.

Elements are of `xml.etree`, so that no text of an argument is ever markup. Axes show the range of the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from ganger.model.views.simulation_figures import Figure
from ganger.simulation.report.svg_charts import time_marks, value_marks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 96, 24, 40, 56
MARKS: Final = 5
LABELLED: Final = 40
"""Points on the front that have their names beside them."""
STYLE: Final = """
svg { background: #fff } text { font: 12px system-ui, sans-serif; fill: #1c1e21 }
.mark { fill: #5b6168 } .middle { text-anchor: middle } .end { text-anchor: end }
.grid { stroke: #d9dce0 } .point { fill: #9aa0a6 } .front { fill: #d55e00 }
.line { fill: none; stroke: #d55e00; stroke-width: 1.5 }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A point of the chart. `group`: the points that it is compared with."""

    name: str
    group: str
    x: float
    y: float
    is_on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """A linear scale from a range of values to a range of coordinates."""

    low: float
    high: float
    begin: float
    end: float

    def of(self, value: float) -> float:
        """Return the coordinate of a value."""
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)

    def marks(self, name: str, figure: Figure) -> list[tuple[float, str]]:
        """Return round values with their texts."""
        count = round(MARKS * self.high / (self.high - self.low))
        if "_ms" in name:
            return [(value, text) for value, text in time_marks(self.high, count) if value >= self.low]
        return [(value, figure.text(value)) for value in value_marks(self.high, count) if value >= self.low]


def pareto_chart(points: Sequence[ChartPoint], measures: Mapping[str, Figure]) -> str:
    """Return the picture. `measures`: figure of x and of y, by name."""
    (x_name, x_figure), (y_name, y_figure) = measures.items()
    size = {"width": f"{WIDTH}", "height": f"{HEIGHT}", "viewBox": f"0 0 {WIDTH} {HEIGHT}"}
    chart = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    SubElement(chart, "style").text = STYLE
    x_scale = _scale([point.x for point in points], LEFT, WIDTH - RIGHT)
    y_scale = _scale([point.y for point in points], HEIGHT - BOTTOM, TOP)
    for value, text in x_scale.marks(x_name, x_figure):
        x = x_scale.of(value)
        _draw_line(chart, (x, TOP, x, HEIGHT - BOTTOM))
        _draw_text(chart, x, HEIGHT - BOTTOM + 18, text, "mark middle")
    for value, text in y_scale.marks(y_name, y_figure):
        y = y_scale.of(value)
        _draw_line(chart, (LEFT, y, WIDTH - RIGHT, y))
        _draw_text(chart, LEFT - 8, y + 4, text, "mark end")
    _draw_text(chart, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, f"{x_name} ({_better(x_figure)} is better)", "middle")
    _draw_text(chart, 12, 22, f"{y_name} ({_better(y_figure)} is better)", "name")
    _draw_points(chart, points, x_scale, y_scale)
    return tostring(chart, encoding="unicode") + "\n"


def _draw_points(chart: Element, points: Sequence[ChartPoint], x_scale: _Scale, y_scale: _Scale) -> None:
    """Draw all points, and for each group a line through those on its front."""
    front = sorted((point for point in points if point.is_on_front), key=lambda point: (point.group, point.x, point.y))
    for _, group in groupby(front, key=lambda point: point.group):
        path = " ".join(f"{x_scale.of(point.x):.1f},{y_scale.of(point.y):.1f}" for point in group)
        SubElement(chart, "polyline", {"class": "line", "points": path})
    for point in points:
        place = {"cx": f"{x_scale.of(point.x):.1f}", "cy": f"{y_scale.of(point.y):.1f}", "r": "4"}
        circle = SubElement(chart, "circle", {"class": "front" if point.is_on_front else "point", **place})
        SubElement(circle, "title").text = point.name
    names: dict[tuple[float, float], list[str]] = {}
    for point in front[:LABELLED]:
        names.setdefault((round(x_scale.of(point.x)), round(y_scale.of(point.y))), []).append(point.name)
    for (x, y), names_of in names.items():
        is_right = x > (LEFT + WIDTH - RIGHT) / 2
        _draw_text(chart, x + (-7 if is_right else 7), y - 7, ", ".join(names_of), "end" if is_right else "begin")


def _scale(values: Sequence[float], begin: float, end: float) -> _Scale:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = max((high - low) * 0.05, high * 0.01) or 1.0
    return _Scale(low=max(0.0, low - margin), high=high + margin, begin=begin, end=end)


def _better(figure: Figure) -> str:
    return "more" if figure.best is max else "less"


def _draw_line(chart: Element, ends: tuple[float, float, float, float]) -> None:
    coordinates = {name: f"{value:.1f}" for name, value in zip(("x1", "y1", "x2", "y2"), ends, strict=True)}
    SubElement(chart, "line", {"class": "grid", **coordinates})


def _draw_text(chart: Element, x: float, y: float, text: str, css_class: str) -> None:
    SubElement(chart, "text", {"class": css_class, "x": f"{x:.1f}", "y": f"{y:.1f}"}).text = text
