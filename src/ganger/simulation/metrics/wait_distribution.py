"""The distribution of waiting over the jobs that ended: quantiles for a chart, and summaries by how long jobs run.

A mean over all jobs says little of either end: a policy that favours short jobs makes the many wait less and a few long
ones far more.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS
from ganger.simulation.metrics.run_history import JobHistory, Summary, summary

QUANTILES: Final = 200
"""Number of steps of the chart: half a percent of the jobs each."""
DURATION_CLASSES: Final = (
    (MINUTE_MS, "<1m"),
    (10 * MINUTE_MS, "1m-10m"),
    (HOUR_MS, "10m-1h"),
    (6 * HOUR_MS, "1h-6h"),
    (DAY_MS, "6h-1d"),
    (1 << 62, ">=1d"),
)
"""(exclusive upper bound of the duration, name)."""


def wait_quantiles_ms(jobs: Iterable[JobHistory]) -> list[float]:
    """Return the waiting time that 0, 1/200, 2/200 ... 1 of the jobs that ended do not exceed; empty without any."""
    waits_ms = sorted(wait_ms for job in jobs if (wait_ms := waited_ms(job)) is not None)
    last = len(waits_ms) - 1
    return [float(waits_ms[round(last * step / QUANTILES)]) for step in range(QUANTILES + 1)] if waits_ms else []


def wait_by_duration(jobs: Sequence[JobHistory]) -> dict[str, Summary]:
    """Return the waiting time of the jobs that ended, for each class of durations that occurs, the shortest first."""
    waits_ms: dict[str, list[int]] = {name: [] for _, name in DURATION_CLASSES}
    for job in jobs:
        wait_ms = waited_ms(job)
        if wait_ms is not None:
            waits_ms[duration_class(job.duration_ms)].append(wait_ms)
    return {name: summary(of_class) for name, of_class in waits_ms.items() if of_class}


def duration_class(duration_ms: int) -> str:
    """Return the class of a duration."""
    return next(name for below_ms, name in DURATION_CLASSES if duration_ms < below_ms)


def waited_ms(job: JobHistory) -> int | None:
    """Return the time between submission and end in which a job did not run; None if it did not end."""
    return None if job.ended_ms is None else job.ended_ms - job.submitted_ms - job.ran_ms
