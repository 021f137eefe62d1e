"""How a run went over time: use of the cluster, who waits, and what each tenant has, from what ran when. Pure.

Called by `simulation.compare.contender` for pictures. Every value is the mean over its stretch of time, not a sample:
what is drawn adds up to the integrals of `scorecard`. A job waits from its submission until it ends, while it does not
run; one that was stopped for good waits no more."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.model.units import DEVICE_MILLI
from ganger.simulation.metrics.run_history import History, waited

STRETCHES: Final = 240
"""Into how many a run is cut: about as many as a picture can show."""
CLASSES: Final = ((1, "< 1"), (2, "1"), (8, "2-7"), (9, "8"), (33, "9-32"), (1 << 62, "> 32"))
"""Size classes by GPUs: from the one before to less than the first number."""
TENANTS: Final = 7
"""Of whom each has a line; the others have one together."""
OTHERS: Final = "others"
Span = tuple[int, int, int]
"""From when to when, in ms, and how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One run, in stretches of `step_ms` from the first submission on.

    allocated, waiting_gpus: GPUs; waiting_jobs: jobs; waiting: jobs by size class; tenants: GPUs that each had.
    """

    step_ms: float
    allocated: list[float] = field(default_factory=list)
    waiting_jobs: list[float] = field(default_factory=list)
    waiting_gpus: list[float] = field(default_factory=list)
    waiting: dict[str, list[float]] = field(default_factory=dict)
    tenants: dict[str, list[float]] = field(default_factory=dict)


def series(jobs: Sequence[History]) -> Series:
    """The series of a run until its last end."""
    first_ms = min((job.submitted_ms for job in jobs), default=0)
    last_ms = max((end_ms for job in jobs for _, end_ms in job.running), default=first_ms)
    edges = np.linspace(first_ms, max(last_ms, first_ms + STRETCHES), STRETCHES + 1)

    def means(spans: Iterable[Span]) -> list[float]:
        return [round(float(value), 4) for value in _means(list(spans), edges)]

    waits = [(job, span) for job in jobs for span in waited(job)]
    return Series(
        step_ms=float(edges[1] - edges[0]),
        allocated=[round(value / DEVICE_MILLI, 4) for value in means(_ran(jobs))],
        waiting_jobs=means((begin_ms, end_ms, 1) for _, (begin_ms, end_ms) in waits),
        waiting_gpus=[round(value / DEVICE_MILLI, 4) for value in means((*span, job.gpu_milli) for job, span in waits)],
        waiting={
            name: means((*span, 1) for job, span in waits if size_class(job.gpu_milli) == name)
            for name in _classes(jobs)
        },
        tenants={
            name: [round(value / DEVICE_MILLI, 4) for value in means(_ran(theirs))]
            for name, theirs in _by_tenant(jobs).items()
        },
    )


def heads(jobs: Sequence[History], moments_ms: Iterable[int]) -> Iterator[int | None]:
    """Of each of these moments, in order: which job, by its index, had waited since the earliest submission; None where
    nobody waits. Of equal submissions the first of `jobs`."""
    comes = sorted((begin_ms, at, end_ms) for at, job in enumerate(jobs) for begin_ms, end_ms in waited(job))
    waiting: list[tuple[int, int, int]] = []
    seen = 0
    for moment_ms in moments_ms:
        while seen < len(comes) and comes[seen][0] <= moment_ms:
            _, at, end_ms = comes[seen]
            heapq.heappush(waiting, (jobs[at].submitted_ms, at, end_ms))
            seen += 1
        while waiting and waiting[0][2] <= moment_ms:
            heapq.heappop(waiting)
        yield waiting[0][1] if waiting else None


def size_class(gpu_milli: int) -> str:
    """The class of a job of that size."""
    return next(name for below, name in CLASSES if gpu_milli < below * DEVICE_MILLI)


def _means(spans: Sequence[Span], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of their sum between each edge and the next."""
    if not spans:
        return np.zeros(edges.size - 1)
    begins, ends, amounts = np.array(spans, dtype=np.float64).T
    times = np.concatenate((begins, ends))
    by_time = np.argsort(times, kind="stable")
    times, level = times[by_time], np.cumsum(np.concatenate((amounts, -amounts))[by_time])
    until = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times))))
    found: NDArray[np.float64] = np.diff(np.interp(edges, times, until)) / np.diff(edges)
    return np.maximum(found, 0.0)


def _ran(jobs: Iterable[History]) -> Iterator[Span]:
    return ((*span, job.gpu_milli) for job in jobs for span in job.running)


def _classes(jobs: Iterable[History]) -> list[str]:
    """Size classes that occur, the smallest first."""
    there = {size_class(job.gpu_milli): None for job in jobs}
    return [name for _, name in CLASSES if name in there]


def _by_tenant(jobs: Iterable[History]) -> dict[str, list[History]]:
    """Jobs of those who had most GPU time, and of all others together; nothing where there is one tenant."""
    got: Counter[str] = Counter()
    every = list(jobs)
    for job in every:
        got[job.tenant] += job.gpu_milli * sum(end_ms - begin_ms for begin_ms, end_ms in job.running)
    if len(got) < 2:
        return {}
    most = [name for name, _ in sorted(got.items(), key=lambda each: (-each[1], each[0]))[:TENANTS]]
    found: dict[str, list[History]] = {name: [] for name in most}
    for job in every:
        found.setdefault(job.tenant if job.tenant in most else OTHERS, []).append(job)
    return found
