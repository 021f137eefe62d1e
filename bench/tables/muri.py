"""Muri (Zhao et al., SIGCOMM 2022): completion times of SRTF, SRSF and Tiresias on 64 GPUs, by the peer's own rules.

The published figures come from a simulator whose rules are not those of a cluster. They are written down here, beside
the table, and nowhere else: a job's work is a little more than was recorded; the cost of a start is taken at every
event, from all that run; ends are foretold without it, and come when they were foretold; SRTF and SRSF place all jobs
anew at every event; Tiresias counts GPUs and has no nodes. Beside each figure is that of ganger's own `srtf`, `srsf`
and `tiresias`, for the same jobs on 8 nodes x 8 GPUs, where a job does its work and a start costs nothing: what
differs is these rules.

`GANGER_BENCH_TRACES` says which traces (all).
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
"""Times of the peer's rules are whole microseconds: sums of floats would decide who of equal jobs goes first."""
STRETCH: Final = Fraction(1015, 1000)
"""Of the time of an iteration, in the peer's simulator."""
START_S: Final = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""What a start costs on 1, 2, 4, 8, 16 and 32 GPUs."""
OTHER_START_S: Final = 10
LIMITS_GPU_S: Final = (3_250, 7_200)
"""GPU-seconds after which a job leaves the first and the second queue of Tiresias."""
ORDERS: Final = {"SRTF": "srtf", "SRSF": "srsf", "Tiresias_L": "tiresias"}
JCT, MAKESPAN = "avg_jct_s", "makespan_s"
BARS: Final = {JCT: 0.001, MAKESPAN: 0.005}
"""How far a figure may be from the published one, of that."""
HELD: Final = frozenset(
    {(f"trace{number}{prime}", order) for number in (1, 3, 4) for prime in ("", "_pr") for order in ("SRTF", "SRSF")}
    | {(name, "Tiresias_L") for name in ("trace1", "trace3", "trace4", "trace3_pr")}
)
"""The others are printed beside them."""


@dataclass(slots=True, eq=False)
class Job:
    """number: in the order of the file; left_us: work that is left; start_us: what a start costs; ran_us: how long it
    had GPUs; ends_us: its foretold end, while it runs; queue: of Tiresias."""

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


Found = dict[str, float]
"""By metric."""
Choose = Callable[[list[Job]], list[Job]]
"""Who runs from now on, of those that came and have not ended; may order the list anew."""


def run() -> list[Figure]:
    """The table, printed, and of each figure that is held how far it is from the published one."""
    told = published()
    chosen = os.environ.get("GANGER_BENCH_TRACES", "").split()
    rows = [row for row in told if not chosen or row.trace in chosen]
    figures = []
    print(f"{'trace':10} {'policy':10} {'metric':11} {'published':>13} {'ours':>13} {'difference':>11}  own rules")
    with ProcessPoolExecutor() as processes:
        both = zip(processes.map(by_their_rules, rows), processes.map(by_our_rules, rows), strict=True)
        for row, (ours, own) in zip(rows, both, strict=True):
            for metric, theirs in told[row].items():
                off = ours[metric] / theirs - 1
                line = f"{row.trace:10} {row.policy:10} {metric:11} {theirs:13.1f} {ours[metric]:13.1f} {off:+11.5%}"
                print(f"{line}  {own[metric]:.1f}")
                if row in HELD:
                    figures.append(_held(row, metric, abs(off)))
    return figures


def published() -> dict[Row, Found]:
    """What is published of these policies, by row."""
    told: dict[Row, Found] = {}
    with (TRACES / "expected" / "muri_sigcomm22.csv").open() as file:
        for line in csv.DictReader(file):
            if line["policy"] in ORDERS and line["metric"] in BARS:
                told.setdefault(Row(line["trace"], line["policy"]), {})[line["metric"]] = float(line["value"])
    return told


def by_their_rules(row: Row) -> Found:
    """The figures of a row by the peer's rules."""
    trace = _trace(row.trace)
    jobs = [_job(number, trace, recorded) for number, recorded in enumerate(trace.records)]
    if row.policy == "Tiresias_L":
        advance(jobs, tiresias, limit_us)
    else:
        width = (lambda job: job.gpus) if row.policy == "SRSF" else (lambda _: 1)
        advance(jobs, lambda live: shortest(live, width), lambda _: None)
    return _figures([(job.submitted_us, job.ended_us or 0) for job in jobs])


def by_our_rules(row: Row) -> Found:
    """The same of ganger's own order on nodes, without stretch and costs."""
    trace = _trace(row.trace)
    work = [replace(each, duration_ms=round(_work_us(trace, each) / 1000)) for each in trace.records]
    nodes = tuple(Node(name=f"n{at}", gpus=GPUS, cpu_milli=10**9, memory_bytes=1 << 46) for at in range(NODES))
    document = document_of(replace(Rules(), order=ORDERS[row.policy]), State().queues)
    run = TraceRun(trace=replace(trace, records=tuple(work)), nodes=nodes, order=registry.order, document=document)
    histories = simulate_trace(run).histories
    first_ms = min(each.submitted_ms for each in histories)
    ended = [(each.submitted_ms, each.ended_ms) for each in histories if each.ended_ms is not None]
    return _figures([(1000 * (came - first_ms), 1000 * (ended_ms - first_ms)) for came, ended_ms in ended])


# -- the peer's rules --------------------------------------------------------------------------------------------------


def advance(jobs: Sequence[Job], choose: Choose, until_limit_us: Callable[[Job], int | None]) -> None:
    """Run all jobs to their ends. Events are submissions, foretold ends, and what `until_limit_us` says of those that
    run, from now; those of one moment are one event."""
    coming = sorted(jobs, key=lambda job: job.submitted_us)
    live: list[Job] = []
    now_us = came = 0
    while came < len(coming) or live:
        running = [job for job in live if job.runs]
        moments_us = [job.submitted_us for job in coming[came : came + 1]]
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
        while came < len(coming) and coming[came].submitted_us <= next_us:
            live.append(coming[came])
            came += 1
        now_us = next_us
        chosen = {id(job) for job in choose(live)}
        for job in live:
            job.runs = id(job) in chosen
            job.ends_us = now_us + job.left_us if job.runs else None


def shortest(live: list[Job], width: Callable[[Job], int]) -> list[Job]:
    """The least that is left first, times `width`, on an empty cluster: what does not fit is passed over."""
    live.sort(key=lambda job: job.left_us * width(job))
    free = [GPUS] * NODES
    return [job for job in live if _place(free, job.gpus)]


def _place(free: list[int], gpus: int) -> bool:
    """On the first node with room; of more than a node has on whole ones, and the rest on one with room."""
    whole, rest = divmod(gpus, GPUS) if gpus > GPUS else (0, gpus)
    idle = [at for at, left in enumerate(free) if left == GPUS][:whole]
    if len(idle) < whole:
        return False
    beside = next((at for at, left in enumerate(free) if left >= rest and at not in idle), None) if rest else None
    if rest and beside is None:
        return False
    for at in idle:
        free[at] = 0
    if beside is not None:
        free[beside] -= rest
    return True


def tiresias(live: list[Job]) -> list[Job]:
    """Queue after queue, first fit by the number of free GPUs. Then those of each queue that run go before those that
    wait; who reaches the limit of a queue meanwhile is the last of the next, though it runs, as one that comes is of
    the first."""
    for job in sorted(filter(_is_through, live), key=lambda job: job.number):
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
    """Until a job that runs reaches the limit of its queue, in whole seconds of running. None: its queue has none."""
    if job.queue >= len(LIMITS_GPU_S):
        return None
    return max(0, math.ceil(LIMITS_GPU_S[job.queue] / job.gpus) * SECOND_US - job.ran_us)


def _is_through(job: Job) -> bool:
    """Whether it has reached the limit of its queue."""
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


def _figures(times_us: Iterable[tuple[int, int]]) -> Found:
    """Of (submitted, ended) of each job: makespan counts from 0."""
    every = list(times_us)
    mean_us = Fraction(sum(end - came for came, end in every), len(every))
    return {JCT: float(mean_us / SECOND_US), MAKESPAN: max(end for _, end in every) / SECOND_US}


def _held(row: Row, metric: str, off: float) -> Figure:
    name = f"muri_{row.trace}_{row.policy}_{metric}".lower()
    return Figure(name=name, unit="of the published", samples=(off,), value=off, op="<=", bar=BARS[metric])
