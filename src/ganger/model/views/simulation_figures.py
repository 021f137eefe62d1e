"""The figures by which simulated runs are compared: what each is called, where it is found, how it is written.

`ganger sim compare` prints them (`cli.sim.sim_compare`), and its report shows the same
(`simulation.report.html_report`). What they mean is said where each is worked out (`simulation.metrics.scorecard`,
`simulation.json_output`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration

OF: Final = ("mean", "p50", "p95", "p99")
Told = Mapping[str, Any]
"""As JSON has it: the answer of `sim compare`, or one of its runs."""
Best = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class Figure:
    """title: of its column; way: to it, from a run; text: how it is written; best: `min` or `max`, None where none is
    better; begins: whether it is the first of some that belong together."""

    title: str
    way: str
    text: Callable[[float], str]
    best: Best | None = None
    begins: bool = False

    def of(self, run: Told) -> float | None:
        """None where a run has none; figures of figures are added up."""
        found: Any = run
        for name in self.way.split("."):
            found = found.get(name) if found else None
        return sum(found.values()) if isinstance(found, dict) else found


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or what several came to; `counts`: its figures are compared with those of others."""

    name: str
    run: Told
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Figures beside each other; `needs`: the one without which it says nothing."""

    figures: tuple[Figure, ...]
    needs: Figure | None = None


def rows_of(told: Told) -> Iterator[Row]:
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
            yield Row(f"{policy}, \N{PLUS-MINUS SIGN}", spread[policy]["std"], counts=False)


def tables_of(rows: Iterable[Row]) -> Iterator[Table]:
    """Those that have something to say of these rows."""
    runs = [row.run for row in rows]
    for table in TABLES:
        if table.needs is None or any(map(table.needs.of, runs)):
            yield table


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


def _of(title: str, way: str, text: Callable[[float], str]) -> tuple[Figure, ...]:
    """Mean and percentiles of something of which less is better; the first has the title."""
    first, *rest = OF
    later = (Figure(of, f"{way}.{of}", text, min) for of in rest)
    return (Figure(f"{title} {first}", f"{way}.{first}", text, min, begins=True), *later)


_N: Final = Figure("n", "scorecard.jct_ms.n", _count)
_LOST: Final = Figure("lost GPU-h", "goodput.lost", _hours, min)
_DEADLINES: Final = Figure("deadlines", "goodput.deadlines", _count)
_COST: Final = Figure("cost", "cost.total", _number, min)
TABLES: Final = (
    Table((_N, *_of("JCT", "scorecard.jct_ms", _time), *_of("wait", "scorecard.queueing_ms", _time))),
    Table(
        (
            _N,
            *_of("slowdown 10s", "scorecard.slowdown_10s", _number),
            *_of("slowdown 10m", "scorecard.slowdown_600s", _number),
        )
    ),
    Table(
        (
            Figure("jobs", "scorecard.jobs", _count),
            Figure("starts", "starts", _count),
            Figure("preemptions", "preemptions", _count),
            Figure("not ended", "unended", _count),
            Figure("makespan", "scorecard.makespan_ms", _time, min),
            Figure("allocated", "scorecard.allocation", _share, max),
            Figure("to last submission", "scorecard.allocation_in_submission", _share, max),
            Figure("occupancy", "scorecard.occupancy", _share, max),
            Figure("Jain", "scorecard.jain", _share, max),
        )
    ),
    Table(
        (
            *_of("fairness", "scorecard.finish_time_fairness", _number),
            Figure("worst", "scorecard.worst_fairness", _number, min),
            Figure("over 1.05", "scorecard.unfair", _share, min),
            Figure("debt GPU-h", "scorecard.quota_debt.mean", _hours, min),
            Figure("of due", "scorecard.quota_debt_share", _share, min),
        )
    ),
    Table(
        (
            *_of("longest wait", "scorecard.starvation_ms", _time),
            Figure("of all", "scorecard.longest_starvation_ms", _time, min),
        )
    ),
    Table(
        (
            Figure("fragmented GPUs", "fragmentation.gpus.mean", _number, min),
            Figure("of idle", "fragmentation.of_idle.mean", _share, min),
            Figure("no use to first", "fragmentation.idle_of_no_use.mean", _share, min),
            Figure("largest gang", "fragmentation.largest_gang.p50", _count, max),
            Figure("across switches", "scorecard.cross_switch", _share, min),
            Figure("preempted/job", "scorecard.preemptions_per_job.mean", _number, min),
            Figure("migrated/job", "scorecard.migrations_per_job.mean", _number, min),
            Figure("GPU-h moved", "scorecard.moved", _hours, min),
            Figure("cycle ms p50", "self_cost.cycle_ms.p50", _number, min, begins=True),
            Figure("p99", "self_cost.cycle_ms.p99", _number, min),
        )
    ),
    Table(
        (
            Figure("goodput", "goodput.goodput", _share, max),
            Figure("ETTR", "goodput.ettr", _share, max),
            Figure("interrupted", "goodput.interruptions", _count),
            Figure("MTTI", "goodput.mtti_ms", _time, max),
            Figure("MTTR", "goodput.recovery_ms.mean", _time, min),
            _LOST,
            Figure("start", "goodput.lost.start", _hours, min, begins=True),
            Figure("restart", "goodput.lost.restart", _hours, min),
            Figure("checkpoint", "goodput.lost.checkpoint", _hours, min),
            Figure("rollback", "goodput.lost.rollback", _hours, min),
            Figure("detection", "goodput.lost.detection", _hours, min),
            Figure("stop", "goodput.lost.stop", _hours, min),
            Figure("waited", "goodput.waiting_for_nodes", _hours, min),
        ),
        needs=_LOST,
    ),
    Table((_DEADLINES, Figure("met", "goodput.deadlines_met", _share, max)), needs=_DEADLINES),
    Table(
        (
            _COST,
            Figure("node-h", "cost.node_hours", _number),
            Figure("a finished GPU-h", "cost.per_gpu_hour", _share, min),
        ),
        needs=_COST,
    ),
)
