"""Figures by which simulated runs are compared: title, path in the JSON of a run, format, and which value is best.

`ganger sim compare` prints them and its report shows the same; `simulation.metrics.scorecard` and
`simulation.json_output` define and compute them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration

ROW_UNITS: Final = {"ganger_log": "event", "kubernetes": "object"}
"""Unit by which a flaw says where it is, for formats without lines."""
STATISTICS: Final = ("mean", "p50", "p95", "p99")
JsonObject = Mapping[str, Any]
"""The JSON answer of `sim compare`, or one of its runs."""
Best = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run.

    Attributes:
        title: The heading of its column.
        path: Its keys in the JSON of a run, joined by dots.
        text: Formats its value.
        best: `min` or `max`; None if no value is better than another.
        starts_group: Whether it is the first of several related figures.
    """

    title: str
    path: str
    text: Callable[[float], str]
    best: Best | None = None
    starts_group: bool = False

    def of(self, run: JsonObject) -> float | None:
        """Return the figure of a run, None if it has none; the sum of a mapping of figures."""
        value: Any = run
        for key in self.path.split("."):
            value = value.get(key) if value else None
        return sum(value.values()) if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or a statistic of several runs; `counts`: whether its figures are compared with those of other rows."""

    name: str
    run: JsonObject
    policy: str
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that are shown side by side; `needs`: the one without which the table is empty."""

    figures: tuple[Figure, ...]
    needs: Figure | None = None


def iter_rows(answer: JsonObject) -> Iterator[Row]:
    """Yield each run in order; for a policy with several seeds, the mean and standard deviation of its runs instead."""
    spreads = {spread["policy"]: spread for spread in answer["spread"]}
    yielded: set[str] = set()
    for run in answer["runs"]:
        policy = run["policy"]
        if policy not in spreads:
            yield Row(run["name"], run, policy)
        elif policy not in yielded:
            yielded.add(policy)
            spread = spreads[policy]
            yield Row(f"{policy}, mean of {spread['runs']}", spread["mean"], policy)
            yield Row(f"{policy}, \N{PLUS-MINUS SIGN}", spread["std"], policy, counts=False)


def iter_tables(rows: Iterable[Row]) -> Iterator[Table]:
    """Yield the tables that are not empty for these rows."""
    runs = [row.run for row in rows]
    for table in TABLES:
        if table.needs is None or any(map(table.needs.of, runs)):
            yield table


def job_set_notes(answer: JsonObject) -> Iterator[str]:
    """Yield sentences on the jobs that figures are of: those left out of all runs, and runs that ended others."""
    runs = answer["runs"]
    left_out, jobs = max(((run["left_out"], run["scorecard"]["jobs"]) for run in runs), default=(0, 0))
    if left_out:
        yield f"figures are of {jobs:,} of {jobs + left_out:,} jobs: the cluster could not hold the others"
    if any(run.get("common") for run in runs):
        yield f"not the same jobs ended in every run: compare the times of the {runs[0]['common']['jobs']:,} that did"


def _count(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


def _number(value: float) -> str:
    return f"{value:,.2f}"


def _share(value: float) -> str:
    return f"{value:.2%}"


def _precise(value: float) -> str:
    return f"{value:.4f}"


def _hours(gpu_time: float) -> str:
    return f"{gpu_time / DEVICE_MILLI / HOUR_MS:,.1f}"


def _statistics(title: str, path: str, text: Callable[[float], str]) -> tuple[Figure, ...]:
    """Return mean and percentiles of a figure of which less is better; the title is that of the first."""
    first, *others = STATISTICS
    return (
        Figure(f"{title} {first}", f"{path}.{first}", text, min, starts_group=True),
        *(Figure(statistic, f"{path}.{statistic}", text, min) for statistic in others),
    )


def statistic_of(name: str, statistic: str, *, is_common: bool) -> Figure:
    """Return a statistic of completion (`jct_ms`) or waiting (`queueing_ms`); of the jobs common to all runs."""
    title = f"{'wait' if name == 'queueing_ms' else 'completion'}, {statistic}"
    return Figure(title, f"{'common' if is_common else 'scorecard'}.{name}.{statistic}", _time, min)


MAKESPAN: Final = Figure("makespan", "scorecard.makespan_ms", _time, min)
ALLOCATED: Final = Figure("allocated", "scorecard.allocation", _share, max)
GOODPUT: Final = Figure("goodput", "goodput.goodput", _share, max)
_N: Final = Figure("n", "scorecard.jct_ms.n", _count)
_COMMON: Final = Figure("n in all runs", "common.jobs", _count)
_ESTIMATED_WAIT: Final = Figure("wait mean", "estimates.wait_ms", _time, min)
_LOST: Final = Figure("lost GPU-hours", "goodput.lost_gpu_us", _hours, min)
_DEADLINES: Final = Figure("deadlines", "goodput.deadlines", _count)
_COST: Final = Figure("cost", "cost.total", _number, min)
TABLES: Final = (
    Table((_N, *_statistics("JCT", "scorecard.jct_ms", _time), *_statistics("wait", "scorecard.queueing_ms", _time))),
    Table(
        (_COMMON, *_statistics("JCT", "common.jct_ms", _time), *_statistics("wait", "common.queueing_ms", _time)),
        needs=_COMMON,
    ),
    Table(
        (
            _ESTIMATED_WAIT,
            Figure("with exact estimates", "estimates.exact_wait_ms", _time, min),
            Figure("regret", "estimates.regret", _number, min),
        ),
        needs=_ESTIMATED_WAIT,
    ),
    Table(
        (
            _N,
            *_statistics("slowdown 10s", "scorecard.slowdown_10s", _number),
            *_statistics("slowdown 10m", "scorecard.slowdown_600s", _number),
        )
    ),
    Table(
        (
            Figure("jobs", "scorecard.jobs", _count),
            Figure("starts", "starts", _count),
            Figure("preemptions", "preemptions", _count),
            Figure("not ended", "unended", _count),
            MAKESPAN,
            ALLOCATED,
            Figure("allocated to last submission", "scorecard.allocation_in_submission", _share, max),
            Figure("occupancy", "scorecard.occupancy", _share, max),
            Figure("Jain's index", "scorecard.jain", _precise, max),
        )
    ),
    Table(
        (
            *_statistics("fairness", "scorecard.finish_time_fairness", _number),
            Figure("worst fairness", "scorecard.worst_fairness", _number, min),
            Figure("jobs over 1.05", "scorecard.unfair", _share, min),
            Figure("quota debt GPU-hours", "scorecard.quota_debt_gpu_us.mean", _hours, min),
            Figure("of GPU-hours due", "scorecard.quota_debt_share", _share, min),
        )
    ),
    Table(
        (
            *_statistics("longest wait", "scorecard.starvation_ms", _time),
            Figure("longest of all", "scorecard.longest_starvation_ms", _time, min),
        )
    ),
    Table(
        (
            Figure("fragmented GPUs", "fragmentation.gpus.mean", _number, min),
            Figure("of idle GPUs", "fragmentation.of_idle.mean", _share, min),
            Figure("idle GPUs unfit for oldest job", "fragmentation.idle_of_no_use.mean", _share, min),
            Figure("largest gang", "fragmentation.largest_gang.p50", _count, max),
            Figure("across switches", "scorecard.cross_switch", _share, min),
            Figure("preempted/job", "scorecard.preemptions_per_job.mean", _number, min),
            Figure("migrated/job", "scorecard.migrations_per_job.mean", _number, min),
            Figure("GPU-hours moved", "scorecard.moved_gpu_us", _hours, min),
            Figure("cycle ms p50", "self_cost.cycle_ms.p50", _number, min, starts_group=True),
            Figure("p99", "self_cost.cycle_ms.p99", _number, min),
        )
    ),
    Table(
        (
            GOODPUT,
            Figure("ETTR", "goodput.ettr", _share, max),
            Figure("interrupted", "goodput.interruptions", _count),
            Figure("MTTI", "goodput.mtti_ms", _time, max),
            Figure("MTTR", "goodput.recovery_ms.mean", _time, min),
            _LOST,
            Figure("start", "goodput.lost_gpu_us.start", _hours, min, starts_group=True),
            Figure("restart", "goodput.lost_gpu_us.restart", _hours, min),
            Figure("checkpoint", "goodput.lost_gpu_us.checkpoint", _hours, min),
            Figure("rollback", "goodput.lost_gpu_us.rollback", _hours, min),
            Figure("detection", "goodput.lost_gpu_us.detection", _hours, min),
            Figure("stop", "goodput.lost_gpu_us.stop", _hours, min),
            Figure("waited", "goodput.waiting_for_nodes_gpu_us", _hours, min),
        ),
        needs=_LOST,
    ),
    Table((_DEADLINES, Figure("deadlines met", "goodput.deadlines_met", _share, max)), needs=_DEADLINES),
    Table(
        (
            _COST,
            Figure("node-hours", "cost.node_hours", _number),
            Figure("per finished GPU-hour", "cost.per_gpu_hour", _precise, min),
        ),
        needs=_COST,
    ),
)
