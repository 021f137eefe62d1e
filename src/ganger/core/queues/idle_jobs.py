"""Idle jobs: from what is measured of a job, when it is warned and when it is suspended or stopped.

A function of the state and the time, asked at each measurement. Whatever is not known counts as activity: a job is idle
only after a whole window of measurements without a gap.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ganger.core.queues.quota import QueueTree
from ganger.model.idle.idle_event import IdleStep
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.units import MINUTE_MS, SECOND_MS

MAX_GAP_MS: Final = 30 * SECOND_MS
"""Longest time between two measurements; they come every 10 s."""
BUSY_GPU_PERCENT: Final = 2
"""Utilisation from which a GPU has work: an idle one is not always at 0 while its driver is queried."""
LONGEST_WARNINGS_MS: Final = (15 * MINUTE_MS, 5 * MINUTE_MS)
WINDOW_PARTS: Final = (2, 6)
"""A short window is warned of when a half and a sixth of it are left."""


class Activity(Enum):
    """Activity of a job at one moment, as far as it is measured."""

    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """A job without activity. Times are Unix ms.

    since_ms: when that was first measured.
    measured_ms: when it was last measured.
    progress: figures that change with what it does: its newest checkpoint, its sessions.
    until_ms: when it is suspended or stopped, as of the last warning.
    warnings: how many it has got.
    """

    generation: int
    since_ms: int
    measured_ms: int
    progress: tuple[int, ...]
    until_ms: int = 0
    warnings: int = 0


def activity_of(parts: Collection[Activity]) -> Activity:
    """Return the activity of a job by that of its parts: one that is active is enough, and none may be unknown."""
    order = (Activity.ACTIVE, Activity.UNKNOWN, Activity.IDLE)
    return next((kind for kind in order if kind in parts), Activity.UNKNOWN)


def warning_times_ms(window_ms: int) -> tuple[int, int]:
    """Return how long before the end of a window the first and the last warning are."""
    first, last = (
        min(longest_ms, window_ms // part) for longest_ms, part in zip(LONGEST_WARNINGS_MS, WINDOW_PARTS, strict=True)
    )
    return first, last


def rules_of_queue(tree: QueueTree, queue: str) -> IdleRules | None:
    """Return the rules for idle jobs of a queue: its own, or those of the nearest queue above it that has any."""
    above = (tree.queues[index].idle for index in tree.path(tree.index[queue]))
    return next((rules for rules in above if rules is not None), None)


def next_idle(
    before: IdleJob | None, measured: IdleJob, activity: Activity, rules: IdleRules
) -> tuple[IdleJob | None, IdleStep | None]:
    """Return a job after a measurement, None if it is active, and the step that follows for it.

    before: the job after the measurement before.
    measured: the job if it has become idle with this measurement.
    """
    now_ms, goes_on = measured.measured_ms, before is not None and _goes_on(before, measured)
    is_exempt = rules.exempt_until_ms is not None and now_ms < rules.exempt_until_ms
    if before is None or not goes_on or is_exempt or activity is not Activity.IDLE:
        was_warned = before is not None and before.warnings > 0 and before.generation == measured.generation
        after = measured if activity is Activity.IDLE and not is_exempt else None
        return after, IdleStep.ACTIVE if was_warned else None
    return _next_step(replace(before, measured_ms=now_ms), rules)


def _goes_on(before: IdleJob, measured: IdleJob) -> bool:
    """Return whether a job has done nothing between two measurements, as far as these show."""
    is_same = (before.generation, before.progress) == (measured.generation, measured.progress)
    return is_same and 0 <= measured.measured_ms - before.measured_ms <= MAX_GAP_MS


def _next_step(job: IdleJob, rules: IdleRules) -> tuple[IdleJob, IdleStep | None]:
    now_ms, end_ms = job.measured_ms, job.since_ms + rules.window_ms
    first_ms, last_ms = warning_times_ms(rules.window_ms)
    if now_ms < end_ms - first_ms:
        return replace(job, warnings=0), IdleStep.ACTIVE if job.warnings else None  # the window is longer now
    if not job.warnings:
        until_ms = max(end_ms, now_ms + last_ms)  # the window is shorter now: nothing ends without a warning
        return replace(job, warnings=1, until_ms=until_ms), IdleStep.WARNED
    if job.until_ms < end_ms:
        job = replace(job, until_ms=end_ms)
    if now_ms >= job.until_ms:
        return replace(job, warnings=0, since_ms=now_ms), IdleStep.ENDED
    if job.warnings == 1 and job.until_ms - last_ms <= now_ms:
        return replace(job, warnings=2), IdleStep.WARNED
    return job, None
