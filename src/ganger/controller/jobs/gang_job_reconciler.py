"""GangJobs as requests: one that somebody made is submitted, one that was changed or deleted asks for what that means.

Called by `controller.assembly` with each change that the backend sees, on the event loop; what the loop and the service
would have to be waited for happens on a thread. What is refused is told on the object, and tried again when it changes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes.object_names import ASKED_BESIDE, NOBODY, gang_of, id_of
from ganger.controller.jobs import conditions
from ganger.controller.jobs.job_builder import MISSING, JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.core.state.gang import Gang
from ganger.errors import RequestError
from ganger.kubeapi.objects import Custom, Key, Meta
from ganger.model.event import (
    Deleted,
    Event,
    PriorityChanged,
    ResumeRequested,
    StopRequested,
    Submitted,
    SuspendRequested,
)
from ganger.model.job import GangState, Job, JobSpec
from ganger.spec import spec_from_dict

OVER: Final = ("Succeeded", "Failed", "Stopped")
UNREAD: Final = "record_unreadable"
LEFT_ALONE: Final = (
    "its status.record cannot be read, so nobody knows how far it is: its pods run on, and nobody looks after them; "
    "delete the GangJob to end them, or put the record back and restart the controller"
)

_log = logging.getLogger(__name__)
EventSink = Callable[[Key, dict[str, Any]], None]


class GangJobs:
    """`tell` writes fields of an object's status."""

    def __init__(self, to_be: JobBuilder, tell: EventSink, known: Iterable[Gang], code: JobCode) -> None:
        """known: what the state was put together from; code: brings what jobs are to run."""
        self._to_be, self._loop, self._tell, self._code = to_be, to_be.loop, tell, code
        self._was = {gang.array or gang.id: _asked_of(gang) for gang in known}
        """What people had asked for of these, before anybody was there to hear what they ask for now."""
        self._known = set(self._was)
        self._submitting: dict[str, Custom | None] = {}
        """Those that are being submitted, as they are by now."""
        self._waiting: list[asyncio.Task[None]] = []
        self._refused: dict[str, Custom] = {}
        self._come_later: dict[str, set[str]] = {}
        """Those that were refused as a job was not there that they come after: by id of that one."""
        self.observed: dict[str, int] = {}
        """By job: the generation of its object up to which what people ask for was answered."""

    def changed(self, before: Custom | None, now: Custom | None) -> None:
        """A GangJob came, changed, or is gone."""
        found = now or before
        name = id_of(found.metadata.key) if found is not None else ""
        was = self._was.pop(name, None)
        if now is None:
            self.observed.pop(name, None)
        if name in self._submitting:
            self._submitting[name] = now
        elif now is None:
            self._gone(name, before)
        elif name not in self._known:
            self._come(now)
        elif now.metadata.deletion_timestamp is not None:
            if before is None or before.metadata.deletion_timestamp is None:
                self._ask(StopRequested(gang=name))  # a finalizer of somebody's keeps the object: its pods would run on
        elif was is not None:
            self._differs(now, was, msgspec.json.decode(now.spec))
        elif before is None:
            self._observe(now)
        elif bytes(before.spec) != bytes(now.spec):
            self._differs(now, msgspec.json.decode(before.spec), msgspec.json.decode(now.spec))

    def again(self) -> None:
        """Queues and limits are others now: who was refused may be taken."""
        refused, self._refused = self._refused, {}
        for found in refused.values():
            self._begin(found)

    def _come(self, found: Custom) -> None:
        key = found.metadata.key
        status = msgspec.json.decode(found.status) or {}
        if status.get("phase") in OVER or found.metadata.deletion_timestamp is not None:
            return
        if status.get("phase") == "Refused" and status.get("observedGeneration") == found.metadata.generation:
            self._keep_refused(found, status.get("reason"))
            return
        if status.get("record"):  # whoever could be read is known
            self._leave_alone(key, status)
            return
        self._begin(found)

    def _leave_alone(self, key: Key, status: Mapping[str, Any]) -> None:
        """Nobody knows how far it is: to submit it would be to lose what it has done."""
        if status.get("reason") != UNREAD:
            self._tell(key, {"reason": UNREAD, "message": LEFT_ALONE})

    def _begin(self, found: Custom) -> None:
        name = id_of(found.metadata.key)
        self._refused.pop(name, None)
        self._known.add(name)
        self._submitting[name] = found
        task = asyncio.get_running_loop().create_task(self._submit(found))
        self._waiting.append(task)
        task.add_done_callback(self._waiting.remove)

    async def _submit(self, found: Custom) -> None:
        key, refused = found.metadata.key, None
        try:
            spec = msgspec.json.decode(found.spec)
            job = await asyncio.to_thread(self._job, found.metadata, spec)
            # Nothing is said of the job before the round that takes it, and that has read this generation.
            self.observed[job.id] = found.metadata.generation
            await self._put_in(job, spec)
        except RequestError as why:
            refused = why
        finally:
            now = self._submitting.pop(id_of(key))
        if refused is not None:
            self._refuse(found, refused)  # perhaps to be submitted again at once
        self._catch_up(found, now)
        if id_of(key) in self._known:
            for name in sorted(self._come_later.pop(id_of(key), ())):
                if (later := self._refused.get(name)) is not None:
                    self._begin(later)

    async def _put_in(self, job: Job, said: Mapping[str, Any]) -> None:
        """Into the log, with what is asked of it from the beginning. Refused says why not."""
        while True:
            asked: list[Event] = [Submitted(job=job)]
            if said.get("suspend"):
                asked.append(SuspendRequested(gang=job.id, by=job.user))
            if said.get("stop"):
                asked.append(StopRequested(gang=job.id, by=job.user))
            try:
                # No thread waits for the answer: what comes by the thousand is to be planned together.
                await asyncio.wrap_future(self._loop.post_all(asked)[0])
            except RequestError:
                awaits = await asyncio.to_thread(self._to_be.awaited, job.spec)
                if awaits == job.awaits:
                    raise
                job = replace(job, awaits=awaits)  # one that it comes after ended at just that moment
            else:
                return

    def _refuse(self, found: Custom, refused: RequestError) -> None:
        key, generation = found.metadata.key, found.metadata.generation
        self.observed.pop(id_of(key), None)
        self._known.discard(id_of(key))
        said = {"reason": refused.code, "message": f"{refused.detail}; {refused.next}"}
        told = conditions.refused(refused, self._loop.now_ms(), generation)
        self._tell(key, {"phase": "Refused", "observedGeneration": generation, "conditions": told, **said})
        self._keep_refused(found, refused.code)

    def _keep_refused(self, found: Custom, code: str | None) -> None:
        """Until it may be taken: where another job is missing, until that one comes."""
        key = found.metadata.key
        self._refused[id_of(key)] = found
        if code != MISSING:
            return
        awaited = [gang_of(each["job"], key.namespace) for each in msgspec.json.decode(found.spec)["after"]]
        for each in awaited:
            self._come_later.setdefault(each.partition("[")[0], set()).add(id_of(key))
        if all(self._to_be.state_of(each) for each in awaited):
            self._begin(found)  # it came while this one was being refused

    def _catch_up(self, found: Custom, now: Custom | None) -> None:
        """What became of an object while it was being submitted."""
        if now is None or now.metadata.uid != found.metadata.uid:
            self.changed(found, None)
            if now is not None:
                self.changed(None, now)
        elif now.metadata.generation != found.metadata.generation or now.metadata.deletion_timestamp is not None:
            self.changed(found, now)

    def _job(self, about: Meta, said: Mapping[str, Any]) -> Job:
        """What is to be submitted. Refused says why it cannot be."""
        spec = spec_of(about.key, said)
        job = self._to_be.job(about.key, said.get("user", NOBODY), spec)
        return replace(job, uid=about.uid, origin=self._code.brought(job.spec, about, job.origin))

    def _differs(self, now: Custom, was: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        name, by = id_of(now.metadata.key), str(said.get("user", NOBODY))
        asked = list[Event]()
        if bool(was.get("suspend")) != bool(said.get("suspend")):
            suspends = bool(said.get("suspend"))
            asked.append(SuspendRequested(gang=name, by=by) if suspends else ResumeRequested(gang=name, by=by))
        if said.get("stop") and not was.get("stop"):
            asked.append(StopRequested(gang=name, by=by))
        if (priority := _priority(said)) != _priority(was):
            asked.append(PriorityChanged(gang=name, priority=priority, by=by))
        if not asked:
            self._observe(now)
            return
        event_loop = asyncio.get_running_loop()

        def answered(done: "Future[int]") -> None:
            # On the core's thread, and before this round is told to objects: they say what it was the answer to.
            _complain(done)
            self.observed[name] = now.metadata.generation
            with suppress(RuntimeError):  # the event loop has ended
                event_loop.call_soon_threadsafe(self._observe, now)

        *others, last = self._loop.post_all(asked)
        for each in others:
            each.add_done_callback(_complain)
        last.add_done_callback(answered)

    def _observe(self, now: Custom) -> None:
        """All that this generation of an object asks for was answered."""
        generation = now.metadata.generation
        self.observed[id_of(now.metadata.key)] = generation
        if (msgspec.json.decode(now.status) or {}).get("observedGeneration") != generation:
            self._tell(now.metadata.key, {"observedGeneration": generation})

    def _gone(self, name: str, before: Custom | None) -> None:
        self._refused.pop(name, None)
        if before is not None and (msgspec.json.decode(before.status) or {}).get("phase") in OVER:
            self._known.discard(name)
            self._ask(Deleted(gang=name))  # no listing shows it any more
        elif name in self._known:
            self._known.discard(name)
            self._ask(StopRequested(gang=name))

    def _ask(self, event: Event) -> None:
        self._loop.post(event).add_done_callback(_complain)


def spec_of(key: Key, said: Mapping[str, Any]) -> JobSpec:
    """The job's spec that the spec of that GangJob is. Refused: it is none."""
    rest = {name: value for name, value in said.items() if name not in ASKED_BESIDE}
    return replace(spec_from_dict(rest, f"GangJob {key.name}"), name=key.name)


def _asked_of(gang: Gang) -> dict[str, Any]:
    """What people have asked for, as a GangJob's spec has it."""
    suspend = gang.suspends or gang.state in (GangState.SUSPENDING, GangState.SUSPENDED)
    return {"suspend": suspend, "priority": gang.job.spec.priority}


def _priority(said: Mapping[str, Any]) -> int:
    """What a spec says of it, as a number."""
    return spec_from_dict({"run": "true", "priority": said.get("priority", "normal")}, "GangJob").priority


def _complain(done: "Future[int]") -> None:
    if (why := done.exception()) is not None:
        _log.info("%s", why)
