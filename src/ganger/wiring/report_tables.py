"""The tables of the report of a comparison: a row for each run, or for mean and spread of a policy's runs with several
seeds. Called by `wiring.report`. Each figure carries its exact number in `data-value`; the best of a column is bold.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration
from ganger.wiring.told import Record

OF: Final = ("mean", "p50", "p95", "p99")
Best = Callable[[Iterable[float]], float]
Text = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: what it is called, the way to its figure, which is the best of several, None for a count, and how it
    is written."""

    head: str
    way: str
    best: Best | None
    text: Text


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or what several came to; `counts`: its figures are compared with those of others."""

    name: str
    run: Record
    counts: bool = True


def fill_tables(section: Element, told: Record) -> None:
    """All that have something to say of these runs. `told`: the answer of `sim compare`."""
    rows = list(rows_of(told))
    for figures, needs in TABLES:
        if not needs or any(figure_of(row.run, needs) for row in rows):
            _fill(section, rows, figures)


def rows_of(told: Record) -> Iterator[Row]:
    """Each run, in order; in place of those of a policy with several seeds their mean and standard deviation."""
    spread = {each["policy"]: each for each in told["spread"]}
    seen: dict[str, None] = {}
    for run in told["runs"]:
        policy = run["policy"]
        if policy not in spread:
            yield Row(run["name"], run)
        elif policy not in seen:
            seen[policy] = None
            yield Row(f"{policy}, mean of {spread[policy]['runs']}", spread[policy]["mean"])
            yield Row("\N{PLUS-MINUS SIGN}", spread[policy]["std"], counts=False)


def figure_of(run: Record, way: str) -> Any:
    """What is found on that way, None where nothing is; figures of figures are added up."""
    found: Any = run
    for name in way.split("."):
        found = found.get(name) if found else None
    return sum(found.values()) if isinstance(found, dict) else found


def _fill(section: Element, rows: Sequence[Row], figures: Sequence[Figure]) -> None:
    """A table, in which the best of each column is bold, unless all are equal."""
    table = SubElement(SubElement(section, "div", {"class": "wide"}), "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    for name in ("policy", *(figure.head for figure in figures)):
        SubElement(head, "th", {"class": "group"} if "," in name else {}).text = name
    body = SubElement(table, "tbody")
    tops = [_top(rows, figure) for figure in figures]
    for row in rows:
        line = SubElement(body, "tr")
        SubElement(line, "td").text = row.name
        for figure, top in zip(figures, tops, strict=True):
            value = figure_of(row.run, figure.way)
            is_best = row.counts and value is not None and value == top
            looks = " ".join([*["group"] * ("," in figure.head), *["best"] * is_best])
            cell = SubElement(line, "td", {"data-value": str(value), **({"class": looks} if looks else {})})
            cell.text = "-" if value is None else figure.text(value)


def _top(rows: Sequence[Row], figure: Figure) -> float | None:
    there = [value for row in rows if row.counts and (value := figure_of(row.run, figure.way)) is not None]
    return figure.best(there) if figure.best is not None and len(set(there)) > 1 else None


def _of(head: str, way: str, text: Text) -> list[Figure]:
    """Mean and percentiles of something of which less is better."""
    return [Figure(f"{head}, {of}" if of == "mean" else of, f"{way}.{of}", min, text) for of in OF]


def _count(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


def _number(value: float) -> str:
    return f"{value:,.2f}"


def _share(value: float) -> str:
    return f"{value:.4f}"


def _hours(gpu_time: float) -> str:
    return f"{gpu_time / DEVICE_MILLI / HOUR_MS:,.1f}"


_N: Final = Figure("n", "scorecard.jct_ms.n", None, _count)
TABLES: Final[tuple[tuple[list[Figure], str], ...]] = (
    ([_N, *_of("completion time", "scorecard.jct_ms", _time), *_of("waiting", "scorecard.queueing_ms", _time)], ""),
    (
        [
            _N,
            *_of("slowdown (10 s)", "scorecard.slowdown_10s", _number),
            *_of("slowdown (10 min)", "scorecard.slowdown_600s", _number),
        ],
        "",
    ),
    (
        [
            Figure("jobs", "scorecard.jobs", None, _count),
            Figure("starts", "starts", None, _count),
            Figure("preemptions", "preemptions", None, _count),
            Figure("not ended", "unended", None, _count),
            Figure("makespan", "scorecard.makespan_ms", min, _time),
            Figure("allocated", "scorecard.allocation", max, _share),
            Figure("until the last submission", "scorecard.allocation_in_submission", max, _share),
            Figure("of what was asked for", "scorecard.occupancy", max, _share),
            Figure("Jain's index", "scorecard.jain", max, _share),
        ],
        "",
    ),
    (
        [
            *_of("finish-time fairness", "scorecard.finish_time_fairness", _number),
            Figure("worst", "scorecard.worst_fairness", min, _number),
            Figure("above 1.05", "scorecard.unfair", min, _share),
            Figure("quota debt of a tenant, GPU-hours", "scorecard.quota_debt.mean", min, _hours),
            Figure("of what was due", "scorecard.quota_debt_share", min, _share),
            *_of("longest wait", "scorecard.starvation_ms", _time),
            Figure("of all", "scorecard.longest_starvation_ms", min, _time),
        ],
        "",
    ),
    (
        [
            Figure("fragmented GPUs, mean", "fragmentation.gpus.mean", min, _number),
            Figure("of idle", "fragmentation.of_idle.mean", min, _share),
            Figure("of no use to the first", "fragmentation.idle_of_no_use.mean", min, _share),
            Figure("largest gang, median", "fragmentation.largest_gang.p50", max, _count),
            Figure("gangs across switches", "scorecard.cross_switch", min, _share),
            Figure("of a job, preemptions", "scorecard.preemptions_per_job.mean", min, _number),
            Figure("migrations", "scorecard.migrations_per_job.mean", min, _number),
            Figure("GPU-hours moved", "scorecard.moved", min, _hours),
            Figure("cycle, ms, median", "self_cost.cycle_ms.p50", min, _number),
            Figure("p99", "self_cost.cycle_ms.p99", min, _number),
        ],
        "",
    ),
    (
        [
            Figure("goodput", "goodput.goodput", max, _share),
            Figure("ETTR", "goodput.ettr", max, _share),
            Figure("interruptions", "goodput.interruptions", None, _count),
            Figure("mean time to one", "goodput.mtti_ms", max, _time),
            Figure("to recover", "goodput.recovery_ms.mean", min, _time),
            Figure("GPU-hours lost, in all", "goodput.lost", min, _hours),
            Figure("first starts", "goodput.lost.start", min, _hours),
            Figure("starts again", "goodput.lost.restart", min, _hours),
            Figure("checkpoints", "goodput.lost.checkpoint", min, _hours),
            Figure("rolled back", "goodput.lost.rollback", min, _hours),
            Figure("until known", "goodput.lost.detection", min, _hours),
            Figure("stopping", "goodput.lost.stop", min, _hours),
            Figure("waiting for nodes", "goodput.waiting_for_nodes", min, _hours),
        ],
        "goodput.lost",
    ),
    (
        [
            Figure("deadlines", "goodput.deadlines", None, _count),
            Figure("met", "goodput.deadlines_met", max, _share),
        ],
        "goodput.deadlines",
    ),
    (
        [
            Figure("cost", "cost.total", min, _number),
            Figure("node-hours", "cost.node_hours", None, _number),
            Figure("of a finished GPU-hour", "cost.per_gpu_hour", min, _share),
        ],
        "cost.total",
    ),
)
"""Columns, and the way to a figure without which the table says nothing."""
