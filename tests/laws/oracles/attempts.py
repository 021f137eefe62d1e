"""Oracle of the node time that users have used: every attempt with its interval, summed anew each time it is asked for.

It shares nothing with `core.queues.node_time`: there are no buckets.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ganger.model.job import Job
from ganger.model.queue import NodeTimeUsed
from ganger.model.units import DAY_MS, HOUR_MS
from tests.laws.oracles.job_parts import all_nodes


@dataclass
class Attempt:
    """Nodes that a gang held from `began_ms` until `ended_ms`, None while it holds some."""

    gang: str
    queue: str
    user: str
    nodes: int
    began_ms: int
    ended_ms: int | None = None


@dataclass
class Attempts:
    """All attempts, oldest first."""

    items: list[Attempt] = field(default_factory=list)

    def begin(self, job: Job, now_ms: int) -> None:
        """Add the start of a job."""
        self.items.append(Attempt(job.id, job.spec.queue, job.user, all_nodes(job.spec), now_ms))

    def end(self, gang: str, now_ms: int) -> None:
        """End the attempt of a gang that held nodes."""
        (attempt,) = (own for own in self.items if own.gang == gang and own.ended_ms is None)
        attempt.ended_ms = now_ms

    def stay_ms(self, job: Job, before: int | None = None) -> int:
        """Return for how long a job may run after its attempts, or those among the first ones."""
        ran_ms = sum((own.ended_ms or own.began_ms) - own.began_ms for own in self.items[:before] if own.gang == job.id)
        return 1 << 62 if job.spec.limits.time_ms is None else max(1, job.spec.limits.time_ms - ran_ms)

    def needs_ms(self, job: Job, used: NodeTimeUsed) -> int:
        """Return the node time that the next attempt of a job may use within the period."""
        return all_nodes(job.spec) * min(used.per_ms, self.stay_ms(job))

    def used_ms(
        self, user: str, queues: Collection[str], used: NodeTimeUsed, now_ms: int, jobs: Mapping[str, Job]
    ) -> int:
        """Return what ended attempts used from the first whole hour, or day, of the period, and running ones may."""
        unit_ms, total_ms = HOUR_MS if used.per_ms <= 8 * DAY_MS else DAY_MS, 0
        begin_ms = (now_ms - used.per_ms) // unit_ms * unit_ms
        for position, attempt in enumerate(self.items):
            if attempt.user != user or attempt.queue not in queues:
                continue
            if attempt.ended_ms is None:
                total_ms += attempt.nodes * min(used.per_ms, self.stay_ms(jobs[attempt.gang], position))
            else:
                total_ms += attempt.nodes * max(0, attempt.ended_ms - max(begin_ms, attempt.began_ms))
        return total_ms
