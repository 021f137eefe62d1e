"""A run as steps: what was allocated, waited for and there from each change to the next. Pure. Called by `scorecard`.

Times are ms, amounts of GPUs thousandths, so that integrals over time are exact.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ganger.simulation.metrics.run_history import History, Interval


@dataclass(frozen=True, slots=True)
class Step:
    """From `at_ms` to the next step so much was allocated, waited, and was there; `jobs` ran or waited."""

    at_ms: int
    allocated: int
    waiting: int
    capacity: int
    jobs: int


def steps(jobs: Sequence[History], capacity: Sequence[Interval]) -> list[Step]:
    """The run from the first submission on, wherever something changes."""
    changes = defaultdict[int, list[int]](lambda: [0, 0, 0, 0])
    for job in jobs:
        _arrive(changes[job.submitted_ms], job, +1)
        if job.over_ms is not None:
            _arrive(changes[job.over_ms], job, -1)
        for begin_ms, end_ms in job.running:
            for at_ms, sign in ((begin_ms, +1), (end_ms, -1)):
                changes[at_ms][0] += sign * job.gpu_milli
                changes[at_ms][1] -= sign * job.gpu_milli
    before, begins_ms = 0, first_ms(jobs)
    for at_ms, milli in capacity:
        changes[max(at_ms, begins_ms)][2] += milli - before
        before = milli
    found, now = [], [0, 0, 0, 0]
    for at_ms in sorted(changes):
        now = [value + change for value, change in zip(now, changes[at_ms], strict=True)]
        found.append(Step(at_ms, *now))
    return found


def spans(found: Sequence[Step], until_ms: int) -> Iterable[tuple[int, Step]]:
    """(how long it lasts, step) of every step before `until_ms`, at which one begins."""
    return ((after.at_ms - step.at_ms, step) for step, after in pairwise(found) if step.at_ms < until_ms)


def first_ms(jobs: Sequence[History]) -> int:
    """The first submission."""
    return min((job.submitted_ms for job in jobs), default=0)


def last_ms(jobs: Sequence[History]) -> int:
    """When the last of them ended, ran or was submitted."""
    return max((end_ms for job in jobs for end_ms in _ends(job)), default=0)


def _ends(job: History) -> Iterable[int]:
    return (*(end_ms for _, end_ms in job.running), job.submitted_ms if job.over_ms is None else job.over_ms)


def _arrive(change: list[int], job: History, sign: int) -> None:
    change[1] += sign * job.gpu_milli
    change[3] += sign
