"""Charts of runs as SVG elements: lines, areas, ranges and bars, without a script.

Colours are classes of the page's style sheet, one set for light and one for dark: `c0`... distinguish runs (after Okabe
and Ito, for people with any kind of colour vision, and with dashes), `s0`... are steps of one scale (viridis). Elements
are of `xml.etree`, so that no text of a trace is ever markup.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
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
    width: int = 460
    height: int = 170
    left: int = 52
    above: int = 22
    below: int = 24
    right: int = 18

    def x(self, ms: float) -> float:
        """Return the abscissa of a time."""
        return self.left + (self.width - self.left - self.right) * ms / self.to_ms

    def y(self, value: float) -> float:
        """Return the ordinate of a value."""
        return self.height - self.below - (self.height - self.above - self.below) * value / self.top


def empty_chart(axes: Axes, title: str) -> Element:
    """Return a chart with title, grid and marks of both axes."""
    chart = Element("svg", {"viewBox": f"0 0 {axes.width} {axes.height}", "role": "img", "aria-label": title})
    SubElement(chart, "title").text = title
    _draw_text(chart, axes.left, 13, title, "name")
    _draw_text(chart, axes.width - axes.right, 13, axes.unit, "unit")
    for value in value_marks(axes.top, 4 if axes.height < 220 else 6):
        _draw_segment(chart, (axes.left, axes.y(value), axes.width - axes.right, axes.y(value)), "grid")
        _draw_text(chart, axes.left - 6, axes.y(value) + 4, f"{value:,g}", "end")
    for ms, text in time_marks(axes.to_ms, 6 if axes.width < 600 else 10):
        _draw_segment(chart, (axes.x(ms), axes.y(0), axes.x(ms), axes.y(0) + 4), "axis")
        _draw_text(chart, axes.x(ms), axes.height - 7, text, "middle")
    _draw_segment(chart, (axes.left, axes.y(0), axes.width - axes.right, axes.y(0)), "axis")
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


def range_chart(title: str, rows: Sequence[tuple[str, Mapping[str, float | None]]], width: int = 940) -> Element:
    """Return a chart of a line from p50 to p99 for each row, on a logarithmic axis of ms.

    rows: (name, values of p50, p95, p99 and mean)
    """
    values = [value for _, values in rows for value in values.values() if value]
    low, high = math.log10(max(1, min(values, default=1))) - 0.05, math.log10(max(values, default=10)) + 0.05
    left, height = 190, 40 + 26 * len(rows)
    chart = Element("svg", {"viewBox": f"0 0 {width} {height + 18}", "role": "img", "aria-label": title})
    SubElement(chart, "title").text = title

    def x(ms: float) -> float:
        return left + (width - left - 20) * max(0.0, math.log10(max(1, ms)) - low) / (high - low)

    for ms, text in _log_marks(10**low, 10**high):
        _draw_segment(chart, (x(ms), 14, x(ms), height - 14), "grid")
        _draw_text(chart, x(ms), height + 6, text, "middle")
    for index, (name, statistics) in enumerate(rows):
        y = 32 + 26 * index
        _draw_text(chart, left - 14, y + 4, name, "end")
        abscissas = {statistic: x(value) for statistic, value in statistics.items() if value is not None}
        if "p50" in abscissas and "p99" in abscissas:
            _draw_segment(chart, (abscissas["p50"], y, abscissas["p99"], y), "span")
        for statistic, abscissa in abscissas.items():
            _draw_mark(chart, statistic, abscissa, y)
    return chart


def gantt_chart(title: str, bars: Sequence[Mapping[str, Any]], size: tuple[int, int], to_ms: float) -> Element:
    """Return a chart of nodes from top to bottom, each with a row for every GPU.

    size: number of nodes, and of GPUs of each
    """
    nodes, gpus = size
    row_height = max(2, min(8, 320 // max(1, nodes * gpus)))
    node_height = row_height * gpus + 3
    axes = Axes(to_ms=to_ms, top=1, unit="", width=940, height=46 + nodes * node_height, left=52)
    chart = Element("svg", {"viewBox": f"0 0 {axes.width} {axes.height}", "role": "img", "aria-label": title})
    SubElement(chart, "title").text = title
    _draw_text(chart, axes.left, 13, title, "name")
    label_every = max(1, math.ceil(12 / node_height))
    for node in range(nodes):
        y = axes.above + node * node_height
        free = {"class": "free", "x": f"{axes.left}", "width": f"{axes.width - axes.left - axes.right}"}
        SubElement(chart, "rect", {**free, "y": f"{y}", "height": f"{row_height * gpus}"})
        if node % label_every == 0:
            _draw_text(chart, axes.left - 6, y + row_height * gpus / 2 + 4, f"n{node}", "end")
    for bar in bars:
        _draw_bar(chart, axes, bar, (row_height, node_height))
    for ms, text in time_marks(to_ms, 10):
        _draw_text(chart, axes.x(ms), axes.height - 7, text, "middle")
    return chart


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


def _log_marks(low_ms: float, high_ms: float) -> Iterator[tuple[float, str]]:
    """Return round times of a logarithmic axis."""
    seconds = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (21600, "6 h"))
    days = ((86400, "1 d"), (259200, "3 d"), (864000, "10 d"), (2592000, "30 d"), (8640000, "100 d"))
    return ((s * SECOND_MS, text) for s, text in (*seconds, *days) if low_ms <= s * SECOND_MS <= high_ms)


def _stair_corners(axes: Axes, step_ms: float, values: Sequence[float]) -> Iterator[str]:
    """Yield the corners of means over intervals."""
    for index, value in enumerate(values):
        y = f"{axes.y(value):.1f}"
        yield f"{axes.x(index * step_ms):.1f},{y}"
        yield f"{axes.x((index + 1) * step_ms):.1f},{y}"


def _draw_bar(chart: Element, axes: Axes, bar: Mapping[str, Any], heights: tuple[int, int]) -> None:
    """Draw a job on a node. `heights`: of a GPU's row and of a node."""
    row_height, node_height = heights
    job, node = bar["job"], bar["node"]
    begin, end = axes.x(bar["from_ms"]), axes.x(bar["to_ms"])
    for first, count in _blocks(bar["devices"]):
        rectangle = {
            "x": f"{begin:.1f}",
            "y": f"{axes.above + node * node_height + first * row_height}",
            "width": f"{max(0.3, end - begin):.1f}",
            "height": f"{count * row_height}",
        }
        box = SubElement(chart, "rect", {"class": f"job c{job % COLOURS}", **rectangle})
        SubElement(box, "title").text = f"job {job} of {bar['tenant']}"


def _blocks(devices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, number) of each block of adjacent devices."""
    for _, run in groupby(enumerate(devices), key=lambda indexed: indexed[1] - indexed[0]):
        block = [device for _, device in run]
        yield block[0], len(block)


def _draw_mark(chart: Element, statistic: str, x: float, y: float) -> None:
    shapes = {
        "p50": f"M{x:.1f},{y - 6}v12",
        "p95": f"M{x - 4:.1f},{y - 4}h8v8h-8z",
        "p99": f"M{x - 4:.1f},{y - 5}l8,5l-8,5z",
        "mean": f"M{x - 5:.1f},{y}l5,-6l5,6l-5,6z",
    }
    path = SubElement(chart, "path", {"class": f"mark {statistic}", "d": shapes[statistic]})
    SubElement(path, "title").text = statistic


def _draw_segment(chart: Element, ends: tuple[float, float, float, float], css_class: str) -> None:
    """Draw a straight line. `ends`: x and y of one end, x and y of the other."""
    coordinates = {name: f"{value:.1f}" for name, value in zip(("x1", "y1", "x2", "y2"), ends, strict=True)}
    SubElement(chart, "line", {"class": css_class, **coordinates})


def _draw_text(chart: Element, x: float, y: float, text: str, css_class: str) -> None:
    SubElement(chart, "text", {"class": css_class, "x": f"{x:.1f}", "y": f"{y:.1f}"}).text = text
