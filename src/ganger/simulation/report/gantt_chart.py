"""The chart of nodes over time: which jobs were on which GPU, and when a node took none."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from ganger.model.units import format_duration
from ganger.simulation.report.svg_charts import (
    COLOURS,
    Axes,
    draw_segment,
    draw_text,
    new_chart,
    time_marks,
)

DOWNTIME: Final = {
    "lost": "lost",
    "spare": "held back as a spare",
    "maintenance": "in maintenance",
    "cordoned": "cordoned",
}
"""Reasons for which a node takes no jobs, and what the key calls them."""
HEIGHT: Final = 360
"""About the height of the rows, unless they would be too thin or thick."""
JOB_COLOURS: Final = COLOURS - 1
"""The last colour is grey, which would look like a lost node."""
LETTER: Final = 6.2
LONGEST_NAME: Final = 22
HATCH: Final = 6


def gantt_chart(title: str, gantt: Mapping[str, Any], to_ms: float) -> Element:
    """Return a chart of nodes from top to bottom, each with a row for every GPU; nodes without GPUs are not in it."""
    nodes: Sequence[Mapping[str, Any]] = gantt["nodes"]
    shown = [index for index, node in enumerate(nodes) if node["gpus"]]
    rows = sum(nodes[index]["gpus"] for index in shown)
    row_height = max(2, min(9, HEIGHT // max(1, rows)))
    tops, height = {}, 22
    for index in shown:
        tops[index] = height
        height += max(11, row_height * nodes[index]["gpus"]) + 4
    names = {index: _shortened(nodes[index]["name"]) for index in shown}
    left = 16 + LETTER * max(map(len, names.values()), default=0)
    axes = Axes(to_ms=to_ms, top=1, unit="", width=820, height=height + 22, left=round(left))
    chart = new_chart(axes.width, axes.height, title)
    draw_text(chart, axes.left, 13, title, "name")
    for index in shown:
        node_height = row_height * nodes[index]["gpus"]
        _draw_box(chart, "free", (axes.left, tops[index], axes.width - axes.left - axes.right, node_height))
        draw_text(chart, axes.left - 8, tops[index] + node_height / 2 + 4, names[index], "end")
    for ms, text in time_marks(to_ms, 10):
        draw_segment(chart, (axes.x(ms), 20, axes.x(ms), axes.height - 20), "grid")
        draw_text(chart, axes.x(ms), axes.height - 6, text, "middle")
    spans = [span for span in gantt["down"] if span["node"] in tops]
    for span in (span for span in spans if span["reason"] != "lost"):
        _draw_downtime(chart, axes, span, (tops[span["node"]], row_height * nodes[span["node"]]["gpus"]))
    for bar in gantt["bars"]:
        _draw_bar(chart, axes, bar, (tops[bar["node"]], row_height))
    # A failure that is not known yet has a job on the node: what counts is that the node is gone.
    for span in (span for span in spans if span["reason"] == "lost"):
        _draw_downtime(chart, axes, span, (tops[span["node"]], row_height * nodes[span["node"]]["gpus"]))
    return chart


def reasons_of(gantts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the reasons that occur in the charts, in the order of the key."""
    occurring = {span["reason"] for gantt in gantts for span in gantt["down"]}
    return [reason for reason in DOWNTIME if reason in occurring]


def _draw_bar(chart: Element, axes: Axes, bar: Mapping[str, Any], place: tuple[float, float]) -> None:
    """Draw a job on a node. `place`: top of the node, and height of a GPU."""
    top, row_height = place
    begin, end = axes.x(bar["from_ms"]), axes.x(bar["to_ms"])
    ran = format_duration(round((bar["to_ms"] - bar["from_ms"]) / 1000) * 1000)
    for first, count in _blocks(bar["devices"]):
        size = (begin, top + first * row_height, max(0.3, end - begin), count * row_height)
        box = _draw_box(chart, f"job c{bar['job'] % JOB_COLOURS}", size)
        SubElement(box, "title").text = f"{bar['name']} of {bar['tenant']}, {ran}"


def _draw_downtime(chart: Element, axes: Axes, span: Mapping[str, Any], place: tuple[float, float]) -> None:
    """Draw a node that takes no jobs. `place`: top and height of the node."""
    top, height = place
    begin, end = axes.x(span["from_ms"]), axes.x(span["to_ms"])
    size = (begin, top, max(0.5, end - begin), height)
    box = _draw_box(chart, f"down {span['reason']}", size)
    lasted = format_duration(round((span["to_ms"] - span["from_ms"]) / 1000) * 1000)
    SubElement(box, "title").text = f"{DOWNTIME[span['reason']]}, {lasted}"
    if span["reason"] != "lost" and (hatch := _hatch(size)):
        SubElement(chart, "path", {"class": f"hatch {span['reason']}", "d": hatch})


def _hatch(size: tuple[float, float, float, float]) -> str:
    """Return diagonal lines within a rectangle: a pattern would need an address, and the page has none."""
    x, y, width, height = size
    lines = []
    for step in range(HATCH, int(width + height), HATCH):
        low = (x + max(0.0, step - height), y + min(height, step))
        high = (x + min(width, step), y + max(0.0, step - width))
        lines.append(f"M{low[0]:.1f},{low[1]:.1f}L{high[0]:.1f},{high[1]:.1f}")
    return "".join(lines)


def _draw_box(chart: Element, css_class: str, size: tuple[float, float, float, float]) -> Element:
    coordinates = {name: f"{value:.1f}" for name, value in zip(("x", "y", "width", "height"), size, strict=True)}
    return SubElement(chart, "rect", {"class": css_class, **coordinates})


def _blocks(devices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, number) of each block of adjacent devices."""
    for _, run in groupby(enumerate(devices), key=lambda indexed: indexed[1] - indexed[0]):
        block = [device for _, device in run]
        yield block[0], len(block)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"\N{HORIZONTAL ELLIPSIS}{name[1 - LONGEST_NAME :]}"
