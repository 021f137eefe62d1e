"""The report of a comparison: one HTML file with figures and charts, which fetches nothing from other hosts.

Each figure of a table carries its exact number in `data-value`. The page is built of elements, so that no text of a
trace is ever markup.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from ganger import __version__
from ganger.model.units import format_duration
from ganger.model.views.simulation_figures import STATISTICS, Figure, Row, iter_rows, iter_tables, job_set_notes
from ganger.simulation.json_output import Record
from ganger.simulation.report import svg_charts
from ganger.simulation.report.stylesheet import STYLE
from ganger.simulation.report.svg_charts import COLOURS, Axes

TIMES: Final = {"jct_ms": "completion time", "queueing_ms": "waiting"}
PAIR: Final = {"class": "pair"}
FIGURES_TEXT: Final = (
    "Completion time is from submission to end; waiting is the part of it in which the job did not run, also after a "
    "preemption. Slowdown is completion time over the job's own duration, shorter ones taken for 10 s or 10 min. "
    "Allocated is GPU time that jobs had, of all GPU time from the first submission to the last end; of what was "
    "asked for: with 1 no GPU is idle while a job waits for as many. Jain's index is 1 where tenants had the same "
    "GPU time, and 1/n where one had all. Percentiles are elements: p99 is the one at floor(0.99 n) of the sorted "
    "values. n are the jobs that ended. The best of a column is bold. Of a policy with several seeds there is the "
    "mean, and below it the standard deviation. Finish-time fairness is completion time over what it would be alone "
    "on an equal part of the cluster, one for each job that was there meanwhile. Quota debt is what a tenant asked "
    "for, was entitled to and did not get; all tenants are entitled to the same. The longest wait is uninterrupted, of "
    "every job, ended or not. Fragmented is what of the idle GPUs is of no use to what is typically asked for (Weng "
    "et al., 2023); the largest gang is the one that had room, with as many GPUs on each of its nodes. Gangs across "
    "switches are on nodes of several racks. GPU-hours moved were run before a job went on on other nodes. A cycle is "
    "of the scheduler itself, in processor time."
)
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
    layers: Callable[[Record], Mapping[str, Sequence[float]]]
    colours: str = "s"
    top_line: float | None = None


def comparison_report(answer: Record) -> str:
    """Return the page. `answer`: the answer of `sim compare`, with at least one run."""
    page = Element("html", {"lang": "en"})
    head, body = SubElement(page, "head"), SubElement(page, "body")
    title = f"{len(answer['runs'])} runs of {answer['trace']}"
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    SubElement(head, "title").text = title
    SubElement(head, "style").text = STYLE
    SubElement(body, "h1").text = title
    _add_paragraph(body, _cluster_text(answer), "soft")
    for failed in answer["failed"]:
        _add_paragraph(body, f"{failed['name']} is missing: {failed['reason']}")
    first_by_policy = {run["policy"]: run for run in reversed(answer["runs"])}
    charted_runs = list(first_by_policy.values())[::-1]
    _add_figures(body, answer)
    _add_charts(body, charted_runs, answer["gpus_in_all"])
    _add_gantt_charts(body, charted_runs, answer)
    _add_findings(body, answer)
    footer = f"ganger {__version__}: the code that decides here is the one that decides on a cluster."
    _add_paragraph(body, footer, "soft")
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _cluster_text(answer: Record) -> str:
    jobs = answer["runs"][0]["scorecard"]["jobs"]
    costs = [
        f"{label} {format_duration(answer[name])}"
        for name, label in (("start_ms", "a start costs"), ("checkpoint_ms", "checkpoints every"))
        if answer[name]
    ]
    nodes = f"{answer['nodes']} nodes, {answer['gpus_in_all']} GPUs"
    return ", ".join((f"{jobs:,} jobs of {answer['rows']:,} rows, format {answer['format']}", nodes, *costs))


# -- tables ------------------------------------------------------------------------------------------------------------


def _add_figures(body: Element, answer: Record) -> None:
    section = _add_section(body, "Figures", FIGURES_TEXT)
    _add_range_charts(section, answer["runs"])
    for note in job_set_notes(answer):
        _add_paragraph(section, note)
    rows = list(iter_rows(answer))
    for table in iter_tables(rows):
        _add_table(section, rows, table.figures)
    for run in answer["runs"]:
        for reason, count in run["unended"].items():
            _add_paragraph(section, f"{run['name']}: {count:,} jobs did not finish: {reason}")


def _add_table(section: Element, rows: Sequence[Row], figures: Sequence[Figure]) -> None:
    """Add a table, in which the best of each column is bold, unless all are equal."""
    table = SubElement(SubElement(section, "div", {"class": "wide"}), "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    SubElement(head, "th").text = "policy"
    for figure in figures:
        SubElement(head, "th", {"class": "group"} if figure.starts_group else {}).text = figure.title
    body = SubElement(table, "tbody")
    best_values = [_best_value(rows, figure) for figure in figures]
    for row in rows:
        line = SubElement(body, "tr")
        SubElement(line, "td").text = row.name
        for figure, best_value in zip(figures, best_values, strict=True):
            value = figure.of(row.run)
            is_best = row.counts and value is not None and value == best_value
            classes = " ".join([*["group"] * figure.starts_group, *["best"] * is_best])
            cell = SubElement(line, "td", {"data-value": str(value), **({"class": classes} if classes else {})})
            cell.text = "-" if value is None else figure.text(value)


def _best_value(rows: Sequence[Row], figure: Figure) -> float | None:
    values = [value for row in rows if row.counts and (value := figure.of(row.run)) is not None]
    return figure.best(values) if figure.best is not None and len(set(values)) > 1 else None


def _add_range_charts(section: Element, runs: Sequence[Record]) -> None:
    for name, label in TIMES.items():
        SubElement(section, "h3").text = f"{label.capitalize()} of jobs, n = {runs[0]['scorecard'][name]['n']:,}"
        legend = "From the median (bar) by p95 (square) to p99 (arrow); the mean is a diamond."
        _add_paragraph(section, legend, "soft")
        rows = [(run["name"], {of: run["scorecard"][name][of] for of in STATISTICS}) for run in runs]
        section.append(svg_charts.range_chart(label, rows))


def _add_findings(body: Element, answer: Record) -> None:
    text = "Rows with a flaw: what was left out, what was kept, and why."
    section = _add_section(body, "Rows of the trace", text)
    if not answer["findings"]:
        _add_paragraph(section, "None: every row is a job, and every job fits the cluster.")
        return
    table = SubElement(section, "table", {"class": "words"})
    row = SubElement(SubElement(table, "thead"), "tr")
    for title in ("rows", "", "flaw", "the first of them"):
        SubElement(row, "th").text = title
    rows = SubElement(table, "tbody")
    for finding in answer["findings"]:
        row = SubElement(rows, "tr")
        examples = "; ".join(f"line {example['line']}: {example['what']}" for example in finding["first"])
        SubElement(row, "td", {"data-value": str(finding["count"])}).text = f"{finding['count']:,}"
        kept = "kept" if finding["kept"] else "left out"
        for text in (kept, f"{finding['flaw']}: {finding['meaning']}", examples):
            SubElement(row, "td").text = text


# -- charts ------------------------------------------------------------------------------------------------------------


def _add_charts(body: Element, runs: Sequence[Record], gpus: int) -> None:
    to_ms = max(_end_ms(run) for run in runs)
    section = _add_section(body, "GPUs allocated", f"Of {gpus:,}, which the dashed line is.")
    axes = Axes(to_ms=to_ms, top=gpus * 1.05, unit="GPUs")
    _add_small_multiples(section, runs, _SmallMultiples(axes=axes, layers=_allocated, colours="c", top_line=gpus))
    _add_waiting_charts(body, runs, to_ms)
    section = _add_section(body, "Waiting by size class", "Jobs waiting, by the GPUs that they ask for.")
    _add_stacks(section, runs, to_ms, "waiting")
    if any(run["series"]["tenants"] for run in runs):
        text = "Of the tenants with most GPU time, and of all others together."
        _add_stacks(_add_section(body, "GPUs of each tenant", text), runs, to_ms, "tenants")
    section = SubElement(_add_section(body, "Idle GPUs of no use", IDLE_TEXT), "div", PAIR)
    for run in runs:
        axes = Axes(to_ms=to_ms, top=100, unit="% of idle GPUs")
        chart = svg_charts.empty_chart(axes, run["name"])
        points = [(ms, None if share is None else 100 * share) for ms, share in run["series"]["idle_of_no_use"]]
        svg_charts.draw_line(chart, axes, points, "c0")
        section.append(chart)


def _add_waiting_charts(body: Element, runs: Sequence[Record], to_ms: float) -> None:
    text = "Jobs that do not run between their submission and their end."
    section = _add_section(body, "Waiting jobs", text)
    _add_key(section, [(run["name"], f"line {_line_classes(index)}") for index, run in enumerate(runs)])
    for name, title, unit in (("waiting_jobs", "Jobs", "jobs"), ("waiting_gpus", "GPUs that they ask for", "GPUs")):
        top = _axis_top(value for run in runs for value in run["series"][name])
        axes = Axes(to_ms=to_ms, top=top, unit=unit, width=940, height=260)
        chart = svg_charts.empty_chart(axes, title)
        for index, run in enumerate(runs):
            svg_charts.draw_line(chart, axes, _points(run, name), _line_classes(index))
        section.append(chart)


def _allocated(run: Record) -> Mapping[str, Sequence[float]]:
    return {"allocated": run["series"]["allocated"]}


def _add_stacks(section: Element, runs: Sequence[Record], to_ms: float, name: str) -> None:
    layer_names = list(dict.fromkeys(layer for run in runs for layer in run["series"][name]))
    _add_key(section, [(layer, f"box s{index % 8}") for index, layer in enumerate(layer_names)])

    def layers(run: Record) -> dict[str, list[float]]:
        series = run["series"][name]
        zeros = [0.0] * len(run["series"]["allocated"])
        return {layer: series.get(layer, zeros) for layer in layer_names}

    top = _axis_top(sum(values) for run in runs for values in zip(*layers(run).values(), strict=True))
    axes = Axes(to_ms=to_ms, top=top, unit="jobs" if name == "waiting" else "GPUs")
    _add_small_multiples(section, runs, _SmallMultiples(axes=axes, layers=layers))


def _add_small_multiples(section: Element, runs: Sequence[Record], multiples: _SmallMultiples) -> None:
    pair, axes = SubElement(section, "div", PAIR), multiples.axes
    for run in runs:
        chart = svg_charts.empty_chart(axes, run["name"])
        svg_charts.draw_stack(chart, axes, run["series"]["step_ms"], multiples.layers(run), multiples.colours)
        if multiples.top_line is not None:
            points = [(0, multiples.top_line), (axes.to_ms, multiples.top_line)]
            svg_charts.draw_line(chart, axes, points, "whole")
        pair.append(chart)


def _add_gantt_charts(body: Element, runs: Sequence[Record], answer: Record) -> None:
    small_runs = [run for run in runs if run["bars"]]
    if not small_runs:
        return
    text = "Each row is a GPU; jobs that follow each other differ in colour, not in kind."
    section = _add_section(body, "Nodes", text)
    to_ms = max(_end_ms(run) for run in small_runs)
    for run in small_runs:
        size = answer["nodes"], answer["gpus"] or answer["gpus_in_all"]
        section.append(svg_charts.gantt_chart(run["name"], run["bars"], size, to_ms))


# -- elements ----------------------------------------------------------------------------------------------------------


def _add_section(body: Element, title: str, text: str) -> Element:
    section = SubElement(body, "section")
    SubElement(section, "h2").text = title
    _add_paragraph(section, text, "soft")
    return section


def _add_paragraph(parent: Element, text: str, css_class: str = "") -> None:
    SubElement(parent, "p", {"class": css_class} if css_class else {}).text = text


def _add_key(section: Element, entries: Sequence[tuple[str, str]]) -> None:
    """Add the key of a chart: (name, classes of its line or box)."""
    key = SubElement(section, "div", {"class": "key"})
    for name, classes in entries:
        entry = SubElement(key, "span")
        sample = SubElement(entry, "svg", {"viewBox": "0 0 26 12", "aria-hidden": "true"})
        if classes.startswith("line"):
            SubElement(sample, "path", {"class": classes, "d": "M0,6h26"})
        else:
            SubElement(sample, "rect", {"class": classes, "width": "26", "height": "12"})
        sample.tail = name


def _line_classes(index: int) -> str:
    """Return colour and dashes of the line of a run; dashes change when half of the colours are used up."""
    return f"c{index % COLOURS} dash{index // (COLOURS // 2) % 3}"


def _points(run: Record, name: str) -> list[tuple[float, float | None]]:
    step_ms = run["series"]["step_ms"]
    return [((index + 0.5) * step_ms, value) for index, value in enumerate(run["series"][name])]


def _end_ms(run: Record) -> float:
    series: dict[str, Any] = run["series"]
    return float(series["step_ms"] * len(series["allocated"]))


def _axis_top(values: Iterator[float] | Iterable[float]) -> float:
    return max(1.0, 1.05 * max(values, default=0.0))
