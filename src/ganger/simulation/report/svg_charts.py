"""Pictures of runs as SVG elements: lines, areas, ranges and bars, without a script. Pure. Called by
`simulation.report.html_report`.

Colours are classes that the page's style sheet has, one set for light and one for dark: `c0`... tell runs apart (after
Okabe and Ito, so that people with any kind of colour vision tell them apart, and by dashes), `s0`... are steps
of one scale (viridis). Elements are of `xml.etree`, so that no text of a trace is ever markup.
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
ROUND_MS: Final = tuple(
    many * unit_ms
    for unit_ms, manys in (
        (SECOND_MS, (1, 5, 15, 30)),
        (MINUTE_MS, (1, 5, 15, 30)),
        (HOUR_MS, (1, 3, 6, 12)),
        (DAY_MS, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
    )
    for many in manys
)
"""Distances between marks of a time axis."""
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Where a picture is drawn: from 0 to `to_ms` and from 0 to `top`, in what `unit` says."""

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
        """Where a moment is."""
        return self.left + (self.width - self.left - self.right) * ms / self.to_ms

    def y(self, value: float) -> float:
        """Where a value is."""
        return self.height - self.below - (self.height - self.above - self.below) * value / self.top


def framed(axes: Axes, title: str) -> Element:
    """An empty picture: title, grid, marks of both axes."""
    picture = Element("svg", {"viewBox": f"0 0 {axes.width} {axes.height}", "role": "img", "aria-label": title})
    SubElement(picture, "title").text = title
    _text(picture, axes.left, 13, title, "name")
    _text(picture, axes.width - axes.right, 13, axes.unit, "unit")
    for value in marks(axes.top, 4 if axes.height < 220 else 6):
        _line(picture, (axes.left, axes.y(value), axes.width - axes.right, axes.y(value)), "grid")
        _text(picture, axes.left - 6, axes.y(value) + 4, f"{value:,g}", "end")
    for ms, text in time_marks(axes.to_ms, 6 if axes.width < 600 else 10):
        _line(picture, (axes.x(ms), axes.y(0), axes.x(ms), axes.y(0) + 4), "axis")
        _text(picture, axes.x(ms), axes.height - 7, text, "middle")
    _line(picture, (axes.left, axes.y(0), axes.width - axes.right, axes.y(0)), "axis")
    return picture


def draw_line(picture: Element, axes: Axes, points: Sequence[tuple[float, float | None]], look: str) -> None:
    """A line through (ms, value), broken where there is no value."""
    words = []
    for has_value, stretch in groupby(points, key=lambda point: point[1] is not None):
        if has_value:
            there = " ".join(f"{axes.x(ms):.1f},{axes.y(value or 0):.1f}" for ms, value in stretch)
            words.append(f"M{there}")
    SubElement(picture, "path", {"class": f"line {look}", "d": " ".join(words)})


def draw_stack(picture: Element, axes: Axes, step_ms: float, layers: Mapping[str, Sequence[float]], kind: str) -> None:
    """Areas on each other, the first at the bottom; `kind`: of the classes of colours, `s` or `c`."""
    below = [0.0] * len(next(iter(layers.values()), ()))
    for at, (name, values) in enumerate(layers.items()):
        above = [low + value for low, value in zip(below, values, strict=True)]
        if any(values):
            edge = [*_stairs(axes, step_ms, above), *reversed(list(_stairs(axes, step_ms, below)))]
            area = SubElement(picture, "path", {"class": f"area {kind}{at % 8}", "d": f"M{' '.join(edge)}Z"})
            SubElement(area, "title").text = name
        below = above


def ranges(title: str, rows: Sequence[tuple[str, Mapping[str, float | None]]], width: int = 940) -> Element:
    """Of each row a line from p50 to p99, with marks at p50, p95, p99 and the mean (ms), on a logarithmic axis."""
    values = [value for _, of in rows for value in of.values() if value]
    low, high = math.log10(max(1, min(values, default=1))) - 0.05, math.log10(max(values, default=10)) + 0.05
    left, height = 190, 40 + 26 * len(rows)
    picture = Element("svg", {"viewBox": f"0 0 {width} {height + 18}", "role": "img", "aria-label": title})
    SubElement(picture, "title").text = title

    def x(ms: float) -> float:
        return left + (width - left - 20) * max(0.0, math.log10(max(1, ms)) - low) / (high - low)

    for ms, text in _log_marks(10**low, 10**high):
        _line(picture, (x(ms), 14, x(ms), height - 14), "grid")
        _text(picture, x(ms), height + 6, text, "middle")
    for at, (name, of) in enumerate(rows):
        y = 32 + 26 * at
        _text(picture, left - 14, y + 4, name, "end")
        there = {word: x(value) for word, value in of.items() if value is not None}
        if "p50" in there and "p99" in there:
            _line(picture, (there["p50"], y, there["p99"], y), "span")
        for word, where in there.items():
            _mark(picture, word, where, y)
    return picture


def gantt(title: str, bars: Sequence[Mapping[str, Any]], size: tuple[int, int], to_ms: float) -> Element:
    """Nodes from top to bottom, each with a row for every GPU; jobs that follow each other differ in colour. `size`:
    nodes, and GPUs of each."""
    nodes, gpus = size
    row = max(2, min(8, 320 // max(1, nodes * gpus)))
    node_height = row * gpus + 3
    axes = Axes(to_ms=to_ms, top=1, unit="", width=940, height=46 + nodes * node_height, left=52)
    picture = Element("svg", {"viewBox": f"0 0 {axes.width} {axes.height}", "role": "img", "aria-label": title})
    SubElement(picture, "title").text = title
    _text(picture, axes.left, 13, title, "name")
    every = max(1, math.ceil(12 / node_height))
    for node in range(nodes):
        y = axes.above + node * node_height
        free = {"class": "free", "x": f"{axes.left}", "width": f"{axes.width - axes.left - axes.right}"}
        SubElement(picture, "rect", {**free, "y": f"{y}", "height": f"{row * gpus}"})
        if node % every == 0:
            _text(picture, axes.left - 6, y + row * gpus / 2 + 4, f"n{node}", "end")
    for bar in bars:
        _bar(picture, axes, bar, (row, node_height))
    for ms, text in time_marks(to_ms, 10):
        _text(picture, axes.x(ms), axes.height - 7, text, "middle")
    return picture


def marks(top: float, many: int) -> list[float]:
    """Round values from 0 to `top`, at most about `many`."""
    size = 10 ** math.floor(math.log10(top / many)) if top > 0 else 1
    step = next(size * times for times in (1, 2, 5, 10) if size * times * many >= top)
    return [round(step * at, 10) for at in range(int(top / step + 1e-9) + 1)]


def time_marks(to_ms: float, many: int) -> list[tuple[float, str]]:
    """Round moments from 0 on, and what to call them."""
    step_ms = next((each for each in ROUND_MS if each * many >= to_ms), ROUND_MS[-1])
    unit_ms, unit = next(((ms, name) for ms, name in UNITS if step_ms % ms == 0), UNITS[-1])
    return [(at * step_ms, f"{at * step_ms // unit_ms} {unit}") for at in range(int(to_ms // step_ms) + 1)]


def _log_marks(low_ms: float, high_ms: float) -> Iterator[tuple[float, str]]:
    """Times that people have words for."""
    seconds = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (21600, "6 h"))
    days = ((86400, "1 d"), (259200, "3 d"), (864000, "10 d"), (2592000, "30 d"), (8640000, "100 d"))
    return ((s * SECOND_MS, text) for s, text in (*seconds, *days) if low_ms <= s * SECOND_MS <= high_ms)


def _stairs(axes: Axes, step_ms: float, values: Sequence[float]) -> Iterator[str]:
    """The corners of means over stretches of time."""
    for at, value in enumerate(values):
        y = f"{axes.y(value):.1f}"
        yield f"{axes.x(at * step_ms):.1f},{y}"
        yield f"{axes.x((at + 1) * step_ms):.1f},{y}"


def _bar(picture: Element, axes: Axes, bar: Mapping[str, Any], heights: tuple[int, int]) -> None:
    row, node_height = heights
    job, node = bar["job"], bar["node"]
    begin, end = axes.x(bar["from_ms"]), axes.x(bar["to_ms"])
    for first, many in _blocks(bar["devices"]):
        where = {
            "x": f"{begin:.1f}",
            "y": f"{axes.above + node * node_height + first * row}",
            "width": f"{max(0.3, end - begin):.1f}",
            "height": f"{many * row}",
        }
        box = SubElement(picture, "rect", {"class": f"job c{job % COLOURS}", **where})
        SubElement(box, "title").text = f"job {job} of {bar['tenant']}"


def _blocks(devices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of devices beside each other."""
    for _, run in groupby(enumerate(devices), key=lambda each: each[1] - each[0]):
        block = [device for _, device in run]
        yield block[0], len(block)


def _mark(picture: Element, word: str, x: float, y: float) -> None:
    shapes = {
        "p50": f"M{x:.1f},{y - 6}v12",
        "p95": f"M{x - 4:.1f},{y - 4}h8v8h-8z",
        "p99": f"M{x - 4:.1f},{y - 5}l8,5l-8,5z",
        "mean": f"M{x - 5:.1f},{y}l5,-6l5,6l-5,6z",
    }
    SubElement(SubElement(picture, "path", {"class": f"mark {word}", "d": shapes[word]}), "title").text = word


def _line(picture: Element, ends: tuple[float, float, float, float], look: str) -> None:
    """`ends`: x and y of the one, x and y of the other."""
    where = {name: f"{value:.1f}" for name, value in zip(("x1", "y1", "x2", "y2"), ends, strict=True)}
    SubElement(picture, "line", {"class": look, **where})


def _text(picture: Element, x: float, y: float, text: str, look: str) -> None:
    SubElement(picture, "text", {"class": look, "x": f"{x:.1f}", "y": f"{y:.1f}"}).text = text
