"""How well a run went: waiting, slowdown, use of the cluster and fairness, from what ran when. Pure: no clock, no file.

Called by whoever has a finished run, simulated or real. Definitions: completion time (JCT) is from submission to end;
queueing is the part of it in which the job did not run, so that waiting after a preemption counts; bounded slowdown is
JCT over the job's own duration, with short jobs taken for `tau` long (Feitelson et al., "Theory and Practice in
Parallel Job Scheduling"); Jain's index is of what tenants got of what they are entitled to. `fairness` and `moves` say
what the others are.

Times are ms, amounts of GPUs thousandths. Integrals over time are exact; only the last division is of floats.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.metrics.fairness import FAIR, finish_time_fairness, jain, quota_debts, starvation_ms
from ganger.simulation.metrics.moves import migrations, moved, preemptions, starts_by_switches
from ganger.simulation.metrics.run_history import History, Interval, Summary, summary
from ganger.simulation.metrics.timeline import Step, first_ms, last_ms, spans, steps

TAU_MS: Final = (10 * SECOND_MS, 600 * SECOND_MS)
"""What is taken for the duration of shorter jobs, by the Parallel Workloads Archive and by traces of GPU clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """The figures of one run; None where a figure has no meaning, for want of jobs, capacity or tenants.

    allocation: GPU time that was allocated, of all there was, from the first submission to the last end;
    allocation_in_submission: until the last submission only, since the tail of a run says little of the scheduler.
    occupancy: of what could have been allocated, given what was asked for; with 1 no GPU is idle while somebody waits.
    unfair: the share of the jobs whose finish-time fairness is above `FAIR`.
    starvation_ms: of each job, ended or not, the longest time that it waited at a stretch, and the longest of all.
    quota_debt: of each tenant, in thousandths of a GPU times ms; quota_debt_share: all of it, of what tenants were
    entitled to and asked for. moved: GPU time that was run before a migration, likewise.
    cross_switch: of `multi_node_starts`, the share on nodes of more than one domain of the innermost level.
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
    quota_debt: Summary
    quota_debt_share: float | None
    preemptions_per_job: Summary
    migrations_per_job: Summary
    moved: int
    multi_node_starts: int
    cross_switch: float | None


def score(jobs: Sequence[History], capacity: Sequence[Interval], entitled: Mapping[str, int]) -> Scorecard:
    """The figures of a run. `capacity`: (from when, thousandths of healthy GPUs) in order; `entitled`: of each tenant,
    in any unit."""
    ended = [(job, job.ended_ms - job.submitted_ms) for job in jobs if job.ended_ms is not None]
    course, ends_ms = steps(jobs, capacity), last_ms(jobs)
    rho = finish_time_fairness(jobs, course)
    starved = starvation_ms(jobs, ends_ms)
    debts = quota_debts(jobs, capacity, entitled, ends_ms)
    due = sum(wanted for _, wanted in debts)
    several, apart = starts_by_switches(jobs)
    return Scorecard(
        jobs=len(jobs),
        jct_ms=summary(jct_ms for _, jct_ms in ended),
        queueing_ms=summary(jct_ms - job.ran_ms for job, jct_ms in ended),
        first_start_ms=summary(job.running[0][0] - job.submitted_ms for job in jobs if job.running),
        slowdown={tau_ms: summary(_slowdown(job, jct_ms, tau_ms) for job, jct_ms in ended) for tau_ms in TAU_MS},
        makespan_ms=max(job.submitted_ms + jct_ms for job, jct_ms in ended) - first_ms(jobs) if ended else None,
        allocation=_allocation(course, ends_ms),
        allocation_in_submission=_allocation(course, max((job.submitted_ms for job in jobs), default=0)),
        occupancy=_occupancy(course, ends_ms),
        jain=jain(_shares(jobs, entitled)),
        finish_time_fairness=summary(rho),
        worst_fairness=max(rho, default=None),
        unfair=sum(value > FAIR for value in rho) / len(rho) if rho else None,
        starvation_ms=summary(starved),
        longest_starvation_ms=max(starved, default=None),
        quota_debt=summary(debt for debt, _ in debts),
        quota_debt_share=sum(debt for debt, _ in debts) / due if due else None,
        preemptions_per_job=summary(preemptions(jobs)),
        migrations_per_job=summary(migrations(jobs)),
        moved=moved(jobs),
        multi_node_starts=several,
        cross_switch=apart / several if several else None,
    )


def _slowdown(job: History, jct_ms: int, tau_ms: int) -> float:
    return max(1.0, jct_ms / max(job.duration_ms, tau_ms))


def _shares(jobs: Sequence[History], entitled: Mapping[str, int]) -> list[float]:
    """What each tenant got of what it is entitled to; one that got nothing counts too."""
    got: Counter[str] = Counter()
    for job in jobs:
        got[job.tenant] += job.gpu_milli * job.ran_ms
    return [got[tenant] / amount for tenant, amount in entitled.items() if amount]


def _allocation(course: Sequence[Step], until_ms: int) -> float | None:
    allocated = sum(ms * step.allocated for ms, step in spans(course, until_ms))
    there = sum(ms * step.capacity for ms, step in spans(course, until_ms))
    return allocated / there if there else None


def _occupancy(course: Sequence[Step], until_ms: int) -> float | None:
    allocated = sum(ms * step.allocated for ms, step in spans(course, until_ms))
    possible = sum(ms * min(step.capacity, step.allocated + step.waiting) for ms, step in spans(course, until_ms))
    return allocated / possible if possible else None
