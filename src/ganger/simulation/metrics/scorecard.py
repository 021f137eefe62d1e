"""The scorecard of a run: waiting, slowdown, use of the cluster, fairness and moves between nodes.

Definitions: completion time (JCT) is from submission to end; queueing is the part of it in which the job did not run,
so that waiting after a preemption counts; bounded slowdown is JCT divided by the job's own duration, shorter jobs
counting as `tau` long (Feitelson et al., "Theory and Practice in Parallel Job Scheduling"); Jain's index is of what
tenants got of what they are entitled to; a migration is an attempt that is not on the nodes of the one before.

Times are ms, amounts of GPUs thousandths. Integrals over time are exact; only the last division yields a float.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.metrics.fairness import UNFAIR_ABOVE, finish_time_fairness, jain, quota_debts, starvation_ms
from ganger.simulation.metrics.run_history import Interval, JobHistory, Summary, summary
from ganger.simulation.metrics.timeline import Step, first_ms, last_ms, spans, timeline_steps

TAU_MS: Final = (10 * SECOND_MS, 600 * SECOND_MS)
"""Least duration for slowdown, as in the Parallel Workloads Archive and in traces of GPU clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """The figures of one run; None where a figure has no meaning, for lack of jobs, capacity or tenants.

    allocation: share of all GPU time that was allocated, from the first submission to the last end
    allocation_in_submission: the same until the last submission, since the tail of a run says little of the scheduler
    occupancy: share of what could have been allocated, given what was asked for; 1: no GPU is idle while a job waits
    unfair: share of jobs whose finish-time fairness is above `UNFAIR_ABOVE`
    starvation_ms: longest uninterrupted wait of each job, ended or not
    quota_debt_gpu_us: of each tenant, in GPU-microseconds: thousandths of a GPU times ms
    quota_debt_share: all debt, as a share of what tenants were entitled to and asked for
    moved_gpu_us: GPU time that was run before a migration
    cross_switch: share of `multi_node_starts` on nodes of more than one domain of the innermost level
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
    starvation_ms: Summary
    longest_starvation_ms: int | None
    quota_debt_gpu_us: Summary
    quota_debt_share: float | None
    preemptions_per_job: Summary
    migrations_per_job: Summary
    moved_gpu_us: int
    multi_node_starts: int
    cross_switch: float | None


def score(jobs: Sequence[JobHistory], capacity: Sequence[Interval], entitled: Mapping[str, int]) -> Scorecard:
    """Return the scorecard of a run.

    capacity: (from when, thousandths of healthy GPUs) in order
    entitled: share of each tenant, in any unit
    """
    ended = [(job, job.ended_ms - job.submitted_ms) for job in jobs if job.ended_ms is not None]
    timeline, end_ms = timeline_steps(jobs, capacity), last_ms(jobs)
    fairness = finish_time_fairness(jobs, timeline)
    starved_ms = starvation_ms(jobs, end_ms)
    debts = quota_debts(jobs, capacity, entitled, end_ms)
    owed = sum(due for _, due in debts)
    multi_node_starts, cross_switch_starts = _starts_by_switches(jobs)
    return Scorecard(
        jobs=len(jobs),
        jct_ms=summary(jct_ms for _, jct_ms in ended),
        queueing_ms=summary(jct_ms - job.ran_ms for job, jct_ms in ended),
        first_start_ms=summary(job.first_start_ms - job.submitted_ms for job in jobs if job.first_start_ms is not None),
        slowdown={tau_ms: summary(_slowdown(job, jct_ms, tau_ms) for job, jct_ms in ended) for tau_ms in TAU_MS},
        makespan_ms=max(job.submitted_ms + jct_ms for job, jct_ms in ended) - first_ms(jobs) if ended else None,
        allocation=_allocation(timeline, end_ms),
        allocation_in_submission=_allocation(timeline, max((job.submitted_ms for job in jobs), default=0)),
        occupancy=_occupancy(timeline, end_ms),
        jain=jain(_shares(jobs, entitled)),
        finish_time_fairness=summary(fairness),
        worst_fairness=max(fairness, default=None),
        unfair=sum(value > UNFAIR_ABOVE for value in fairness) / len(fairness) if fairness else None,
        starvation_ms=summary(starved_ms),
        longest_starvation_ms=max(starved_ms, default=None),
        quota_debt_gpu_us=summary(debt for debt, _ in debts),
        quota_debt_share=sum(debt for debt, _ in debts) / owed if owed else None,
        preemptions_per_job=summary(sum(attempt.preempted for attempt in job.attempts) for job in jobs),
        migrations_per_job=summary(sum(attempt.moved for attempt in job.attempts) for job in jobs),
        moved_gpu_us=_moved(jobs),
        multi_node_starts=multi_node_starts,
        cross_switch=cross_switch_starts / multi_node_starts if multi_node_starts else None,
    )


def _slowdown(job: JobHistory, jct_ms: int, tau_ms: int) -> float:
    return max(1.0, jct_ms / max(job.duration_ms, tau_ms))


def _shares(jobs: Sequence[JobHistory], entitled: Mapping[str, int]) -> list[float]:
    """Return what each tenant got of what it is entitled to, 0 included."""
    gpu_time: Counter[str] = Counter()
    for job in jobs:
        gpu_time[job.tenant] += job.gpu_us
    return [gpu_time[tenant] / amount for tenant, amount in entitled.items() if amount]


def _allocation(timeline: Sequence[Step], until_ms: int) -> float | None:
    allocated = sum(ms * step.allocated for ms, step in spans(timeline, until_ms))
    capacity = sum(ms * step.capacity for ms, step in spans(timeline, until_ms))
    return allocated / capacity if capacity else None


def _occupancy(timeline: Sequence[Step], until_ms: int) -> float | None:
    allocated = sum(ms * step.allocated for ms, step in spans(timeline, until_ms))
    possible = sum(ms * min(step.capacity, step.allocated + step.waiting) for ms, step in spans(timeline, until_ms))
    return allocated / possible if possible else None


def _moved(jobs: Sequence[JobHistory]) -> int:
    return sum(
        int(job.gpu_milli * before.size) * (before.ended_ms - before.began_ms)
        for job in jobs
        for before, after in pairwise(job.attempts)
        if after.moved
    )


def _starts_by_switches(jobs: Sequence[JobHistory]) -> tuple[int, int]:
    """Return the number of starts on several nodes of known domains, and of those in more than one domain."""
    multi_node = [attempt for job in jobs for attempt in job.attempts if attempt.nodes > 1 and attempt.switches]
    return len(multi_node), sum(attempt.switches > 1 for attempt in multi_node)
