"""Charts of the report over time: GPUs in use, waiting jobs, tenants, and idle GPUs of no use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from ganger.model.views.simulation_figures import JsonObject
from ganger.simulation.report import svg_charts
from ganger.simulation.report.html_elements import add_key, add_scroller, add_section
from ganger.simulation.report.svg_charts import COLOURS, Axes

PAIR: Final = {"class": "pair"}
IDLE_TEXT: Final = (
    "Of the GPUs that are idle, the part on nodes where no part of the job fits that has waited longest (with jobs "
    "that have shares of GPUs: that is of no use to what is typically asked for). There is no line while no job waits, "
    "or no GPU is idle."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SmallMultiples:
    """Small stacked charts, one for each run, on equal axes.

    layers: makes the layers of a run
    colours: class prefix of the colours
    top_line: value of a dashed line; None: no line
    """

    axes: Axes
    layers: Callable[[JsonObject], Mapping[str, Sequence[float]]]
    colours: str = "s"
    top_line: float | None = None


def add_time_charts(body: Element, runs: Sequence[JsonObject], gpus: int) -> None:
    """Add all charts over time, of one run of each policy."""
    to_ms = max(end_ms(run) for run in runs)
    section = add_section(body, "GPUs allocated", f"Of {gpus:,}, which the dashed line is.")
    axes = Axes(to_ms=to_ms, top=gpus * 1.05, unit="GPUs")
    _add_small_multiples(section, runs, _SmallMultiples(axes=axes, layers=_allocated, colours="c", top_line=gpus))
    _add_waiting_charts(body, runs, to_ms)
    section = add_section(body, "Waiting by size class", "Jobs waiting, by the GPUs that they ask for.")
    _add_stacks(section, runs, to_ms, "waiting")
    if any(run["series"]["tenants"] for run in runs):
        text = "Of the tenants with most GPU time, and of all others together."
        _add_stacks(add_section(body, "GPUs of each tenant", text), runs, to_ms, "tenants")
    section = SubElement(add_section(body, "Idle GPUs of no use", IDLE_TEXT), "div", PAIR)
    for run in runs:
        axes = Axes(to_ms=to_ms, top=100, unit="% of idle GPUs")
        chart = svg_charts.empty_chart(axes, run["name"])
        points = [(ms, None if share is None else 100 * share) for ms, share in run["series"]["idle_of_no_use"]]
        svg_charts.draw_line(chart, axes, points, "c0")
        section.append(chart)


def _add_waiting_charts(body: Element, runs: Sequence[JsonObject], to_ms: float) -> None:
    text = "Jobs that do not run between their submission and their end."
    section = add_section(body, "Waiting jobs", text)
    add_key(section, [(run["name"], f"line {line_classes(index)}") for index, run in enumerate(runs)])
    for name, title, unit in (("waiting_jobs", "Jobs", "jobs"), ("waiting_gpus", "GPUs that they ask for", "GPUs")):
        top = _axis_top(value for run in runs for value in run["series"][name])
        axes = Axes(to_ms=to_ms, top=top, unit=unit, width=820, height=240)
        chart = svg_charts.empty_chart(axes, title)
        for index, run in enumerate(runs):
            svg_charts.draw_line(chart, axes, _points(run, name), line_classes(index))
        add_scroller(section, title).append(chart)


def _allocated(run: JsonObject) -> Mapping[str, Sequence[float]]:
    return {"allocated": run["series"]["allocated"]}


def _add_stacks(section: Element, runs: Sequence[JsonObject], to_ms: float, name: str) -> None:
    layer_names = list(dict.fromkeys(layer for run in runs for layer in run["series"][name]))
    add_key(section, [(layer, f"box s{index % 8}") for index, layer in enumerate(layer_names)])

    def layers(run: JsonObject) -> dict[str, list[float]]:
        series = run["series"][name]
        zeros = [0.0] * len(run["series"]["allocated"])
        return {layer: series.get(layer, zeros) for layer in layer_names}

    top = _axis_top(sum(values) for run in runs for values in zip(*layers(run).values(), strict=True))
    axes = Axes(to_ms=to_ms, top=top, unit="jobs" if name == "waiting" else "GPUs")
    _add_small_multiples(section, runs, _SmallMultiples(axes=axes, layers=layers))


def _add_small_multiples(section: Element, runs: Sequence[JsonObject], multiples: _SmallMultiples) -> None:
    pair, axes = SubElement(section, "div", PAIR), multiples.axes
    for run in runs:
        chart = svg_charts.empty_chart(axes, run["name"])
        svg_charts.draw_stack(chart, axes, run["series"]["step_ms"], multiples.layers(run), multiples.colours)
        if multiples.top_line is not None:
            points = [(0, multiples.top_line), (axes.to_ms, multiples.top_line)]
            svg_charts.draw_line(chart, axes, points, "whole")
        pair.append(chart)


def line_classes(index: int) -> str:
    """Return colour and dashes of the line of a run; dashes change when half of the colours are used up."""
    return f"c{index % COLOURS} dash{index // (COLOURS // 2) % 3}"


def _points(run: JsonObject, name: str) -> list[tuple[float, float | None]]:
    step_ms = run["series"]["step_ms"]
    return [((index + 0.5) * step_ms, value) for index, value in enumerate(run["series"][name])]


def end_ms(run: JsonObject) -> float:
    """Return the end of the series of a run."""
    series: dict[str, Any] = run["series"]
    return float(series["step_ms"] * len(series["allocated"]))


def _axis_top(values: Iterator[float] | Iterable[float]) -> float:
    return max(1.0, 1.05 * max(values, default=0.0))
