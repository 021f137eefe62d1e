"""Muri (Zhao et al., SIGCOMM 2022): completion times of SRTF, SRSF and Tiresias on 64 GPUs, by the peer's own rules.

The published figures come from a simulator whose rules are not those of a cluster. They are implemented here, next to
the table, and nowhere else: a job's work is a little more than was recorded; the cost of a start is subtracted at every
event from all running jobs; ends are predicted without it, and come as predicted; SRTF and SRSF place all jobs again at
every event; Tiresias counts GPUs and has no nodes. Each figure is printed with that of ganger's own `srtf`, `srsf` and
`tiresias`, for the same jobs on 8 nodes x 8 GPUs, where a start costs nothing: the difference is these rules.

`GANGER_BENCH_TRACES` selects traces (default: all).
"""

import csv
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NamedTuple

from bench.measure import ROOT, Figure
from ganger import registry
from ganger.core.state.state import State
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of
from ganger.simulation.trace_replay import TraceRun, simulate_trace
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import RecordedJob, Trace

TRACES: Final = ROOT.parent / "shared" / "traces"
NODES, GPUS = 8, 8
SECOND_US: Final = 1_000_000
"""Times of the peer's rules are whole microseconds: sums of floats would decide the order of equal jobs."""
STRETCH: Final = Fraction(1015, 1000)
"""Factor on the time of an iteration, in the peer's simulator."""
START_S: Final = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Cost of a start on 1, 2, 4, 8, 16 and 32 GPUs."""
OTHER_START_S: Final = 10
LIMITS_GPU_S: Final = (3_250, 7_200)
"""GPU-seconds after which a job leaves the first and the second queue of Tiresias."""
ORDERS: Final = {"SRTF": "srtf", "SRSF": "srsf", "Tiresias_L": "tiresias"}
JCT, MAKESPAN = "avg_jct_s", "makespan_s"
BARS: Final = {JCT: 0.001, MAKESPAN: 0.005}
"""Largest relative difference from a published figure."""
HELD: Final = frozenset(
    {(f"trace{number}{prime}", order) for number in (1, 3, 4) for prime in ("", "_pr") for order in ("SRTF", "SRSF")}
    | {(name, "Tiresias_L") for name in ("trace1", "trace3", "trace4", "trace3_pr")}
)
"""Figures with a bar; the others are only printed."""


@dataclass(slots=True, eq=False)
class Job:
    """A job of the peer's simulator.

    Attributes:
        number: position in the file.
        left_us: remaining work.
        start_us: cost of a start.
        ran_us: time with GPUs.
        ends_us: predicted end, while it runs.
        queue: queue of Tiresias.
    """

    number: int
    submitted_us: int
    gpus: int
    left_us: int
    start_us: int
    runs: bool = False
    ran_us: int = 0
    ends_us: int | None = None
    ended_us: int | None = None
    queue: int = 0


class Row(NamedTuple):
    """One row of the table."""

    trace: str
    policy: str


Figures = dict[str, float]
"""Figure of each metric."""
Choose = Callable[[list[Job]], list[Job]]
"""Returns the jobs that run from now on, of those that have arrived and not ended; may sort its argument."""


def run() -> list[Figure]:
    """Print the table; return for each figure with a bar its relative difference from the published one."""
    published_figures = published()
    selected = os.environ.get("GANGER_BENCH_TRACES", "").split()
    rows = [row for row in published_figures if not selected or row.trace in selected]
    figures = []
    print(f"{'trace':10} {'policy':10} {'metric':11} {'published':>13} {'ours':>13} {'difference':>11}  own rules")
    with ProcessPoolExecutor() as processes:
        figures_of_rows = zip(processes.map(by_their_rules, rows), processes.map(by_our_rules, rows), strict=True)
        for row, (ours, own) in zip(rows, figures_of_rows, strict=True):
            for metric, theirs in published_figures[row].items():
                off = ours[metric] / theirs - 1
                line = f"{row.trace:10} {row.policy:10} {metric:11} {theirs:13.1f} {ours[metric]:13.1f} {off:+11.5%}"
                print(f"{line}  {own[metric]:.1f}")
                if row in HELD:
                    figures.append(_held(row, metric, abs(off)))
    return figures


def published() -> dict[Row, Figures]:
    """Return the published figures of these policies, by row."""
    figures: dict[Row, Figures] = {}
    with (TRACES / "expected" / "muri_sigcomm22.csv").open() as file:
        for line in csv.DictReader(file):
            if line["policy"] in ORDERS and line["metric"] in BARS:
                figures.setdefault(Row(line["trace"], line["policy"]), {})[line["metric"]] = float(line["value"])
    return figures


def by_their_rules(row: Row) -> Figures:
    """Return the figures of a row by the peer's rules."""
    trace = _trace(row.trace)
    jobs = [_job(number, trace, recorded) for number, recorded in enumerate(trace.records)]
    if row.policy == "Tiresias_L":
        advance(jobs, tiresias, limit_us)
    else:
        width = (lambda job: job.gpus) if row.policy == "SRSF" else (lambda _: 1)
        advance(jobs, lambda live: shortest(live, width), lambda _: None)
    return _figures([(job.submitted_us, job.ended_us or 0) for job in jobs])


def by_our_rules(row: Row) -> Figures:
    """Return the figures of a row by ganger's own queue order on nodes, without stretch and start costs."""
    trace = _trace(row.trace)
    work = [replace(record, duration_ms=round(_work_us(trace, record) / 1000)) for record in trace.records]
    nodes = tuple(Node(name=f"n{number}", gpus=GPUS, cpu_milli=10**9, memory_bytes=1 << 46) for number in range(NODES))
    document = document_of(replace(Rules(), order=ORDERS[row.policy]), State().document.queues)
    run = TraceRun(trace=replace(trace, records=tuple(work)), nodes=nodes, order=registry.order, document=document)
    histories = simulate_trace(run).histories
    first_ms = min(history.submitted_ms for history in histories)
    ended = [(history.submitted_ms, history.ended_ms) for history in histories if history.ended_ms is not None]
    return _figures(
        [(1000 * (submitted_ms - first_ms), 1000 * (ended_ms - first_ms)) for submitted_ms, ended_ms in ended]
    )


# -- the peer's rules --------------------------------------------------------------------------------------------------


def advance(jobs: Sequence[Job], choose: Choose, until_limit_us: Callable[[Job], int | None]) -> None:
    """Run all jobs to their ends.

    Events are submissions, predicted ends, and the limits that `until_limit_us` returns for running jobs, relative to
    now; those of one moment are one event.
    """
    by_submission = sorted(jobs, key=lambda job: job.submitted_us)
    live: list[Job] = []
    now_us = arrived = 0
    while arrived < len(by_submission) or live:
        running = [job for job in live if job.runs]
        moments_us = [job.submitted_us for job in by_submission[arrived : arrived + 1]]
        for job in running:
            until_us = until_limit_us(job)
            moments_us += [] if until_us is None else [now_us + until_us]
            moments_us += [] if job.ends_us is None else [job.ends_us]
        next_us = min(moments_us)
        for job in running:
            passed_us = next_us - now_us
            job.ran_us += passed_us
            job.left_us -= max(0, passed_us - job.start_us)
            if job.ends_us == next_us:
                job.ended_us = next_us
        live = [job for job in live if job.ended_us is None]
        while arrived < len(by_submission) and by_submission[arrived].submitted_us <= next_us:
            live.append(by_submission[arrived])
            arrived += 1
        now_us = next_us
        chosen = {id(job) for job in choose(live)}
        for job in live:
            job.runs = id(job) in chosen
            job.ends_us = now_us + job.left_us if job.runs else None


def shortest(live: list[Job], width: Callable[[Job], int]) -> list[Job]:
    """Choose by the least remaining work times `width`, on an empty cluster; jobs that do not fit are skipped."""
    live.sort(key=lambda job: job.left_us * width(job))
    free = [GPUS] * NODES
    return [job for job in live if _place(free, job.gpus)]


def _place(free: list[int], gpus: int) -> bool:
    """Place on the first node with room; a job larger than a node takes whole nodes, and its rest one with room."""
    whole, rest = divmod(gpus, GPUS) if gpus > GPUS else (0, gpus)
    idle = [index for index, left in enumerate(free) if left == GPUS][:whole]
    if len(idle) < whole:
        return False
    rest_index = (
        next((index for index, left in enumerate(free) if left >= rest and index not in idle), None) if rest else None
    )
    if rest and rest_index is None:
        return False
    for index in idle:
        free[index] = 0
    if rest_index is not None:
        free[rest_index] -= rest
    return True


def tiresias(live: list[Job]) -> list[Job]:
    """Choose queue after queue, first fit by the number of free GPUs.

    Then the running jobs of each queue go before the waiting ones. A job that reaches the limit of its queue becomes
    the last of the next queue, even while it runs, as an arriving job is the last of the first.
    """
    for job in sorted(filter(_has_reached_limit, live), key=lambda job: job.number):
        live.remove(job)
        job.queue += 1
        live.append(job)
    live.sort(key=lambda job: job.queue)
    free, chosen = NODES * GPUS, []
    for job in live:
        if job.gpus <= free:
            free -= job.gpus
            chosen.append(job)
    run = {id(job): None for job in chosen}
    live.sort(key=lambda job: (job.queue, id(job) not in run))
    return chosen


def limit_us(job: Job) -> int | None:
    """Return the running time until a job reaches the limit of its queue, in whole seconds; None without a limit."""
    if job.queue >= len(LIMITS_GPU_S):
        return None
    return max(0, math.ceil(LIMITS_GPU_S[job.queue] / job.gpus) * SECOND_US - job.ran_us)


def _has_reached_limit(job: Job) -> bool:
    """Return whether the job has reached the limit of its queue."""
    return job.queue < len(LIMITS_GPU_S) and job.ran_us * job.gpus >= LIMITS_GPU_S[job.queue] * SECOND_US


# -- jobs and figures --------------------------------------------------------------------------------------------------


def _trace(name: str) -> Trace[RecordedJob]:
    return read_jobs(TRACES / "muri" / f"{name}.csv.gz")


def _job(number: int, trace: Trace[RecordedJob], recorded: RecordedJob) -> Job:
    costs = START_S.get(recorded.model_name)
    start_us = SECOND_US * (OTHER_START_S if costs is None else costs[recorded.gpus.bit_length() - 1])
    work_us = round(_work_us(trace, recorded) * STRETCH)
    return Job(number, 1000 * recorded.submitted_ms, recorded.gpus, work_us, start_us)


def _work_us(trace: Trace[RecordedJob], recorded: RecordedJob) -> Fraction:
    iteration_ms = Fraction(recorded.extra[trace.extra_columns.index("iteration_time")])
    return (recorded.iterations or 0) * iteration_ms * 1000


def _figures(times_us: Iterable[tuple[int, int]]) -> Figures:
    """Return the figures of (submitted, ended) of each job; the makespan counts from 0."""
    times = list(times_us)
    mean_us = Fraction(sum(end - submitted for submitted, end in times), len(times))
    return {JCT: float(mean_us / SECOND_US), MAKESPAN: max(end for _, end in times) / SECOND_US}


def _held(row: Row, metric: str, off: float) -> Figure:
    name = f"muri_{row.trace}_{row.policy}_{metric}".lower()
    return Figure(name=name, unit="of the published", samples=(off,), value=off, op="<=", bar=BARS[metric])
