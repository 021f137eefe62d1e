"""The course of a run over time, for charts: use of the cluster, waiting jobs, and the GPUs of each tenant.

Every value is the mean over its interval, not a sample, so that a chart adds up to the integrals of the scorecard. A
job waits from its submission until it ends, while it does not run; one that was stopped for good waits no more.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.model.units import DEVICE_MILLI
from ganger.simulation.metrics.run_history import JobHistory, waiting_intervals

INTERVALS: Final = 240
"""Number of intervals of a run: about as many as a picture can show."""
SIZE_CLASSES: Final = ((1, "< 1"), (2, "1"), (8, "2-7"), (9, "8"), (33, "9-32"), (1 << 62, "> 32"))
"""(exclusive upper bound in GPUs, name)."""
LISTED_TENANTS: Final = 7
"""Number of tenants that have a series of their own; the others share one."""
OTHERS: Final = "others"
Span = tuple[int, int, int]
"""(begin in ms, end in ms, amount)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The series of one run, in intervals of `step_ms` from the first submission on.

    allocated, waiting_gpus: GPUs
    waiting_jobs: number of jobs
    waiting: number of jobs by size class
    tenants: GPUs by tenant
    """

    step_ms: float
    allocated: list[float] = field(default_factory=list)
    waiting_jobs: list[float] = field(default_factory=list)
    waiting_gpus: list[float] = field(default_factory=list)
    waiting: dict[str, list[float]] = field(default_factory=dict)
    tenants: dict[str, list[float]] = field(default_factory=dict)


def series(jobs: Sequence[JobHistory]) -> Series:
    """Return the series of a run until its last end."""
    first_ms = min((job.submitted_ms for job in jobs), default=0)
    last_ms = max((end_ms for job in jobs for _, end_ms in job.running), default=first_ms)
    edges = np.linspace(first_ms, max(last_ms, first_ms + INTERVALS), INTERVALS + 1)

    def means(spans: Iterable[Span]) -> list[float]:
        return [round(float(value), 4) for value in _interval_means(list(spans), edges)]

    def gpu_means(spans: Iterable[Span]) -> list[float]:
        return [round(value / DEVICE_MILLI, 4) for value in means(spans)]

    waits = [(job, interval) for job in jobs for interval in waiting_intervals(job)]
    return Series(
        step_ms=float(edges[1] - edges[0]),
        allocated=gpu_means(_running_spans(jobs)),
        waiting_jobs=means((begin_ms, end_ms, 1) for _, (begin_ms, end_ms) in waits),
        waiting_gpus=gpu_means((*interval, job.gpu_milli) for job, interval in waits),
        waiting={
            name: means((*interval, 1) for job, interval in waits if size_class(job.gpu_milli) == name)
            for name in _size_classes(jobs)
        },
        tenants={name: gpu_means(_running_spans(jobs_of)) for name, jobs_of in _by_tenant(jobs).items()},
    )


def longest_waiting(jobs: Sequence[JobHistory], times_ms: Iterable[int]) -> Iterator[int | None]:
    """Yield, for each time in order, the index of the waiting job with the earliest submission; None if none waits.

    Of equal submissions the first of `jobs` counts.
    """
    waits = sorted(
        (begin_ms, index, end_ms) for index, job in enumerate(jobs) for begin_ms, end_ms in waiting_intervals(job)
    )
    waiting: list[tuple[int, int, int]] = []
    begun = 0
    for time_ms in times_ms:
        while begun < len(waits) and waits[begun][0] <= time_ms:
            _, index, end_ms = waits[begun]
            heapq.heappush(waiting, (jobs[index].submitted_ms, index, end_ms))
            begun += 1
        while waiting and waiting[0][2] <= time_ms:
            heapq.heappop(waiting)
        yield waiting[0][1] if waiting else None


def size_class(gpu_milli: int) -> str:
    """Return the size class of a job."""
    return next(name for below, name in SIZE_CLASSES if gpu_milli < below * DEVICE_MILLI)


def _interval_means(spans: Sequence[Span], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the spans' sum between each edge and the next."""
    if not spans:
        return np.zeros(edges.size - 1)
    begins, ends, amounts = np.array(spans, dtype=np.float64).T
    times = np.concatenate((begins, ends))
    by_time = np.argsort(times, kind="stable")
    # The integral of a step function is piecewise linear, so its value at any edge is an interpolation.
    times, level = times[by_time], np.cumsum(np.concatenate((amounts, -amounts))[by_time])
    integral = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times))))
    means: NDArray[np.float64] = np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    return np.maximum(means, 0.0)


def _running_spans(jobs: Iterable[JobHistory]) -> Iterator[Span]:
    return (span for job in jobs for span in job.allocated)


def _size_classes(jobs: Iterable[JobHistory]) -> list[str]:
    """Return the size classes that occur, the smallest first."""
    names = {size_class(job.gpu_milli): None for job in jobs}
    return [name for _, name in SIZE_CLASSES if name in names]


def _by_tenant(jobs: Iterable[JobHistory]) -> dict[str, list[JobHistory]]:
    """Return the jobs of the tenants with most GPU time, and of all others together; nothing for a single tenant."""
    gpu_time: Counter[str] = Counter()
    all_jobs = list(jobs)
    for job in all_jobs:
        gpu_time[job.tenant] += job.gpu_us
    if len(gpu_time) < 2:
        return {}
    largest = [name for name, _ in sorted(gpu_time.items(), key=lambda item: (-item[1], item[0]))[:LISTED_TENANTS]]
    jobs_of: dict[str, list[JobHistory]] = {name: [] for name in largest}
    for job in all_jobs:
        jobs_of.setdefault(job.tenant if job.tenant in largest else OTHERS, []).append(job)
    return jobs_of
