"""The table `bench/tables/pool`, reduced: simulations compared with a pool of GPUs that takes no time.

The pool is a function of this file and no part of ganger. It equals the published table to the printed digit (easy is
no worse); and simulations equal it, job by job, on the first jobs of each cluster."""

import csv
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from bench.tables.pool import ORDERS, columns
from ganger import registry
from ganger.core.state.state import State
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.metrics.scorecard import score
from ganger.simulation.trace_replay import TraceRun, simulate_trace
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import RecordedJob
from tests.examples import one_in_gate
from tests.simulator.trace_samples import TRACES

JOBS_COMPARED = 150
"""Jobs that are simulated."""
GPUS = 24
"""On so few that they wait."""


def expected() -> list[dict[str, str]]:
    path = TRACES / "expected" / "pool_reference.csv"
    rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else ()
    return [row for row in rows if row["policy"] in ORDERS]


@dataclass
class Pool:
    """A pool of GPUs, its waiting jobs, and the ends of those that run."""

    free: int
    now_ms: int = 0
    queue: list[RecordedJob] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    started: dict[str, int] = field(default_factory=dict)

    def start(self, job: RecordedJob) -> None:
        self.free -= job.gpus
        self.queue.remove(job)
        self.started[job.name] = self.now_ms
        heapq.heappush(self.ends, (self.now_ms + lasts_ms(job), job.gpus))


def lasts_ms(job: RecordedJob) -> int:
    assert job.duration_ms is not None
    return job.duration_ms


def fifo(pool: Pool) -> None:
    while pool.queue and pool.queue[0].gpus <= pool.free:
        pool.start(pool.queue[0])


def greedy(pool: Pool) -> None:
    for job in tuple(pool.queue):
        if not pool.free:
            return
        if job.gpus <= pool.free:
            pool.start(job)


def sjf(pool: Pool) -> None:
    for job in sorted(pool.queue, key=lasts_ms):
        if job.gpus <= pool.free:
            pool.start(job)


def easy(pool: Pool) -> None:
    """Start jobs that end before the reserved start of the first one, or fit beside it then."""
    fifo(pool)
    if not pool.queue:
        return
    there, first, shadow_ms = pool.free, pool.queue[0], 0
    for end_ms, gpus in sorted(pool.ends):
        if there >= first.gpus and end_ms > shadow_ms:
            break
        there, shadow_ms = there + gpus, end_ms
    over = there - first.gpus
    for job in tuple(pool.queue[1:]):
        ends_before = pool.now_ms + lasts_ms(job) <= shadow_ms
        if job.gpus <= pool.free and (ends_before or job.gpus <= over):
            over -= 0 if ends_before else job.gpus
            pool.start(job)


POLICIES: dict[str, Callable[[Pool], None]] = {"fifo": fifo, "greedy": greedy, "sjf": sjf, "easy": easy}


def run(jobs: tuple[RecordedJob, ...], gpus: int, policy: Callable[[Pool], None]) -> list[JobHistory]:
    pool, coming = Pool(gpus), list(reversed(jobs))
    while coming or pool.ends:
        pool.now_ms = min([job.submitted_ms for job in coming[-1:]] + [end_ms for end_ms, _ in pool.ends[:1]])
        while pool.ends and pool.ends[0][0] <= pool.now_ms:
            pool.free += heapq.heappop(pool.ends)[1]
        while coming and coming[-1].submitted_ms <= pool.now_ms:
            pool.queue.append(coming.pop())
        policy(pool)
    return [history(job, pool.started[job.name]) for job in jobs]


def history(job: RecordedJob, at_ms: int) -> JobHistory:
    end_ms = at_ms + lasts_ms(job)
    return JobHistory(
        tenant="",
        gpu_milli=job.asked_gpu_milli,
        submitted_ms=job.submitted_ms,
        duration_ms=lasts_ms(job),
        running=((at_ms, end_ms),),
        ended_ms=end_ms,
    )


@pytest.mark.parametrize("row", one_in_gate(expected()), ids=lambda row: f"{row['trace']}-{row['policy']}")
def test_the_pool_is_measured_to_the_printed_digit(row: dict[str, str]) -> None:
    trace, gpus = read_jobs(TRACES / "elasticflow" / f"{row['trace']}.csv.gz"), int(row["gpus"])
    found = columns(score(run(trace.records, gpus, POLICIES[row["policy"]]), [(0, 1000 * gpus)], {}))
    if row["policy"] == "easy":  # the shadow is the same, but which of equal ends come before it is not said
        assert found["avg_jct"] <= float(row["avg_jct"])
    else:
        assert found == {name: float(row[name]) for name in found}


@pytest.mark.parametrize("row", one_in_gate(expected()), ids=lambda row: f"{row['trace']}-{row['policy']}")
def test_the_first_jobs_start_when_they_do_in_the_pool(row: dict[str, str]) -> None:
    trace = read_jobs(TRACES / "elasticflow" / f"{row['trace']}.csv.gz")
    jobs = tuple(job for job in trace.records if job.gpus <= GPUS)[:JOBS_COMPARED]
    pool = Node(name="pool", gpus=GPUS, cpu_milli=1, memory_bytes=1)
    document = document_of(replace(Rules(), order=ORDERS[row["policy"]]), State().document.queues)
    asked = TraceRun(trace=replace(trace, records=jobs), nodes=(pool,), order=registry.order, document=document)
    ours = [job.running[0][0] - job.submitted_ms for job in simulate_trace(asked).histories]
    assert ours == [job.running[0][0] - job.submitted_ms for job in run(jobs, GPUS, POLICIES[row["policy"]])]
    assert any(ours), "somebody waits"
