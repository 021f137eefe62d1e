"""How evenly a run treated jobs and tenants. Pure. Called by `scorecard`.

Finish-time fairness of a job is its completion time over what that would be alone on an equal part of the cluster
(Mahajan et al., "Themis", NSDI 2020). The part is one N-th of the GPUs that were there, for the N jobs that there were
in the mean while it waited or ran; a job that asks for more than that runs as much longer. Quota debt of a tenant is
the GPU time that it asked for, was entitled to and did not get: the integral of max(0, min(entitled, asked) - got).

Times are ms, amounts of GPUs thousandths; integrals are exact, and only the last division is of floats.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from ganger.simulation.metrics.run_history import History, Interval, waited
from ganger.simulation.metrics.timeline import Step

FAIR: Final = 1.05
"""A job is treated unfairly whose finish-time fairness is above (Zheng et al., "Shockwave")."""


def finish_time_fairness(jobs: Sequence[History], found: Sequence[Step]) -> list[float]:
    """Of each job that ended and has a duration. `found`: the steps of the run."""
    times = [step.at_ms for step in found]
    lasts = [after - before for before, after in pairwise(times)]
    had = [0, *accumulate(ms * step.capacity for ms, step in zip(lasts, found, strict=False))]
    shared = [0, *accumulate(ms * step.jobs for ms, step in zip(lasts, found, strict=False))]
    rho = []
    for job in jobs:
        if job.ended_ms is None or not job.duration_ms:
            continue
        came, ended = bisect_left(times, job.submitted_ms), bisect_left(times, job.ended_ms)
        capacity, jobs_ms = had[ended] - had[came], shared[ended] - shared[came]
        if capacity:
            alone = job.duration_ms * max(capacity, job.gpu_milli * jobs_ms)
            rho.append((job.ended_ms - job.submitted_ms) * capacity / alone)
    return rho


def starvation_ms(jobs: Sequence[History], until_ms: int) -> list[int]:
    """Of each job the longest time that it waited at a stretch; one that waits yet has waited until then."""
    return [
        max((min(end_ms, until_ms) - begin_ms for begin_ms, end_ms in waited(job) if begin_ms < until_ms), default=0)
        for job in jobs
    ]


def quota_debts(
    jobs: Sequence[History], capacity: Sequence[Interval], entitled: Mapping[str, int], until_ms: int
) -> list[tuple[float, float]]:
    """(debt, GPU time that it was entitled to and asked for) of each tenant that is entitled to anything: in
    thousandths of a GPU times ms. `entitled`: in any unit; each has that part of the cluster."""
    of = defaultdict[str, list[History]](list)
    for job in jobs:
        of[job.tenant].append(job)
    whole = sum(entitled.values())
    debts = []
    for tenant, part in entitled.items():
        if part:
            debt = due = 0
            for ms, asked, got, there in _course(of[tenant], capacity, until_ms):
                wanted = min(part * there, whole * asked)
                debt += ms * max(0, wanted - whole * got)
                due += ms * wanted
            debts.append((debt / whole, due / whole))
    return debts


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index: 1 when all are equal, 1/n when one has everything. None where nobody has anything."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None


def _course(
    jobs: Sequence[History], capacity: Sequence[Interval], until_ms: int
) -> Iterator[tuple[int, int, int, int]]:
    """(ms, asked for, had, there) of a tenant, while it has jobs."""
    changes = defaultdict[int, list[int]](lambda: [0, 0])
    for job in jobs:
        changes[job.submitted_ms][0] += job.gpu_milli
        changes[until_ms if job.over_ms is None else job.over_ms][0] -= job.gpu_milli
        for begin_ms, end_ms in job.running:
            changes[begin_ms][1] += job.gpu_milli
            changes[end_ms][1] -= job.gpu_milli
    begins_ms, ends_ms = min(changes, default=0), max(changes, default=0)
    for at_ms, _ in capacity:
        if begins_ms < at_ms < ends_ms:
            changes.setdefault(at_ms, [0, 0])
    moments = [at_ms for at_ms, _ in capacity]
    asked = got = 0
    for at_ms, until in pairwise(sorted(changes)):
        asked, got = asked + changes[at_ms][0], got + changes[at_ms][1]
        at = bisect_left(moments, at_ms + 1) - 1
        if asked:
            yield until - at_ms, asked, got, capacity[at][1] if at >= 0 else 0
