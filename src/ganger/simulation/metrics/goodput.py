"""The goodput of a run: how much of the allocated GPU time was useful, and what the rest was lost to.

An attempt of a job is divided without a remainder: it starts, it works, and from some time on it does not work any
more, because it lost a node or was stopped. Work that is in the newest checkpoint, or all of it if the job ended well,
is useful; work after the newest checkpoint is rolled back. So for each job, in integers: allocated = useful + lost, by
cause.

Goodput is useful divided by allocated GPU time. ETTR is useful divided by wall time, from the first start to the end,
so that waiting for other nodes counts too (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", HPCA 2025). A job that waits loses time, but has no allocation meanwhile: waiting is reported beside
the sum, not in it.

Times are ms, GPU time is in GPU-microseconds: thousandths of a GPU times ms.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil

from ganger.simulation.metrics.run_history import Attempt, JobHistory, Summary, summary


class Loss(StrEnum):
    """Causes by which allocated GPU time is lost.

    START: the first start of a job
    RESTART: any other start
    CHECKPOINT: writing complete checkpoints
    ROLLBACK: work and checkpoints that are done again
    DETECTION: until the loss of a node is known
    STOP: until a stopped attempt has left its nodes
    """

    START = "start"
    RESTART = "restart"
    CHECKPOINT = "checkpoint"
    ROLLBACK = "rollback"
    DETECTION = "detection"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCosts:
    """The costs of starts and checkpoints.

    start_ms: of each start
    checkpoint_ms: work between checkpoints; 0: all work is kept
    write_ms: of writing a checkpoint
    """

    start_ms: int = 0
    checkpoint_ms: int = 0
    write_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The goodput of one run; a ratio is None if its denominator is 0.

    allocated_gpu_us, useful_gpu_us, lost_gpu_us: GPU time
    ettr: of all jobs that ended, weighted by GPU time
    ettr_by_job: of each job
    interruptions: number of attempts that lost a node
    mtti_ms: mean running time to an interruption
    recovery_ms: from the loss of a node until the job works again; its mean is the MTTR of jobs
    waiting_for_nodes_gpu_us: GPU time that jobs waited for nodes after they had lost some
    waiting_ms: each such wait
    waiting_after_stops_gpu_us: GPU time that jobs waited after they were stopped
    deadlines: number of jobs with a deadline
    met: number of jobs that ended by their deadline
    deadlines_met: their share
    """

    allocated_gpu_us: int
    useful_gpu_us: int
    lost_gpu_us: dict[Loss, int]
    goodput: float | None
    ettr: float | None
    ettr_by_job: Summary
    interruptions: int
    mtti_ms: float | None
    recovery_ms: Summary
    waiting_for_nodes_gpu_us: int
    waiting_ms: Summary
    waiting_after_stops_gpu_us: int
    deadlines: int
    met: int
    deadlines_met: float | None


def split_attempt(
    attempt: Attempt, work_ms: int, costs: CheckpointCosts, *, is_first: bool
) -> tuple[int, dict[Loss, int]]:
    """Return the useful ms of an attempt, and the ms lost by cause, which add up to its length."""
    halted_ms, works_from_ms = _halted_ms(attempt), attempt.began_ms + costs.start_ms
    useful_ms, ran_ms = _kept_work_ms(attempt, work_ms), max(0, halted_ms - works_from_ms)
    written_ms = _written_checkpoints(attempt, work_ms, costs) * costs.write_ms
    known_ms = halted_ms
    if attempt.failed_ms == halted_ms and attempt.lost_ms is not None:
        known_ms = attempt.lost_ms
    return useful_ms, {
        Loss.START if is_first else Loss.RESTART: min(halted_ms, works_from_ms) - attempt.began_ms,
        Loss.CHECKPOINT: written_ms,
        Loss.ROLLBACK: ran_ms - useful_ms - written_ms,
        Loss.DETECTION: known_ms - halted_ms,
        Loss.STOP: attempt.ended_ms - known_ms,
    }


def goodput(jobs: Sequence[JobHistory], costs: CheckpointCosts) -> Goodput:
    """Return the goodput of a run."""
    allocated, useful, lost = _gpu_time(jobs, costs)
    ended = [(job, job.ended_ms - job.attempts[0].began_ms) for job in jobs if job.ended_ms is not None]
    wall = sum(job.gpu_milli * wall_ms for job, wall_ms in ended)
    interrupted = sum(attempt.failed_ms is not None for job in jobs for attempt in job.attempts)
    ran_ms = sum(attempt.ended_ms - attempt.began_ms for job in jobs for attempt in job.attempts)
    waits = [(job, *wait) for job in jobs for wait in _waits(job)]
    with_deadline = [job for job in jobs if job.deadline_ms is not None]
    met = sum(job.ended_ms is not None and job.ended_ms <= (job.deadline_ms or 0) for job in with_deadline)
    return Goodput(
        allocated_gpu_us=allocated,
        useful_gpu_us=useful,
        lost_gpu_us=lost,
        goodput=useful / allocated if allocated else None,
        ettr=sum(job.gpu_milli * job.duration_ms for job, _ in ended) / wall if wall else None,
        ettr_by_job=summary(job.duration_ms / wall_ms if wall_ms else 1.0 for job, wall_ms in ended),
        interruptions=interrupted,
        mtti_ms=ran_ms / interrupted if interrupted else None,
        recovery_ms=summary(ms for job in jobs for ms in _recoveries(job, costs)),
        waiting_for_nodes_gpu_us=sum(job.gpu_milli * ms for job, is_for_nodes, ms in waits if is_for_nodes),
        waiting_ms=summary(ms for _, is_for_nodes, ms in waits if is_for_nodes),
        waiting_after_stops_gpu_us=sum(job.gpu_milli * ms for job, is_for_nodes, ms in waits if not is_for_nodes),
        deadlines=len(with_deadline),
        met=met,
        deadlines_met=met / len(with_deadline) if with_deadline else None,
    )


def _gpu_time(jobs: Sequence[JobHistory], costs: CheckpointCosts) -> tuple[int, int, dict[Loss, int]]:
    """Return allocated, useful and lost GPU time."""
    lost, useful, allocated = Counter[Loss](dict.fromkeys(Loss, 0)), 0, 0
    for job in jobs:
        for index, attempt in enumerate(job.attempts):
            work_ms = job.duration_ms if job.work_ms is None else job.work_ms
            useful_ms, lost_ms = split_attempt(attempt, work_ms, costs, is_first=index == 0)
            milli = int(job.gpu_milli * attempt.size)
            useful += milli * useful_ms
            allocated += milli * (attempt.ended_ms - attempt.began_ms)
            for cause, ms in lost_ms.items():
                lost[cause] += milli * ms
    return allocated, useful, dict(lost)


def _halted_ms(attempt: Attempt) -> int:
    """Return the time from which an attempt does not work any more."""
    if attempt.kept_ms is None:
        return attempt.ended_ms
    times_ms = (attempt.failed_ms, attempt.stopped_ms, attempt.ended_ms)
    return min(time_ms for time_ms in times_ms if time_ms is not None)


def _kept_work_ms(attempt: Attempt, work_ms: int) -> int:
    """Return the time that the kept work took; rounded so that an undisturbed attempt has rolled nothing back."""
    kept_ms = work_ms if attempt.kept_ms is None else attempt.kept_ms
    left_before_ms, left_after_ms = work_ms - attempt.first_ms, work_ms - kept_ms
    return ceil(left_before_ms * attempt.time_ratio) - ceil(left_after_ms * attempt.time_ratio)


def _written_checkpoints(attempt: Attempt, work_ms: int, costs: CheckpointCosts) -> int:
    """Return the number of complete checkpoints; one that would coincide with the end of the work is not written."""
    if not costs.checkpoint_ms:
        return 0
    last_ms = work_ms - 1 if attempt.kept_ms is None else attempt.kept_ms
    return max(0, last_ms // costs.checkpoint_ms - attempt.first_ms // costs.checkpoint_ms)


def _waits(job: JobHistory) -> Iterable[tuple[bool, int]]:
    """Yield (whether a node was lost, ms) for each wait between two attempts."""
    for before, after in pairwise(job.attempts):
        yield before.failed_ms is not None, after.began_ms - before.ended_ms


def _recoveries(job: JobHistory, costs: CheckpointCosts) -> Iterable[int]:
    """Yield the ms from each loss of a node to the next work; a start that fails too prolongs the recovery."""
    since_ms: int | None = None
    for attempt in job.attempts:
        works_from_ms = attempt.began_ms + costs.start_ms
        if since_ms is not None and works_from_ms <= _halted_ms(attempt):
            yield works_from_ms - since_ms
            since_ms = None
        if attempt.failed_ms is not None and since_ms is None:
            since_ms = attempt.failed_ms
