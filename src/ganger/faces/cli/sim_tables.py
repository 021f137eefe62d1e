"""The tables of `ganger sim compare`: a row for each run, or for the mean and the spread of several with other seeds.

Called by `faces.cli.sim_compare`, with the answer that JSON has. A figure is named by its way there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ganger.faces.cli.render import Column, show, show_table
from ganger.faces.cli.sim_options import Record
from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration

OF: Final = ("mean", "p50", "p95", "p99")
Text = Callable[[float], str]
Figure = tuple[str, str, Text]
"""What a column is called, the way to its figure, and how that is written."""


def show_runs(told: Record) -> None:
    """All tables that have something to say of these runs."""
    rows = list(_rows(told))
    for figures, needs in TABLES:
        if not needs or any(_value(run, needs) for _, run in rows):
            show()
            columns = [Column("POLICY"), *(Column(title, right=True) for title, _, _ in figures)]
            show_table(columns, [[name, *_texts(run, figures)] for name, run in rows], "")


def _rows(told: Record) -> Iterator[tuple[str, Record]]:
    """What is shown, by its name: of a policy with several seeds the mean of its runs, and their standard deviation."""
    spread = {each["policy"]: each for each in told["spread"]}
    seen: dict[str, None] = {}
    for run in told["runs"]:
        policy = run["policy"]
        if policy not in spread:
            yield run["name"], run
        elif policy not in seen:
            seen[policy] = None
            yield f"{policy}, mean of {spread[policy]['runs']}", spread[policy]["mean"]
            yield f"{policy}, +/-", spread[policy]["std"]


def _texts(run: Record, figures: Sequence[Figure]) -> Iterator[str]:
    for _, way, text in figures:
        value = _value(run, way)
        yield "-" if value is None else text(value)


def _value(run: Record, way: str) -> Any:
    """None where there is no such figure."""
    found: Any = run
    for name in way.split("."):
        found = found.get(name) if found else None
    return sum(found.values()) if isinstance(found, dict) else found


def _of(title: str, way: str, text: Text) -> list[Figure]:
    """Mean and percentiles; the first has the title."""
    return [(f"{title} {of.upper()}" if of == "mean" else of.upper(), f"{way}.{of}", text) for of in OF]


def _count(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


def _number(value: float) -> str:
    return f"{value:.2f}"


def _share(value: float) -> str:
    return f"{value:.4f}"


def _hours(gpu_time: float) -> str:
    return f"{gpu_time / DEVICE_MILLI / HOUR_MS:.1f}"


_N: Final = ("N", "scorecard.jct_ms.n", _count)
TABLES: Final[tuple[tuple[list[Figure], str], ...]] = (
    ([_N, *_of("JCT", "scorecard.jct_ms", _time), *_of("WAIT", "scorecard.queueing_ms", _time)], ""),
    (
        [_N, *_of("SLOWDOWN 10S", "scorecard.slowdown_10s", _number), *_of("10M", "scorecard.slowdown_600s", _number)],
        "",
    ),
    (
        [
            ("MAKESPAN", "scorecard.makespan_ms", _time),
            ("ALLOCATED", "scorecard.allocation", _share),
            ("TO LAST SUBMISSION", "scorecard.allocation_in_submission", _share),
            ("OCCUPANCY", "scorecard.occupancy", _share),
            ("JAIN", "scorecard.jain", _share),
            ("STARTS", "starts", _count),
            ("PREEMPTIONS", "preemptions", _count),
            ("NOT ENDED", "unended", _count),
        ],
        "",
    ),
    (
        [
            *_of("FAIRNESS", "scorecard.finish_time_fairness", _number),
            ("WORST", "scorecard.worst_fairness", _number),
            ("OVER 1.05", "scorecard.unfair", _share),
            ("DEBT GPU-H", "scorecard.quota_debt.mean", _hours),
            ("OF DUE", "scorecard.quota_debt_share", _share),
            ("LONGEST WAIT", "scorecard.longest_starvation_ms", _time),
        ],
        "",
    ),
    (
        [
            ("FRAGMENTED GPUS", "fragmentation.gpus.mean", _number),
            ("OF IDLE", "fragmentation.of_idle.mean", _share),
            ("NO USE TO FIRST", "fragmentation.idle_of_no_use.mean", _share),
            ("LARGEST GANG", "fragmentation.largest_gang.p50", _count),
            ("ACROSS SWITCHES", "scorecard.cross_switch", _share),
            ("PREEMPTED/JOB", "scorecard.preemptions_per_job.mean", _number),
            ("MIGRATED/JOB", "scorecard.migrations_per_job.mean", _number),
            ("GPU-H MOVED", "scorecard.moved", _hours),
            ("CYCLE MS P50", "self_cost.cycle_ms.p50", _number),
            ("P99", "self_cost.cycle_ms.p99", _number),
        ],
        "",
    ),
    (
        [
            ("GOODPUT", "goodput.goodput", _share),
            ("ETTR", "goodput.ettr", _share),
            ("LOST GPU-H", "goodput.lost", _hours),
            ("START", "goodput.lost.start", _hours),
            ("RESTART", "goodput.lost.restart", _hours),
            ("CHECKPOINT", "goodput.lost.checkpoint", _hours),
            ("ROLLBACK", "goodput.lost.rollback", _hours),
            ("DETECTION", "goodput.lost.detection", _hours),
            ("STOP", "goodput.lost.stop", _hours),
            ("WAITED", "goodput.waiting_for_nodes", _hours),
            ("INTERRUPTED", "goodput.interruptions", _count),
            ("MTTI", "goodput.mtti_ms", _time),
            ("MTTR", "goodput.recovery_ms.mean", _time),
        ],
        "goodput.lost",
    ),
    ([("DEADLINES", "goodput.deadlines", _count), ("MET", "goodput.deadlines_met", _share)], "goodput.deadlines"),
    (
        [
            ("COST", "cost.total", _number),
            ("NODE-H", "cost.node_hours", _number),
            ("A FINISHED GPU-H", "cost.per_gpu_hour", _share),
        ],
        "cost.total",
    ),
)
"""Figures, and the way to one without which the table says nothing."""
