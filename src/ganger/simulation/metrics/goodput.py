"""Where GPU time went: how much of it was useful, and what the rest was lost to. Pure: no clock, no file.

Called by `simulation.run` with what became of each job. An attempt of a job is divided without a rest: it starts, it
works, and from a moment on it does not work any more, because a node of it was lost or it was told to stop. Work that
is in the newest checkpoint, or all of it where the job came to its end, is useful; work after the newest checkpoint is
rolled back. So for each job, in integers: allocated = useful + what was lost, by cause.

Goodput is useful over allocated GPU time. ETTR is useful over wall time, from the first start to the end, so that
waiting for other nodes counts too (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research
Clusters", HPCA 2025). Waiting is lost, but nothing is allocated meanwhile: it stands beside the sum, not in it.

Times are ms, GPU time is in thousandths of a GPU times ms.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from ganger.simulation.metrics.run_history import Attempt, History, Summary, summary


class Loss(StrEnum):
    """What allocated GPU time is lost to. start: the first start of a job, and restart: any other; checkpoint: writing
    those that are complete; rollback: work, and checkpoints, that are done again; detection: until the loss of a node
    is known; stop: until what was told to stop is gone."""

    START = "start"
    RESTART = "restart"
    CHECKPOINT = "checkpoint"
    ROLLBACK = "rollback"
    DETECTION = "detection"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What running costs: ms of each start, ms of work between checkpoints (0: all work is kept), ms of writing one."""

    start_ms: int = 0
    checkpoint_ms: int = 0
    write_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Of one run; None where there is nothing to divide by. GPU time is in thousandths of a GPU times ms.

    ettr: of all jobs that ended, by GPU time; ettr_by_job: each for itself. interruptions: attempts that lost a node;
    mtti_ms: mean time of running to an interruption; recovery_ms: from the loss of a node until the job works again,
    and its mean is the MTTR of jobs. waiting_for_nodes: GPU time that jobs waited for nodes after they had lost some;
    waiting_ms: each wait; waiting_after_stops: likewise after they were stopped for others. deadlines, met: jobs that
    have one, and those that ended by then; deadlines_met: their share.
    """

    allocated: int
    useful: int
    lost: dict[Loss, int]
    goodput: float | None
    ettr: float | None
    ettr_by_job: Summary
    interruptions: int
    mtti_ms: float | None
    recovery_ms: Summary
    waiting_for_nodes: int
    waiting_ms: Summary
    waiting_after_stops: int
    deadlines: int
    met: int
    deadlines_met: float | None


def parts(attempt: Attempt, duration_ms: int, pace: Pace, *, is_first: bool) -> tuple[int, dict[Loss, int]]:
    """Useful ms of an attempt, and ms lost by cause: together all of it."""
    over_ms, works_ms = _halt_ms(attempt), attempt.began_ms + pace.start_ms
    kept_ms = duration_ms if attempt.kept_ms is None else attempt.kept_ms
    useful_ms, ran_ms = kept_ms - attempt.first_ms, max(0, over_ms - works_ms)
    written_ms = _written(attempt, duration_ms, pace) * pace.write_ms
    known_ms = over_ms
    if attempt.failed_ms == over_ms and attempt.lost_ms is not None:
        known_ms = attempt.lost_ms
    return useful_ms, {
        Loss.START if is_first else Loss.RESTART: min(over_ms, works_ms) - attempt.began_ms,
        Loss.CHECKPOINT: written_ms,
        Loss.ROLLBACK: ran_ms - useful_ms - written_ms,
        Loss.DETECTION: known_ms - over_ms,
        Loss.STOP: attempt.ended_ms - known_ms,
    }


def goodput(jobs: Sequence[History], pace: Pace) -> Goodput:
    """What a run came to."""
    lost, useful, allocated = Counter[Loss](dict.fromkeys(Loss, 0)), 0, 0
    for job in jobs:
        for at, attempt in enumerate(job.attempts):
            useful_ms, lost_ms = parts(attempt, job.duration_ms, pace, is_first=at == 0)
            useful += job.gpu_milli * useful_ms
            allocated += job.gpu_milli * (attempt.ended_ms - attempt.began_ms)
            for cause, ms in lost_ms.items():
                lost[cause] += job.gpu_milli * ms
    ended = [(job, job.ended_ms - job.attempts[0].began_ms) for job in jobs if job.ended_ms is not None]
    wall = sum(job.gpu_milli * wall_ms for job, wall_ms in ended)
    interrupted = sum(attempt.failed_ms is not None for job in jobs for attempt in job.attempts)
    ran_ms = sum(attempt.ended_ms - attempt.began_ms for job in jobs for attempt in job.attempts)
    waits = [(job, *wait) for job in jobs for wait in _waits(job)]
    due = [job for job in jobs if job.deadline_ms is not None]
    met = sum(job.ended_ms is not None and job.ended_ms <= (job.deadline_ms or 0) for job in due)
    return Goodput(
        allocated=allocated,
        useful=useful,
        lost=dict(lost),
        goodput=useful / allocated if allocated else None,
        ettr=sum(job.gpu_milli * job.duration_ms for job, _ in ended) / wall if wall else None,
        ettr_by_job=summary(job.duration_ms / wall_ms for job, wall_ms in ended if wall_ms),
        interruptions=interrupted,
        mtti_ms=ran_ms / interrupted if interrupted else None,
        recovery_ms=summary(ms for job in jobs for ms in _recoveries(job, pace)),
        waiting_for_nodes=sum(job.gpu_milli * ms for job, is_for_nodes, ms in waits if is_for_nodes),
        waiting_ms=summary(ms for _, is_for_nodes, ms in waits if is_for_nodes),
        waiting_after_stops=sum(job.gpu_milli * ms for job, is_for_nodes, ms in waits if not is_for_nodes),
        deadlines=len(due),
        met=met,
        deadlines_met=met / len(due) if due else None,
    )


def _halt_ms(attempt: Attempt) -> int:
    """Since when it does not work any more."""
    if attempt.kept_ms is None:
        return attempt.ended_ms
    moments = (attempt.failed_ms, attempt.stopped_ms, attempt.ended_ms)
    return min(moment for moment in moments if moment is not None)


def _written(attempt: Attempt, duration_ms: int, pace: Pace) -> int:
    """Checkpoints that are complete. One that would come with the last of the work is not written."""
    if not pace.checkpoint_ms:
        return 0
    last_ms = duration_ms - 1 if attempt.kept_ms is None else attempt.kept_ms
    return max(0, last_ms // pace.checkpoint_ms - attempt.first_ms // pace.checkpoint_ms)


def _waits(job: History) -> Iterable[tuple[bool, int]]:
    """(whether a node was lost, ms) between two attempts."""
    for before, after in pairwise(job.attempts):
        yield before.failed_ms is not None, after.began_ms - before.ended_ms


def _recoveries(job: History, pace: Pace) -> Iterable[int]:
    """Ms from each loss of a node to the next work. A start that is lost itself belongs to the recovery before it."""
    since_ms: int | None = None
    for attempt in job.attempts:
        works_ms = attempt.began_ms + pace.start_ms
        if since_ms is not None and works_ms <= _halt_ms(attempt):
            yield works_ms - since_ms
            since_ms = None
        if attempt.failed_ms is not None and since_ms is None:
            since_ms = attempt.failed_ms
