"""Oracle of precedence: whether one job may have moved the reservation of another, from raw requests and quotas."""

from collections.abc import Iterable

from ganger.model.job import Job
from ganger.model.queue import Queue
from ganger.model.units import DEVICE_MILLI
from tests.laws.oracles.job_parts import HCA, RESOURCES, total

COUNTED = (*RESOURCES, HCA)


class Guarantees:
    """The guarantees of the queues and the use of them; queues with quotas of GPU types are not decided."""

    def __init__(self, queues: dict[str, Queue]) -> None:
        self.queues = queues
        self.has_types = any(queue.nominal.gpu_types for queue in queues.values())

    def within(self, job: Job, other: Job, held: Iterable[Job]) -> bool:
        """Return whether a job's queue stays within its guarantee beside `held`, where its path leaves the other's."""
        branch = self._branch(job, other)
        return branch is not None and self._is_within(branch, [*held, job])

    def exceeds(self, job: Job, other: Job, held: Iterable[Job]) -> bool:
        """Return whether a job's queue would exceed its guarantee beside `held`, where its path leaves the other's."""
        branch = self._branch(job, other)
        return branch is not None and (self.has_types or not self._is_within(branch, [*held, job]))

    def _path(self, name: str) -> list[str]:
        path = [name]
        while (above := self.queues[path[-1]].parent) is not None:
            path.append(above)
        return path[::-1]

    def _branch(self, job: Job, other: Job) -> str | None:
        paths = zip(self._path(job.spec.queue), self._path(other.spec.queue), strict=False)
        return next((mine for mine, theirs in paths if mine != theirs), None)

    def _quota(self, name: str, r: int) -> int | None:
        """Return what a queue and those below it are guaranteed of a resource, None if no quota is set."""
        amount = self.queues[name].nominal
        by_type = sum(amount.gpu_types.values()) if amount.gpu_types else None
        gpus = by_type if amount.gpus is None else amount.gpus
        figures = (
            None if gpus is None else gpus * DEVICE_MILLI,
            amount.cpu_milli,
            amount.memory_bytes,
            amount.extended.get(HCA),
        )
        below = [self._quota(child, r) or 0 for child, queue in self.queues.items() if queue.parent == name]
        if figures[r] is None:
            return sum(below) or None
        return max(figures[r] or 0, sum(below))

    def _is_within(self, name: str, jobs: list[Job]) -> bool:
        of_branch = [job for job in jobs if name in self._path(job.spec.queue)]
        quotas = [(r, quota) for r in range(len(COUNTED)) if (quota := self._quota(name, r)) is not None]
        asked = [(r, quota) for r, quota in quotas if total(jobs[-1].spec, COUNTED[r])]
        used = {r: sum(total(job.spec, COUNTED[r]) for job in of_branch) for r, _ in asked}
        return bool(asked or self.has_types) and all(used[r] <= quota for r, quota in asked)
