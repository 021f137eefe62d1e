"""How well a run went: waiting, slowdown, use of the cluster and fairness, from what ran when. Pure: no clock, no file.

Called by whoever has a finished run, simulated or real. Definitions: completion time (JCT) is from submission to end;
queueing is the part of it in which the job did not run, so that waiting after a preemption counts; bounded slowdown is
JCT over the job's own duration, with short jobs taken for `tau` long (Feitelson et al., "Theory and Practice in
Parallel Job Scheduling"); finish-time fairness is JCT over what it would be alone on an equal share (Mahajan et al.,
"Themis"); Jain's index is of what tenants got of what they are entitled to.

Times are ms, amounts of GPUs thousandths. Integrals over time are exact; only the last division is of floats.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ganger.model.units import SECOND_MS

TAU_MS: Final = (10 * SECOND_MS, 600 * SECOND_MS)
"""What is taken for the duration of shorter jobs, by the Parallel Workloads Archive and by traces of GPU clusters."""
FAIR: Final = 1.05
"""A job is treated unfairly whose finish-time fairness is above (Zheng et al., "Shockwave")."""
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One time that a job had its nodes, from `began_ms` to `ended_ms`.

    first_ms: work that was kept of it before; kept_ms: and after, None where the job came to its good end; stopped_ms:
    when it was told to stop; failed_ms: since when a node of it was lost, and lost_ms: when the last such loss was
    known.
    """

    began_ms: int
    ended_ms: int
    nodes: int
    first_ms: int = 0
    kept_ms: int | None = None
    stopped_ms: int | None = None
    failed_ms: int | None = None
    lost_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What became of one job. `running`: from when to when, in order and apart; `ended_ms`: None where it never did;
    `duration_ms`: how long it runs by itself; `alone_ms`: its JCT alone on an equal share, None where nobody asks;
    `deadline_ms`: by when it should have ended; `attempts`: how each run of it went, for `backends.simulator.goodput`.
    """

    tenant: str
    gpu_milli: int
    submitted_ms: int
    duration_ms: int
    running: tuple[Interval, ...] = ()
    ended_ms: int | None = None
    alone_ms: int | None = None
    deadline_ms: int | None = None
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of `n` values: of the sorted ones p95 is the one at floor(0.95 n), counted from 0. None
    without any."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """The figures of one run; None where a figure has no meaning, for want of jobs, capacity or tenants.

    allocation: GPU time that was allocated, of all there was, from the first submission to the last end;
    allocation_in_submission: until the last submission only, since the tail of a run says little of the scheduler.
    occupancy: of what could have been allocated, given what was asked for; with 1 no GPU is idle while somebody waits.
    unfair: the share of the jobs whose finish-time fairness is above `FAIR`.
    """

    jobs: int
    jct_ms: Summary
    queueing_ms: Summary
    first_start_ms: Summary
    slowdown: dict[int, Summary]
    makespan_ms: int | None
    allocation: float | None
    allocation_in_submission: float | None
    occupancy: float | None
    jain: float | None
    finish_time_fairness: Summary
    worst_fairness: float | None
    unfair: float | None


def score(jobs: Sequence[History], capacity: Sequence[Interval], entitled: Mapping[str, int]) -> Scorecard:
    """The figures of a run. `capacity`: (from when, thousandths of healthy GPUs) in order; `entitled`: of each tenant,
    in any unit."""
    ended = [(job, job.ended_ms - job.submitted_ms) for job in jobs if job.ended_ms is not None]
    rho = [jct_ms / job.alone_ms for job, jct_ms in ended if job.alone_ms]
    last_ms = max((end_ms for job in jobs for end_ms in _ends(job)), default=0)
    steps = _steps(jobs, capacity)
    return Scorecard(
        jobs=len(jobs),
        jct_ms=summary(jct_ms for _, jct_ms in ended),
        queueing_ms=summary(jct_ms - _ran_ms(job) for job, jct_ms in ended),
        first_start_ms=summary(job.running[0][0] - job.submitted_ms for job in jobs if job.running),
        slowdown={tau_ms: summary(_slowdown(job, jct_ms, tau_ms) for job, jct_ms in ended) for tau_ms in TAU_MS},
        makespan_ms=max(job.submitted_ms + jct_ms for job, jct_ms in ended) - _first_ms(jobs) if ended else None,
        allocation=_allocation(steps, last_ms),
        allocation_in_submission=_allocation(steps, max((job.submitted_ms for job in jobs), default=0)),
        occupancy=_occupancy(steps, last_ms),
        jain=jain(_shares(jobs, entitled)),
        finish_time_fairness=summary(rho),
        worst_fairness=max(rho, default=None),
        unfair=sum(value > FAIR for value in rho) / len(rho) if rho else None,
    )


def summary(values: Iterable[float]) -> Summary:
    """How many there are, their mean and percentiles."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Summary(0)
    p50, p95, p99 = (ordered[n * percent // 100] for percent in (50, 95, 99))
    return Summary(n, math.fsum(ordered) / n, p50, p95, p99)


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index: 1 when all are equal, 1/n when one has everything. None where nobody has anything."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None


def alone_ms(job: History, capacity_milli: int, sharers: int) -> int:
    """The JCT of a job that has the `sharers`-th part of the cluster to itself: one that asks for more runs as much
    longer, rounded up."""
    return max(job.duration_ms, -(-job.duration_ms * job.gpu_milli * sharers // capacity_milli))


def _ends(job: History) -> Iterable[int]:
    return (*(end_ms for _, end_ms in job.running), job.submitted_ms if job.ended_ms is None else job.ended_ms)


def _first_ms(jobs: Sequence[History]) -> int:
    return min((job.submitted_ms for job in jobs), default=0)


def _ran_ms(job: History) -> int:
    return sum(end_ms - start_ms for start_ms, end_ms in job.running)


def _slowdown(job: History, jct_ms: int, tau_ms: int) -> float:
    return max(1.0, jct_ms / max(job.duration_ms, tau_ms))


def _shares(jobs: Sequence[History], entitled: Mapping[str, int]) -> list[float]:
    """What each tenant got of what it is entitled to; one that got nothing counts too."""
    got: Counter[str] = Counter()
    for job in jobs:
        got[job.tenant] += job.gpu_milli * _ran_ms(job)
    return [got[tenant] / amount for tenant, amount in entitled.items() if amount]


@dataclass(frozen=True, slots=True)
class _Step:
    """From `at_ms` to the next step this much was allocated, waited, and was there."""

    at_ms: int
    allocated: int
    waiting: int
    capacity: int


def _steps(jobs: Sequence[History], capacity: Sequence[Interval]) -> list[_Step]:
    """The run from the first submission on, wherever something changes."""
    first_ms, changes = _first_ms(jobs), defaultdict[int, list[int]](lambda: [0, 0, 0])
    for job in jobs:
        changes[job.submitted_ms][1] += job.gpu_milli
        if job.ended_ms is not None:
            changes[job.ended_ms][1] -= job.gpu_milli
        for start_ms, end_ms in job.running:
            for at_ms, sign in ((start_ms, 1), (end_ms, -1)):
                changes[at_ms][0] += sign * job.gpu_milli
                changes[at_ms][1] -= sign * job.gpu_milli
    before = 0
    for at_ms, milli in capacity:
        changes[max(at_ms, first_ms)][2] += milli - before
        before = milli
    steps, now = [], [0, 0, 0]
    for at_ms in sorted(changes):
        now = [value + change for value, change in zip(now, changes[at_ms], strict=True)]
        steps.append(_Step(at_ms, *now))
    return steps


def _spans(steps: Sequence[_Step], until_ms: int) -> Iterable[tuple[int, _Step]]:
    """(how long it lasts, step) of every step before `until_ms`, at which one begins."""
    return ((after.at_ms - step.at_ms, step) for step, after in pairwise(steps) if step.at_ms < until_ms)


def _allocation(steps: Sequence[_Step], until_ms: int) -> float | None:
    allocated = sum(ms * step.allocated for ms, step in _spans(steps, until_ms))
    there = sum(ms * step.capacity for ms, step in _spans(steps, until_ms))
    return allocated / there if there else None


def _occupancy(steps: Sequence[_Step], until_ms: int) -> float | None:
    allocated = sum(ms * step.allocated for ms, step in _spans(steps, until_ms))
    possible = sum(ms * min(step.capacity, step.allocated + step.waiting) for ms, step in _spans(steps, until_ms))
    return allocated / possible if possible else None
