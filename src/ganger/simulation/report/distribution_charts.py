"""Charts of distributions over jobs, and of differences between policies, as SVG elements.

Times are on logarithmic axes, since some jobs wait for seconds and others for days.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from ganger.model.units import SECOND_MS
from ganger.model.views.policy_differences import Difference
from ganger.simulation.report.svg_charts import draw_segment, draw_text, new_chart

WIDTH: Final = 820
ROW: Final = 44
"""Height of a policy in the chart of differences."""
LONGEST_NAME: Final = 24
"""Letters of a policy that are shown: of a file the last ones."""
_MARKS: Final = (
    *((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (10800, "3 h"), (21600, "6 h")),
    *((43200, "12 h"), (86400, "1 d"), (259200, "3 d"), (864000, "10 d"), (2592000, "30 d"), (8640000, "100 d")),
)
"""(seconds, text) of a logarithmic axis."""


PolicyClasses = tuple[str, str, Mapping[str, Mapping[str, float]]]
"""(name of a policy, its CSS classes, statistics by key of the class)."""
Panel = tuple[str, Sequence[Difference]]
"""(title of a figure, differences by policy)."""


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis of ms from the coordinate `begin` to `end`; times below `low_ms` are at its beginning."""

    low_ms: float
    high_ms: float
    begin: float
    end: float

    def at(self, ms: float) -> float:
        """Return the coordinate of a time."""
        low, high = math.log10(self.low_ms), math.log10(self.high_ms)
        return self.begin + (self.end - self.begin) * (math.log10(max(self.low_ms, ms)) - low) / (high - low)

    def marks(self) -> Iterator[tuple[float, str]]:
        """Yield round times and their texts."""
        return ((s * SECOND_MS, text) for s, text in _MARKS if self.low_ms <= s * SECOND_MS <= self.high_ms)


def log_axis(values_ms: Iterable[float | None], begin: float, end: float) -> LogAxis:
    """Return an axis that has all these times that are not 0, and at least a decade."""
    positive = [value for value in values_ms if value]
    high_ms = max(positive, default=10 * SECOND_MS) * 1.1
    low_ms = max(SECOND_MS, min(min(positive, default=SECOND_MS) / 1.1, high_ms / 10))
    return LogAxis(low_ms, max(high_ms, low_ms * 10), begin, end)


@dataclass(frozen=True, slots=True)
class Curve:
    """Quantiles of a policy at equal steps, one sequence for each of its runs, and its classes."""

    name: str
    quantiles_ms: Sequence[Sequence[float]]
    classes: str


def cumulative_chart(title: str, curves: Sequence[Curve]) -> Element:
    """Return a chart of the share of jobs that waited at most so long: the mean over runs, in a band of all of them."""
    height, left, right = 290, 52, 24
    chart = new_chart(WIDTH, height, title)
    axis = log_axis((value for curve in curves for run in curve.quantiles_ms for value in run), left, WIDTH - right)
    marks_below_ms = [s * SECOND_MS for s, _ in _MARKS if s * SECOND_MS <= axis.low_ms]
    axis = replace(axis, low_ms=marks_below_ms[-1])  # so that what is cut off there has a name

    def y(share: float) -> float:
        return height - 38 - (height - 50) * share

    for percent in range(0, 101, 20):
        draw_segment(chart, (left, y(percent / 100), WIDTH - right, y(percent / 100)), "grid")
        draw_text(chart, left - 8, y(percent / 100) + 4, f"{percent} %", "end")
    for ms, text in axis.marks():
        draw_segment(chart, (axis.at(ms), y(0), axis.at(ms), y(0) + 4), "axis")
        is_end = ms == axis.low_ms
        draw_text(chart, axis.at(ms), height - 18, f"\N{LESS-THAN OR EQUAL TO} {text}" if is_end else text, "middle")
    draw_text(chart, (left + WIDTH - right) / 2, height - 3, "wait", "middle")
    draw_segment(chart, (left, y(0), WIDTH - right, y(0)), "axis")
    for curve in curves:
        _draw_curve(chart, curve, axis, y)
    return chart


def _draw_curve(chart: Element, curve: Curve, axis: LogAxis, y: Callable[[float], float]) -> None:
    by_step = list(zip(*curve.quantiles_ms, strict=True))
    if len(by_step) < 2:
        return
    shares = [step / (len(by_step) - 1) for step in range(len(by_step))]
    if len(curve.quantiles_ms) > 1:
        lower = [f"{axis.at(min(values)):.1f},{y(share):.1f}" for share, values in zip(shares, by_step, strict=True)]
        upper = [f"{axis.at(max(values)):.1f},{y(share):.1f}" for share, values in zip(shares, by_step, strict=True)]
        outline = " ".join([*lower, *reversed(upper)])
        SubElement(chart, "path", {"class": f"band {curve.classes}", "d": f"M{outline}Z"})
    middle = [
        f"{axis.at(math.fsum(values) / len(values)):.1f},{y(share):.1f}"
        for share, values in zip(shares, by_step, strict=True)
    ]
    line = SubElement(chart, "path", {"class": f"line {curve.classes}", "d": f"M{' '.join(middle)}"})
    SubElement(line, "title").text = curve.name


def class_chart(
    title: str,
    classes: Sequence[tuple[str, str]],
    policies: Sequence[tuple[str, str, Mapping[str, Mapping[str, float]]]],
) -> Element:
    """Return a chart with a group of marks for each class: a line from p50 to p95 and a dot at the mean.

    classes: (key, label below it)
    """
    height, left, right = 290, 60, 24
    chart = new_chart(WIDTH, height, title)
    values = [of.get(name) for _, _, by in policies for of in by.values() for name in ("p50", "p95", "mean")]
    axis = log_axis(values, height - 44, 14)
    for ms, text in axis.marks():
        draw_segment(chart, (left, axis.at(ms), WIDTH - right, axis.at(ms)), "grid")
        draw_text(chart, left - 8, axis.at(ms) + 4, text, "end")
    draw_segment(chart, (left, height - 36, WIDTH - right, height - 36), "axis")
    group = (WIDTH - left - right) / max(1, len(classes))
    step = min(22, group * 0.7 / max(1, len(policies)))
    for index, (key, label) in enumerate(classes):
        middle = left + group * (index + 0.5)
        for line, text in enumerate(label.split("\n")):
            draw_text(chart, middle, height - 20 + 14 * line, text, "middle name" if not line else "middle")
        for place, (name, css_classes, by_class) in enumerate(policies):
            x = middle + step * (place - (len(policies) - 1) / 2)
            _draw_range(chart, (name, css_classes), by_class.get(key, {}), (x, axis))
    return chart


def _draw_range(
    chart: Element, policy: tuple[str, str], statistics: Mapping[str, float], place: tuple[float, LogAxis]
) -> None:
    (name, css_classes), (x, axis) = policy, place
    if statistics.get("mean") is None:
        return
    p50, p95, mean = (axis.at(statistics[statistic]) for statistic in ("p50", "p95", "mean"))
    draw_segment(chart, (x, p50, x, p95), f"line thick {css_classes}")
    draw_segment(chart, (x - 4, p50, x + 4, p50), f"line {css_classes}")
    dot = SubElement(chart, "circle", {"class": f"dot {css_classes}", "cx": f"{x:.1f}", "cy": f"{mean:.1f}", "r": "4"})
    SubElement(dot, "title").text = name


def range_chart(title: str, rows: Sequence[tuple[str, Mapping[str, float | None]]]) -> Element:
    """Return a chart of a line from p50 to p99 for each row.

    rows: (name, values of p50, p95, p99 and mean)
    """
    left, height = _label_width([name for name, _ in rows]), 34 + 26 * len(rows)
    chart = new_chart(WIDTH, height + 18, title)
    axis = log_axis((value for _, values in rows for value in values.values()), left, WIDTH - 20)
    for ms, text in axis.marks():
        draw_segment(chart, (axis.at(ms), 6, axis.at(ms), height - 10), "grid")
        draw_text(chart, axis.at(ms), height + 8, text, "middle")
    for index, (name, statistics) in enumerate(rows):
        y = 22 + 26 * index
        draw_text(chart, left - 14, y + 4, name[-LONGEST_NAME:], "end name")
        abscissas = {statistic: axis.at(value) for statistic, value in statistics.items() if value is not None}
        if "p50" in abscissas and "p99" in abscissas:
            draw_segment(chart, (abscissas["p50"], y, abscissas["p99"], y), "span")
        for statistic, abscissa in abscissas.items():
            _draw_mark(chart, statistic, abscissa, y)
    return chart


def _draw_mark(chart: Element, statistic: str, x: float, y: float) -> None:
    shapes = {
        "p50": f"M{x:.1f},{y - 6}v12",
        "p95": f"M{x - 4:.1f},{y - 4}h8v8h-8z",
        "p99": f"M{x - 4:.1f},{y - 5}l8,5l-8,5z",
        "mean": f"M{x - 5:.1f},{y}l5,-6l5,6l-5,6z",
    }
    path = SubElement(chart, "path", {"class": f"mark {statistic}", "d": shapes[statistic]})
    SubElement(path, "title").text = statistic


# -- differences -------------------------------------------------------------------------------------------------------


def difference_chart(
    title: str, policies: Sequence[str], panels: Sequence[tuple[str, Sequence[Difference]]]
) -> Element:
    """Return a chart of differences in percent: a panel for each figure, a row for each policy, with intervals.

    panels: (title of the figure, differences by policy)
    """
    label = _label_width(policies)
    width, height = (WIDTH - label) / max(1, len(panels)), 48 + ROW * len(policies)
    chart = new_chart(WIDTH, height, title)
    for row, policy in enumerate(policies):
        draw_text(chart, label - 14, 46 + ROW * row + 4, policy[-LONGEST_NAME:], "end name")
    for index, (name, differences) in enumerate(panels):
        _draw_panel(
            chart, (label + width * index, width - 14, height), name, {of.policy: of for of in differences}, policies
        )
    return chart


def _label_width(names: Sequence[str]) -> float:
    return 24 + 7.8 * max((min(len(name), LONGEST_NAME) for name in names), default=0)


def _draw_panel(
    chart: Element,
    place: tuple[float, float, float],
    name: str,
    differences: Mapping[str, Difference],
    policies: Sequence[str],
) -> None:
    left, width, height = place
    ends = [100 * end for of in differences.values() for end in (of.share.low, of.share.high)]
    low, high = min(0.0, *ends, -1.0), max(0.0, *ends, 1.0)
    margin = 0.12 * (high - low)

    def x(percent: float) -> float:
        return left + width * (percent - low + margin) / (high - low + 2 * margin)

    draw_text(chart, left + width / 2, 14, name, "middle name")
    draw_segment(chart, (x(0), 24, x(0), height - 20), "whole")
    draw_text(chart, x(0), height - 8, "0", "middle")
    for row, policy in enumerate(policies):
        if policy in differences:
            _draw_difference(chart, differences[policy], (x, 46 + ROW * row))


def _draw_difference(chart: Element, difference: Difference, place: tuple[Callable[[float], float], float]) -> None:
    (x, y), share = place, difference.share
    kind = "none" if not difference.is_beyond_spread else "better" if difference.is_better else "worse"
    if share.runs > 1:
        draw_segment(chart, (x(100 * share.low), y, x(100 * share.high), y), f"whisker {kind}")
        for end in (share.low, share.high):
            draw_segment(chart, (x(100 * end), y - 4, x(100 * end), y + 4), f"whisker {kind}")
        ends = f"{_signed(100 * share.low).removesuffix(' %')} to {_signed(100 * share.high).removesuffix(' %')}"
        draw_text(chart, x(100 * share.mean), y + 15, ends, "middle ends")
    dot = {"class": f"effect {kind}", "cx": f"{x(100 * share.mean):.1f}", "cy": f"{y}", "r": "4.5"}
    SubElement(chart, "circle", dot)
    draw_text(chart, x(100 * share.mean), y - 9, _signed(100 * share.mean), f"middle value {kind}")


def _signed(percent: float) -> str:
    digits = 0 if abs(percent) >= 10 or percent == 0 else 1
    return f"{percent:+.{digits}f} %".replace("-", "\N{MINUS SIGN}").replace("+0 %", "0")
