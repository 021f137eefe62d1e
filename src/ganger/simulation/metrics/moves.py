"""How often jobs were stopped for others or went on elsewhere, and how gangs lie on the network. Pure.

Called by `scorecard`. A migration is an attempt that is not on the nodes of the one before. The GPU time moved is what
a job had run in the attempt that it went on from elsewhere.
"""

from collections.abc import Sequence
from itertools import pairwise

from ganger.simulation.metrics.run_history import History


def preemptions(jobs: Sequence[History]) -> list[int]:
    """Of each job."""
    return [sum(each.preempted for each in job.attempts) for job in jobs]


def migrations(jobs: Sequence[History]) -> list[int]:
    """Of each job."""
    return [sum(each.moved for each in job.attempts) for job in jobs]


def moved(jobs: Sequence[History]) -> int:
    """In thousandths of a GPU times ms."""
    return sum(
        job.gpu_milli * (before.ended_ms - before.began_ms)
        for job in jobs
        for before, after in pairwise(job.attempts)
        if after.moved
    )


def starts_by_switches(jobs: Sequence[History]) -> tuple[int, int]:
    """Starts on several nodes of which it is known in which domains they are; and those of them in more than one."""
    several = [each for job in jobs for each in job.attempts if each.nodes > 1 and each.switches]
    return len(several), sum(each.switches > 1 for each in several)
