"""Jobs with claims: those that wait are restricted again, and rejected ones submitted again, whenever claims change."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.jobs.job_builder import spec_of
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.loop import Loop
from ganger.errors import RequestError
from ganger.gang_jobs.object_names import id_of
from ganger.kubeapi.objects import Key
from ganger.model.affinity import Term
from ganger.model.event import NodesRestricted

Retry = Callable[[Collection[Key]], None]
"""Submits those of the GangJobs again that were rejected."""


class ClaimRestrictions:
    """Follows the claims of `backend` for the jobs of `loop`. `retry` submits rejected jobs again."""

    def __init__(self, loop: Loop, backend: KubernetesBackend, retry: Retry) -> None:
        self._loop, self._backend, self._retry = loop, backend, retry
        self._changed_jobs: set[Key] = set()
        self._wakeup = asyncio.Event()
        backend.volumes.on_change = self._note
        backend.devices.on_change = retry  # what they restrict is what nodes have, and not which nodes

    async def run(self) -> None:
        """Handle changes until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            jobs, self._changed_jobs = self._changed_jobs, set()
            self._retry(jobs)
            required = await self._required_by_job(jobs)
            events = await asyncio.to_thread(self._changes, required)
            if events:
                self._loop.post_all(events)

    def _note(self, jobs: Collection[Key]) -> None:
        self._changed_jobs.update(jobs)
        self._wakeup.set()

    async def _required_by_job(self, jobs: Collection[Key]) -> dict[str, tuple[Term, ...]]:
        """Return the terms that the job and its claims have together, by job; without those that cannot start now."""
        required = {}
        for key in jobs:
            if (gang_job := self._backend.job(key)) is None:
                continue
            try:
                spec = spec_of(key, msgspec.json.decode(gang_job.spec))
                spec = await self._backend.volumes.restrict(key.namespace, spec)
            except RequestError:
                continue  # its next attempt reports it
            required[id_of(key)] = spec.placement.affinity.required
        return required

    def _changes(self, required: Mapping[str, tuple[Term, ...]]) -> list[NodesRestricted]:
        with self._loop.view() as state:
            return [
                NodesRestricted(gang=gang.id, required=terms)
                for name, terms in required.items()
                for gang in _gangs_of(state, name)
                if gang.attempt.start is None and gang.job.spec.placement.affinity.required != terms
            ]


def _gangs_of(state: State, job: str) -> Iterator[Gang]:
    """Yield the live gangs of a job."""
    if job in state.arrays:
        yield from (gang for gang in state.gangs.values() if gang.array == job)
    elif job in state.gangs:
        yield state.gangs[job]
