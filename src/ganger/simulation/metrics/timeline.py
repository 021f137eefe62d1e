"""A run as steps: GPUs allocated, waited for and healthy from each change to the next.

Times are ms, amounts of GPUs thousandths, so that integrals over time are exact.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ganger.simulation.metrics.run_history import Interval, JobHistory


@dataclass(frozen=True, slots=True)
class Step:
    """The amounts from `at_ms` to the next step. `jobs`: number of jobs that run or wait."""

    at_ms: int
    allocated: int
    waiting: int
    capacity: int
    jobs: int


def timeline_steps(jobs: Sequence[JobHistory], capacity: Sequence[Interval]) -> list[Step]:
    """Return the steps of a run from the first submission on."""
    changes = defaultdict[int, list[int]](lambda: [0, 0, 0, 0])
    for job in jobs:
        _change_demand(changes[job.submitted_ms], job, +1)
        if job.over_ms is not None:
            _change_demand(changes[job.over_ms], job, -1)
        for begin_ms, end_ms, milli in job.allocated:
            for at_ms, sign in ((begin_ms, +1), (end_ms, -1)):
                changes[at_ms][0] += sign * milli
                changes[at_ms][1] -= sign * job.gpu_milli  # an elastic job waits for no more than it asks for
    capacity_before, begin_ms = 0, first_ms(jobs)
    for at_ms, milli in capacity:
        changes[max(at_ms, begin_ms)][2] += milli - capacity_before
        capacity_before = milli
    steps, amounts = [], [0, 0, 0, 0]
    for at_ms in sorted(changes):
        amounts = [amount + change for amount, change in zip(amounts, changes[at_ms], strict=True)]
        steps.append(Step(at_ms, *amounts))
    return steps


def spans(steps: Sequence[Step], until_ms: int) -> Iterable[tuple[int, Step]]:
    """Yield (duration, step) of every step before `until_ms`, at which one begins."""
    return ((after.at_ms - step.at_ms, step) for step, after in pairwise(steps) if step.at_ms < until_ms)


def first_ms(jobs: Sequence[JobHistory]) -> int:
    """Return the time of the first submission."""
    return min((job.submitted_ms for job in jobs), default=0)


def last_ms(jobs: Sequence[JobHistory]) -> int:
    """Return the time at which the last job ended, ran or was submitted."""
    return max((time_ms for job in jobs for time_ms in _last_times_ms(job)), default=0)


def _last_times_ms(job: JobHistory) -> Iterable[int]:
    return (*(end_ms for _, end_ms in job.running), job.submitted_ms if job.over_ms is None else job.over_ms)


def _change_demand(change: list[int], job: JobHistory, sign: int) -> None:
    change[1] += sign * job.gpu_milli
    change[3] += sign
