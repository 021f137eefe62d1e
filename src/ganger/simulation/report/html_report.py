"""The report of a comparison: one HTML file with its figures and pictures, which asks no other host for anything.

Called by `simulation.compare.compare`, with the answer that JSON has; each figure of a table carries the exact number
of it in `data-value`. The page is made of elements, so that no text of a trace is ever markup."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from ganger import __version__
from ganger.model.units import format_duration
from ganger.model.views.simulation_figures import OF
from ganger.simulation.report import svg_charts
from ganger.simulation.report.report_style import STYLE
from ganger.simulation.report.report_tables import fill_tables
from ganger.simulation.report.svg_charts import COLOURS, Axes
from ganger.simulation.result import Record

TIMES: Final = {"jct_ms": "completion time", "queueing_ms": "waiting"}
PAIR: Final = {"class": "pair"}
WORDS: Final = (
    "Completion time is from submission to end; waiting is the part of it in which the job did not run, also after a "
    "preemption. Slowdown is completion time over the job's own duration, shorter ones taken for 10 s or 10 min. "
    "Allocated is GPU time that jobs had, of all GPU time from the first submission to the last end; of what was "
    "asked for: with 1 no GPU is idle while somebody waits for as many. Jain's index is 1 where tenants had the same "
    "GPU time, and 1/n where one had all. Percentiles are elements: p99 is the one at floor(0.99 n) of the sorted "
    "values. n are the jobs that ended. The best of a column is bold. Of a policy with several seeds there is the "
    "mean, and below it the standard deviation. Finish-time fairness is completion time over what it would be alone "
    "on an equal part of the cluster, one for each job that was there meanwhile. Quota debt is what a tenant asked "
    "for, was entitled to and did not get; all tenants are entitled to the same. The longest wait is at a stretch, of "
    "every job, ended or not. Fragmented is what of the idle GPUs is of no use to what is typically asked for (Weng "
    "et al., 2023); the largest gang is the one that had room, with as many GPUs on each of its nodes. Gangs across "
    "switches are on nodes of several racks. GPU-hours moved were run before a job went on on other nodes. A cycle is "
    "of the scheduler itself, in processor time."
)
IDLE: Final = (
    "Of the GPUs that are idle, the part on nodes where no part of the job fits that has waited longest (with jobs "
    "that have shares of GPUs: that is of no use to what is typically asked for). There is no line while nobody waits, "
    "or nothing is idle."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Small:
    """Small pictures, one for each run, on equal axes. `layers`: of a run; `kind`: of colours."""

    axes: Axes
    layers: Callable[[Record], Mapping[str, Sequence[float]]]
    kind: str = "s"
    whole: float | None = None


def report(told: Record) -> str:
    """The page, whole. `told`: the answer of `sim compare`, with at least one run."""
    page = Element("html", {"lang": "en"})
    head, body = SubElement(page, "head"), SubElement(page, "body")
    title = f"{len(told['runs'])} runs of {told['trace']}"
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    SubElement(head, "title").text = title
    SubElement(head, "style").text = STYLE
    SubElement(body, "h1").text = title
    _say(body, _cluster(told), "soft")
    for each in told["broken"]:
        _say(body, f"{each['name']} is missing: {each['why']}")
    runs = told["runs"]
    first = list({run["policy"]: run for run in reversed(runs)}.values())[::-1]
    _tables(body, told)
    _pictures(body, first, told["gpus_in_all"])
    _gantts(body, first, told)
    _findings(body, told)
    _say(body, f"ganger {__version__}: the code that decides here is the one that decides on a cluster.", "soft")
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _cluster(told: Record) -> str:
    jobs = told["runs"][0]["scorecard"]["jobs"]
    costs = [
        f"{words} {format_duration(told[name])}"
        for name, words in (("start_ms", "a start costs"), ("checkpoint_ms", "checkpoints every"))
        if told[name]
    ]
    nodes = f"{told['nodes']} nodes, {told['gpus_in_all']} GPUs"
    return ", ".join((f"{jobs:,} jobs of {told['rows']:,} rows, format {told['format']}", nodes, *costs))


def _tables(body: Element, told: Record) -> None:
    runs = told["runs"]
    section = _section(body, "Figures", WORDS)
    _ranges(section, runs)
    fill_tables(section, told)
    for run in runs:
        for why, many in run["unended"].items():
            _say(section, f"{run['name']}: {many:,} jobs did not come to an end: {why}")


def _ranges(section: Element, runs: Sequence[Record]) -> None:
    for name, words in TIMES.items():
        SubElement(section, "h3").text = f"{words.capitalize()} of jobs, n = {runs[0]['scorecard'][name]['n']:,}"
        _say(section, "From the median (bar) by p95 (square) to p99 (arrow); the mean is a diamond.", "soft")
        rows = [(run["name"], {of: run["scorecard"][name][of] for of in OF}) for run in runs]
        section.append(svg_charts.ranges(words, rows))


def _pictures(body: Element, runs: Sequence[Record], gpus: int) -> None:
    to_ms = max(_end_ms(run) for run in runs)
    section = _section(body, "GPUs allocated", f"Of {gpus:,}, which the dashed line is.")
    axes = Axes(to_ms=to_ms, top=gpus * 1.05, unit="GPUs")
    _draw(section, runs, _Small(axes=axes, layers=_allocated, kind="c", whole=gpus))
    section = _section(body, "Who waits", "Jobs that do not run between their submission and their end.")
    _key(section, [(run["name"], f"line {_look(at)}") for at, run in enumerate(runs)])
    for name, title, unit in (("waiting_jobs", "Jobs", "jobs"), ("waiting_gpus", "GPUs that they ask for", "GPUs")):
        top = _top(value for run in runs for value in run["series"][name])
        axes = Axes(to_ms=to_ms, top=top, unit=unit, width=940, height=260)
        picture = svg_charts.framed(axes, title)
        for at, run in enumerate(runs):
            svg_charts.draw_line(picture, axes, _points(run, name), _look(at))
        section.append(picture)
    section = _section(body, "Waiting by size class", "Jobs waiting, by the GPUs that they ask for.")
    _stacks(section, runs, to_ms, "waiting")
    if any(run["series"]["tenants"] for run in runs):
        told = "Of those who had most GPU time, and of all others together."
        _stacks(_section(body, "GPUs of each tenant", told), runs, to_ms, "tenants")
    section = SubElement(_section(body, "Idle GPUs of no use", IDLE), "div", PAIR)
    for run in runs:
        axes = Axes(to_ms=to_ms, top=100, unit="% of idle GPUs")
        picture = svg_charts.framed(axes, run["name"])
        points = [(ms, None if share is None else 100 * share) for ms, share in run["series"]["idle_of_no_use"]]
        svg_charts.draw_line(picture, axes, points, "c0")
        section.append(picture)


def _allocated(run: Record) -> Mapping[str, Sequence[float]]:
    return {"allocated": run["series"]["allocated"]}


def _stacks(section: Element, runs: Sequence[Record], to_ms: float, name: str) -> None:
    names = list(dict.fromkeys(each for run in runs for each in run["series"][name]))
    _key(section, [(each, f"box s{at % 8}") for at, each in enumerate(names)])

    def layers(run: Record) -> dict[str, list[float]]:
        there = run["series"][name]
        nothing = [0.0] * len(run["series"]["allocated"])
        return {each: there.get(each, nothing) for each in names}

    top = _top(sum(values) for run in runs for values in zip(*layers(run).values(), strict=True))
    axes = Axes(to_ms=to_ms, top=top, unit="jobs" if name == "waiting" else "GPUs")
    _draw(section, runs, _Small(axes=axes, layers=layers))


def _draw(section: Element, runs: Sequence[Record], small: _Small) -> None:
    pair, axes = SubElement(section, "div", PAIR), small.axes
    for run in runs:
        picture = svg_charts.framed(axes, run["name"])
        svg_charts.draw_stack(picture, axes, run["series"]["step_ms"], small.layers(run), small.kind)
        if small.whole is not None:
            svg_charts.draw_line(picture, axes, [(0, small.whole), (axes.to_ms, small.whole)], "whole")
        pair.append(picture)


def _gantts(body: Element, runs: Sequence[Record], told: Record) -> None:
    small = [run for run in runs if run["bars"]]
    if not small:
        return
    section = _section(body, "Nodes", "Each row is a GPU; jobs that follow each other differ in colour, not in kind.")
    to_ms = max(_end_ms(run) for run in small)
    for run in small:
        size = told["nodes"], told["gpus"] or told["gpus_in_all"]
        section.append(svg_charts.gantt(run["name"], run["bars"], size, to_ms))


def _findings(body: Element, told: Record) -> None:
    section = _section(body, "Rows of the trace", "Rows with a flaw: what was left out, what was kept, and why.")
    if not told["findings"]:
        _say(section, "None: every row is a job, and every job fits the cluster.")
        return
    table = SubElement(section, "table", {"class": "words"})
    row = SubElement(SubElement(table, "thead"), "tr")
    for head in ("rows", "", "flaw", "the first of them"):
        SubElement(row, "th").text = head
    rows = SubElement(table, "tbody")
    for found in told["findings"]:
        row = SubElement(rows, "tr")
        first = "; ".join(f"line {each['line']}: {each['what']}" for each in found["first"])
        SubElement(row, "td", {"data-value": str(found["count"])}).text = f"{found['count']:,}"
        kept = "kept" if found["kept"] else "left out"
        for text in (kept, f"{found['flaw']}: {found['meaning']}", first):
            SubElement(row, "td").text = text


def _section(body: Element, title: str, told: str) -> Element:
    section = SubElement(body, "section")
    SubElement(section, "h2").text = title
    _say(section, told, "soft")
    return section


def _say(parent: Element, text: str, look: str = "") -> None:
    SubElement(parent, "p", {"class": look} if look else {}).text = text


def _key(section: Element, names: Sequence[tuple[str, str]]) -> None:
    key = SubElement(section, "div", {"class": "key"})
    for name, look in names:
        each = SubElement(key, "span")
        sample = SubElement(each, "svg", {"viewBox": "0 0 26 12", "aria-hidden": "true"})
        if look.startswith("line"):
            SubElement(sample, "path", {"class": look, "d": "M0,6h26"})
        else:
            SubElement(sample, "rect", {"class": look, "width": "26", "height": "12"})
        sample.tail = name


def _look(at: int) -> str:
    """Of the line of a run: a colour, and dashes, which change when half of the colours are used up."""
    return f"c{at % COLOURS} dash{at // (COLOURS // 2) % 3}"


def _points(run: Record, name: str) -> list[tuple[float, float | None]]:
    step_ms = run["series"]["step_ms"]
    return [((at + 0.5) * step_ms, value) for at, value in enumerate(run["series"][name])]


def _end_ms(run: Record) -> float:
    series: dict[str, Any] = run["series"]
    return float(series["step_ms"] * len(series["allocated"]))


def _top(values: Iterator[float] | Iterable[float]) -> float:
    return max(1.0, 1.05 * max(values, default=0.0))
