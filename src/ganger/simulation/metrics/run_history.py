"""The history of a job in a run, simulated or recorded, of which every figure is computed; summaries of many values."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

NEVER_MS: Final = 1 << 62
"""Later than the end of every run."""
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One allocation of a job's nodes, from `began_ms` to `ended_ms`.

    nodes: number of nodes
    first_ms: work that was kept before
    kept_ms: work that was kept after; None if the job ended well
    stopped_ms: time of the stop
    failed_ms: time of the first failure of a node
    lost_ms: time at which the last loss of a node was known
    preempted: the stop was a preemption
    moved: the attempt before was on other nodes
    switches: number of domains of the innermost level that its nodes are in; 0 if unknown
    gpu_types: types of GPU of its nodes
    size: GPUs, as a multiple of those of the job
    time_ratio: ms that a ms of work takes on its nodes
    """

    began_ms: int
    ended_ms: int
    nodes: int
    first_ms: int = 0
    kept_ms: int | None = None
    stopped_ms: int | None = None
    failed_ms: int | None = None
    lost_ms: int | None = None
    preempted: bool = False
    moved: bool = False
    switches: int = 0
    gpu_types: tuple[str, ...] = ()
    size: int | Fraction = 1
    time_ratio: int | Fraction = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """The history of one job.

    gpu_milli: thousandths of GPUs that it asks for
    duration_ms: how long it runs undisturbed with these, on the type of GPU that it last ran on
    work_ms: the same on the type that work is measured on; None: as long
    running: intervals in which it ran, in order and apart
    ended_ms: time of its good end; None if it has none
    gone_ms: time at which it was stopped for good; None if it ended well, waits or runs
    deadline_ms: time by which it should have ended
    """

    tenant: str
    gpu_milli: int
    submitted_ms: int
    duration_ms: int
    running: tuple[Interval, ...] = ()
    ended_ms: int | None = None
    gone_ms: int | None = None
    deadline_ms: int | None = None
    attempts: tuple[Attempt, ...] = ()
    work_ms: int | None = None

    @property
    def first_start_ms(self) -> int | None:
        """Time of its first start; None if it never started. A job of no duration starts without running."""
        times_ms = [
            *(attempt.began_ms for attempt in self.attempts[:1]),
            *(begin_ms for begin_ms, _ in self.running[:1]),
        ]
        return min(times_ms, default=None)

    @property
    def over_ms(self) -> int | None:
        """Time of its end, good or not; None if it waits or runs."""
        return self.gone_ms if self.ended_ms is None else self.ended_ms

    @property
    def allocated(self) -> Iterator[tuple[int, int, int]]:
        """Begin and end of each interval in which it ran, and thousandths of GPUs meanwhile."""
        if all(attempt.size == 1 for attempt in self.attempts):
            return ((begin_ms, end_ms, self.gpu_milli) for begin_ms, end_ms in self.running)
        return (
            (attempt.began_ms, attempt.ended_ms, int(self.gpu_milli * attempt.size))
            for attempt in self.attempts
            if attempt.began_ms < attempt.ended_ms
        )

    @property
    def gpu_us(self) -> int:
        """Total of the GPU time that it was allocated, in GPU-microseconds: thousandths of a GPU times ms."""
        return sum((end_ms - begin_ms) * milli for begin_ms, end_ms, milli in self.allocated)

    @property
    def ran_ms(self) -> int:
        """Total running time."""
        return sum(end_ms - begin_ms for begin_ms, end_ms in self.running)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of `n` values; None without any.

    p95 is the element at floor(0.95 n) of the sorted values, counted from 0.
    """

    n: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


def summary(values: Iterable[float]) -> Summary:
    """Return the number of values, their mean and percentiles."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Summary(0)
    p50, p95, p99 = (ordered[n * percent // 100] for percent in (50, 95, 99))
    return Summary(n, math.fsum(ordered) / n, p50, p95, p99)


def waiting_intervals(job: JobHistory) -> Iterator[Interval]:
    """Yield the intervals between submission and end in which the job did not run.

    A job that neither ended nor was stopped for good waits for ever.
    """
    since_ms = job.submitted_ms
    for begin_ms, end_ms in job.running:
        if begin_ms > since_ms:
            yield since_ms, begin_ms
        since_ms = end_ms
    over_ms = NEVER_MS if job.over_ms is None else job.over_ms
    if over_ms > since_ms:
        yield since_ms, over_ms
