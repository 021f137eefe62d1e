"""A submission, and a read of the state after it, with 100,000 pending jobs: the server's work for each new job.

The real loop and log, one after the other, on fully allocated nodes; without socket and disk. 500 users in 40 queues,
jobs of eight sizes. `submission_cycle`: the fold, the cycle and the rows of the log; `submission_read`: the wait of a
reader afterwards; `submission_copy`: the cost of a whole copy of the state. CPU time.
"""

import gc
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future

from bench.measure import Figure, median
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.loop import Loop, LoopRequest
from ganger.engine.wall_clock import WallClock
from ganger.model.cluster import Node
from ganger.model.decision import Start, Stop
from ganger.model.event import NodesListed, QueueSet, Submitted
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS
from ganger.ports import LiveGeneration, Report
from ganger.registry import policies

WAITING = int(os.environ.get("GANGER_BENCH_WAITING", "100000"))
NODES, GPUS, USERS, QUEUES = 1_000, 8, 500, 40
TOGETHER, SAMPLES = 5_000, 60
BAR_S = 0.01


class _Full:
    """A backend where nothing ends."""

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        listed = (Node(name=f"n{number}", gpus=GPUS, cpu_milli=64_000, memory_bytes=1 << 40) for number in range(NODES))
        report(NodesListed(nodes=tuple(listed)))

    def start(self, start: Start, job: Job) -> None:
        """Do nothing: the job runs for ever."""

    def stop(self, stop: Stop, job: Job) -> None:
        """Do nothing: no job is ever stopped."""

    def forget(self, gang: str) -> None:
        """Do nothing: nothing is kept."""


def run() -> list[Figure]:
    loop = Loop(EventLog(MEMORY), _Full(), lambda _: policies()["dynamic"], WallClock(), "bench")  # type: ignore[arg-type] - only what the loop calls
    loop.open()
    loop.run_cycle(loop.drain())
    loop.run_cycle([_request(QueueSet(queue=Queue(name=f"q{number}"))) for number in range(QUEUES)])
    number = 0
    while number < NODES + WAITING:
        loop.run_cycle([_request(_submitted(index)) for index in range(number, number + TOGETHER)])
        number += TOGETHER
    with loop.view():
        gc.collect()
        gc.freeze()
    samples = list(_samples(loop, number))
    before = time.process_time()
    loop.copy()
    copied_s = time.process_time() - before
    gc.unfreeze()
    cycles_s, reads_s = zip(*samples, strict=True)
    return [
        median("submission_cycle", "s", cycles_s),
        median("submission_read", "s", reads_s, under=BAR_S),
        median("submission_copy", "s", [copied_s]),
    ]


def _samples(loop: Loop, first: int) -> Iterator[tuple[float, float]]:
    """Yield the times of the cycle and of the read for one submission after the other."""
    for number in range(first, first + SAMPLES):
        event = _submitted(number)
        before = time.process_time()
        loop.run_cycle([_request(event)])
        cycle_end = time.process_time()
        with loop.view() as state:
            if event.job.id not in state.gangs:
                raise AssertionError(f"{event.job.id} was submitted and is not in the state")
        yield cycle_end - before, time.process_time() - cycle_end


def _request(event: Submitted | QueueSet) -> LoopRequest:
    return event, Future()


def _submitted(number: int) -> Submitted:
    gpus = 1 << number % 4
    spec = JobSpec(
        name="train",
        queue=f"q{number % QUEUES}",
        nodes=1 + number % 8 // 4,
        run=("python", "train.py"),
        resources=Resources(gpu=GpuRequest(count=gpus), cpu_milli=1_000 * gpus),
        limits=Limits(time_ms=(1 + number % 7) * HOUR_MS),
    )
    job = Job(id=f"train-{number:06}", user=f"u{number % USERS}", spec=spec, origin=Origin(directory="/"))
    return Submitted(job=job)
