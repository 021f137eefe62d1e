"""The rules for idle jobs on recorded samples: when they would have ended an attempt of a job.

Only the work of GPUs and checkpoints are recorded. The CPU time of ranks and sessions, which count as activity too, are
not: what is found here is the most that the rules would have ended. Like in `idle_jobs`, a GPU of which nothing was
recorded counts as one with work.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ganger.core.queues.idle_jobs import BUSY_GPU_PERCENT, MAX_GAP_MS, Activity, IdleJob, activity_of, next_idle
from ganger.model.idle.idle_event import IdleStep
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.node_health.node_figures import NOT_MEASURED, GpuSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """An attempt of a job while it ran, as it was recorded. Times are Unix ms.

    gpus: samples of each of its devices; those of the first tell when it was measured.
    saves_ms: when it saved a checkpoint or resumed from one, in order.
    """

    generation: int
    from_ms: int
    until_ms: int
    gpus: tuple[GpuSamples, ...]
    saves_ms: tuple[int, ...] = ()


class IdleEnd(NamedTuple):
    """The time at which an attempt would have been suspended or stopped, and what it did then. Times are Unix ms.

    idle_until_ms: until when it was measured without a gap that it stayed idle.
    is_active_again: it had activity after that.
    """

    at_ms: int
    idle_until_ms: int
    is_active_again: bool


def replay_idle(attempt: RecordedAttempt, rules: IdleRules) -> Iterator[IdleEnd]:
    """Yield each time at which the rules would have ended an attempt, as if they had been in force without exemption.

    Another one follows only after activity: of a job that was suspended, its user would have resumed it for that.
    """
    rules = replace(rules, exempt_until_ms=None)
    job: IdleJob | None = None
    end_ms: int | None = None
    for at_ms, activity, saves in _measurements(attempt):
        if job is None and activity is not Activity.IDLE:
            continue  # as most are
        measured = IdleJob(generation=attempt.generation, since_ms=at_ms, measured_ms=at_ms, progress=(saves,))
        before = job
        job, step = next_idle(before, measured, activity, rules)
        is_ended = step is IdleStep.ENDED
        if end_ms is not None and before is not None and not is_ended and (job is None or job.since_ms == at_ms):
            yield IdleEnd(end_ms, before.measured_ms, activity is Activity.ACTIVE or before.progress != (saves,))
            end_ms = None
        if is_ended and end_ms is None:
            end_ms = at_ms
    if end_ms is not None and job is not None:
        yield IdleEnd(end_ms, job.measured_ms, is_active_again=False)


def _measurements(attempt: RecordedAttempt) -> Iterator[tuple[int, Activity, int]]:
    """Yield the time of each measurement, the activity of all GPUs by their newest samples, and the saves so far."""
    if not attempt.gpus:
        return
    times = [samples.times_ms for samples in attempt.gpus]
    indices = [bisect_left(times_ms, attempt.from_ms) for times_ms in times]
    saves = 0
    for at_ms in times[0][indices[0] : bisect_right(times[0], attempt.until_ms)]:
        parts = set[Activity]()
        for number, samples in enumerate(attempt.gpus):
            while indices[number] < len(times[number]) and times[number][indices[number]] <= at_ms:
                indices[number] += 1
            parts.add(_activity(samples, indices[number] - 1, at_ms))
        while saves < len(attempt.saves_ms) and attempt.saves_ms[saves] <= at_ms:
            saves += 1
        yield at_ms, activity_of(parts), saves


def _activity(samples: GpuSamples, newest: int, now_ms: int) -> Activity:
    """Return the activity of a GPU by its newest sample, the one of that index; below 0 there is none."""
    if newest < 0 or now_ms - samples.times_ms[newest] > MAX_GAP_MS:
        return Activity.UNKNOWN
    busy_permille = samples.busy_permille[newest]
    if busy_permille == NOT_MEASURED:
        return Activity.UNKNOWN
    return Activity.ACTIVE if busy_permille >= 10 * BUSY_GPU_PERCENT else Activity.IDLE
