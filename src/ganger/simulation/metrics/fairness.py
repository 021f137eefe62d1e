"""The fairness of a run to jobs and tenants.

Finish-time fairness of a job is its completion time divided by its completion time alone on an equal part of the
cluster (Mahajan et al., "Themis", NSDI 2020). The part is one N-th of the healthy GPUs, for a mean of N jobs that
waited or ran in the lifetime of the job; a job that asks for more than its part runs longer in proportion. A job of no
duration, such as one that failed at once, is treated as one of a second, since no ratio has a meaning for it.

Quota debt of a tenant is the GPU time that it asked for, was entitled to and did not get: the integral of max(0,
min(entitled, asked) - allocated).

Times are ms, amounts of GPUs thousandths. Integrals are exact; only the last division yields a float.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.metrics.run_history import Interval, JobHistory, waiting_intervals
from ganger.simulation.metrics.timeline import Step

UNFAIR_ABOVE: Final = 1.05
"""Finish-time fairness above which a job is treated unfairly (Zheng et al., "Shockwave")."""


def finish_time_fairness(jobs: Sequence[JobHistory], timeline: Sequence[Step]) -> list[float]:
    """Return the finish-time fairness of each job that ended and had a healthy GPU in its lifetime."""
    times = [step.at_ms for step in timeline]
    durations = [after - before for before, after in pairwise(times)]
    # Integrals from the beginning of the run to each step: of the capacity, and of the number of jobs.
    capacity_ms = [0, *accumulate(ms * step.capacity for ms, step in zip(durations, timeline, strict=False))]
    jobs_ms = [0, *accumulate(ms * step.jobs for ms, step in zip(durations, timeline, strict=False))]
    fairness = []
    for job in jobs:
        if job.ended_ms is None:
            continue
        duration_ms, jct_ms = job.duration_ms, job.ended_ms - job.submitted_ms
        if not duration_ms:
            if not jct_ms:  # there is no time over which its part could be taken
                fairness.append(1.0)
                continue
            duration_ms, jct_ms = SECOND_MS, jct_ms + SECOND_MS
        first, last = bisect_left(times, job.submitted_ms), bisect_left(times, job.ended_ms)
        capacity, competitors = capacity_ms[last] - capacity_ms[first], jobs_ms[last] - jobs_ms[first]
        if capacity:
            alone = duration_ms * max(capacity, job.gpu_milli * competitors)
            fairness.append(jct_ms * capacity / alone)
    return fairness


def starvation_ms(jobs: Sequence[JobHistory], until_ms: int) -> list[int]:
    """Return the longest uninterrupted wait of each job; a job that still waits has waited until `until_ms`."""
    return [
        max(
            (min(end_ms, until_ms) - begin_ms for begin_ms, end_ms in waiting_intervals(job) if begin_ms < until_ms),
            default=0,
        )
        for job in jobs
    ]


def quota_debts(
    jobs: Sequence[JobHistory], capacity: Sequence[Interval], entitled: Mapping[str, int], until_ms: int
) -> list[tuple[float, float]]:
    """Return (debt, GPU time that it was entitled to and asked for) of each tenant, in thousandths of a GPU times ms.

    entitled: shares of the cluster, in any unit; tenants with 0 are left out
    """
    jobs_of = defaultdict[str, list[JobHistory]](list)
    for job in jobs:
        jobs_of[job.tenant].append(job)
    all_shares = sum(entitled.values())
    debts = []
    for tenant, share in entitled.items():
        if share:
            debt = due = 0
            for ms, asked, allocated, healthy in _demand(jobs_of[tenant], capacity, until_ms):
                owed = min(share * healthy, all_shares * asked)
                debt += ms * max(0, owed - all_shares * allocated)
                due += ms * owed
            debts.append((debt / all_shares, due / all_shares))
    return debts


def jain(shares: Sequence[float]) -> float | None:
    """Return Jain's index: 1 when all shares are equal, 1/n when one has everything; None when all are 0."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None


def _demand(
    jobs: Sequence[JobHistory], capacity: Sequence[Interval], until_ms: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (ms, GPUs asked for, allocated, healthy in the cluster) of a tenant, while it has jobs."""
    changes = defaultdict[int, list[int]](lambda: [0, 0])
    for job in jobs:
        changes[job.submitted_ms][0] += job.gpu_milli
        changes[until_ms if job.over_ms is None else job.over_ms][0] -= job.gpu_milli
        for begin_ms, end_ms, milli in job.allocated:
            changes[begin_ms][1] += milli
            changes[end_ms][1] -= milli
    first_ms, last_ms = min(changes, default=0), max(changes, default=0)
    capacity_times = [changed_ms for changed_ms, _ in capacity]
    for changed_ms in capacity_times:
        if first_ms < changed_ms < last_ms:
            changes.setdefault(changed_ms, [0, 0])
    asked = allocated = 0
    for from_ms, to_ms in pairwise(sorted(changes)):
        asked, allocated = asked + changes[from_ms][0], allocated + changes[from_ms][1]
        index = bisect_left(capacity_times, from_ms + 1) - 1
        if asked:
            yield to_ms - from_ms, asked, allocated, capacity[index][1] if index >= 0 else 0
