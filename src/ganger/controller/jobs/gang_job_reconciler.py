"""Reconciler of GangJobs: a new one is submitted, a changed or deleted one becomes the corresponding request.

Changes arrive on the event loop; whatever would wait for the scheduling loop or the service runs on a thread. The
reason of a rejection is written to the object, and the submission is retried when the object changes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from ganger.controller.jobs import conditions
from ganger.controller.jobs.conditions import OVER
from ganger.controller.jobs.job_builder import MISSING, JobBuilder, spec_of
from ganger.controller.jobs.job_code import JobCode
from ganger.core.state.gang import Gang
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.gang_jobs.object_names import DEFAULT_USER, gang_of, id_of
from ganger.kubeapi.objects import CustomObject, Key, ObjectMeta
from ganger.model.decision import Cause
from ganger.model.event import (
    Deleted,
    Event,
    PriorityChanged,
    ResumeRequested,
    ScaleRequested,
    StopRequested,
    Submitted,
    SuspendRequested,
)
from ganger.model.job import GangState, Job
from ganger.model.job_sections.checkpoint_spec import split_resume_from
from ganger.model.watch.watch_event import RollbackRequested
from ganger.spec import spec_from_dict

UNREAD_REASON: Final = "record_unreadable"
UNREAD_MESSAGE: Final = (
    "its status.record cannot be read, so its progress is unknown: its pods run on without supervision; "
    "delete the GangJob to end them, or restore the record and restart the controller"
)

_log = logging.getLogger(__name__)
EventSink = Callable[[Key, dict[str, Any]], None]


class GangJobReconciler:
    """Reconciles GangJobs.

    Args:
        builder: makes jobs of GangJobs.
        write_status: writes fields of an object's status.
        known: the gangs of the restored state.
        code: provides the code of jobs.
        observed: kept up to date: by job, the generation of its object whose requests have been handled.
    """

    def __init__(
        self,
        builder: JobBuilder,
        write_status: EventSink,
        known: Iterable[Gang],
        code: JobCode,
        observed: dict[str, int],
    ) -> None:
        self._builder, self._loop, self._write_status, self._code = builder, builder.loop, write_status, code
        self._requested_before = {gang.array or gang.id: _requests_of(gang) for gang in known}
        """Requests of users for restored jobs, to compare with what they request now."""
        self._known = set(self._requested_before)
        self._submitting: dict[str, CustomObject | None] = {}
        """Current objects of jobs that are being submitted."""
        self._tasks: list[asyncio.Task[None]] = []
        self._refused: dict[str, CustomObject] = {}
        self._waiting_for: dict[str, set[str]] = {}
        """Jobs that were rejected because a dependency does not exist, by the dependency's id."""
        self._observed = observed

    def changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Handle a GangJob that was added, changed or deleted."""
        item = after or before
        name = id_of(item.metadata.key) if item is not None else ""
        requested_before = self._requested_before.pop(name, None)
        if after is None:
            self._observed.pop(name, None)
        if name in self._submitting:
            self._submitting[name] = after
        elif after is None:
            self._deleted(name, before)
        elif name not in self._known:
            self._added(after, is_first_seen=before is None)
        elif after.metadata.deletion_timestamp is not None:
            if before is None or before.metadata.deletion_timestamp is None:
                self._request(StopRequested(gang=name))  # a finalizer keeps the object: its pods would run on
        elif requested_before is not None:
            self._request_changes(after, requested_before, msgspec.json.decode(after.spec))
        elif before is None:
            self._set_observed(after)
        elif bytes(before.spec) != bytes(after.spec):
            self._request_changes(after, msgspec.json.decode(before.spec), msgspec.json.decode(after.spec))

    def retry_refused(self) -> None:
        """Submit rejected jobs again after a change of queues or limits."""
        refused, self._refused = self._refused, {}
        for item in refused.values():
            self._start_submission(item)

    def retry_rejected(self, keys: Iterable[Key]) -> None:
        """Submit those of these jobs again that were rejected."""
        for key in keys:
            if (item := self._refused.get(id_of(key))) is not None:
                self._start_submission(item)

    def _added(self, item: CustomObject, *, is_first_seen: bool) -> None:
        key = item.metadata.key
        status = msgspec.json.decode(item.status) or {}
        if status.get("phase") in OVER or item.metadata.deletion_timestamp is not None:
            return
        if status.get("phase") == "Rejected" and status.get("observedGeneration") == item.metadata.generation:
            if is_first_seen:
                # What stood against it may have gone while no controller ran, or is no obstacle for this version.
                self._start_submission(item, was_rejected=True)
            else:
                self._keep_refused(item, status.get("reason"))
            return
        if status.get("record"):  # jobs with a readable record are known
            self._report_unreadable(key, status)
            return
        self._start_submission(item)

    def _report_unreadable(self, key: Key, status: Mapping[str, Any]) -> None:
        """Report an unreadable record: submitting the job again would lose its progress."""
        if status.get("reason") != UNREAD_REASON:
            self._write_status(key, {"reason": UNREAD_REASON, "message": UNREAD_MESSAGE})

    def _start_submission(self, item: CustomObject, *, was_rejected: bool = False) -> None:
        name = id_of(item.metadata.key)
        _log.debug("submits GangJob %s/%s, generation %d", *item.metadata.key, item.metadata.generation)
        self._refused.pop(name, None)
        self._known.add(name)
        self._submitting[name] = item
        task = asyncio.get_running_loop().create_task(self._submit(item, was_rejected=was_rejected))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _submit(self, item: CustomObject, *, was_rejected: bool) -> None:
        key, refused = item.metadata.key, None
        try:
            spec = msgspec.json.decode(item.spec)
            job = await asyncio.to_thread(self._job, item.metadata, spec)
            job = replace(job, origin=await self._code.provide(job.spec, item.metadata, job.origin))
            self._write_code_location(item)
            # Nothing is written of the job before the cycle that accepts it, which has read this generation.
            self._observed[job.id] = item.metadata.generation
            await self._post(job, spec)
        except RequestError as error:
            refused = error
        finally:
            current = self._submitting.pop(id_of(key))
        if refused is not None:
            self._reject(item, refused, was_rejected=was_rejected)  # this may submit it again at once
        self._catch_up(item, current)
        if id_of(key) in self._known:
            for name in sorted(self._waiting_for.pop(id_of(key), ())):
                if (later := self._refused.get(name)) is not None:
                    self._start_submission(later)

    def _write_code_location(self, item: CustomObject) -> None:
        """Write where the code is, for the next controller, at the latest with what is written of the job's record."""
        location = self._code.location(item.metadata.key)
        if location != (msgspec.json.decode(item.status) or {}).get(object_names.CODE_LOCATION_FIELD):
            self._write_status(item.metadata.key, {object_names.CODE_LOCATION_FIELD: location})

    async def _post(self, job: Job, spec_fields: Mapping[str, Any]) -> None:
        """Post the submission with the requests that the object has from the beginning. Raises RequestError."""
        while True:
            events: list[Event] = [Submitted(job=job)]
            if spec_fields.get("suspend"):
                events.append(SuspendRequested(gang=job.id, by=job.user))
            if spec_fields.get("stop") or spec_fields.get("stopNow"):
                events.append(StopRequested(gang=job.id, by=job.user, now=bool(spec_fields.get("stopNow"))))
            if (size := _size(spec_fields)) is not None:
                events.append(ScaleRequested(gang=job.id, nodes=size, by=job.user))
            try:
                # No thread waits for the result: thousands of submissions are to be planned together.
                await asyncio.wrap_future(self._loop.post_all(events)[0])
            except RequestError:
                awaits = await asyncio.to_thread(self._builder.pending_dependencies, job.spec)
                if awaits == job.awaits:
                    raise
                job = replace(job, awaits=awaits)  # a dependency ended in this moment
            else:
                return

    def _reject(self, item: CustomObject, refused: RequestError, *, was_rejected: bool) -> None:
        """Reject a job; was_rejected: an earlier controller did, and nothing was written of it since."""
        key, generation = item.metadata.key, item.metadata.generation
        self._observed.pop(id_of(key), None)
        self._known.discard(id_of(key))
        status = {
            "phase": "Rejected",
            "observedGeneration": generation,
            "reason": refused.code,
            "message": f"{refused.detail}; {refused.next}",
        }
        said = (msgspec.json.decode(item.status) or {}) if was_rejected else {}
        if any(said.get(field) != value for field, value in status.items()):
            refusal = conditions.refused(refused, self._loop.now_ms(), generation)
            self._write_status(key, {**status, "conditions": refusal})
        self._keep_refused(item, refused.code)

    def _keep_refused(self, item: CustomObject, code: str | None) -> None:
        """Keep a rejected job until it may be submitted again; one that lacks a dependency, until that is created."""
        key = item.metadata.key
        self._refused[id_of(key)] = item
        if code != MISSING:
            return
        spec = msgspec.json.decode(item.spec)
        names = [after["job"] for after in spec.get("after") or ()]
        if resume_from := (spec.get("checkpoint") or {}).get("resume_from"):
            names.append(split_resume_from(resume_from)[0])
        dependencies = [gang_of(name, key.namespace) for name in names]
        for job in dependencies:
            self._waiting_for.setdefault(job.partition("[")[0], set()).add(id_of(key))
        if all(self._builder.state_of(job) for job in dependencies):
            self._start_submission(item)  # the dependency was created while this job was being rejected

    def _catch_up(self, item: CustomObject, current: CustomObject | None) -> None:
        """Handle what happened to an object while it was being submitted."""
        if current is None or current.metadata.uid != item.metadata.uid:
            self.changed(item, None)
            if current is not None:
                self.changed(None, current)
        elif current.metadata.generation != item.metadata.generation or current.metadata.deletion_timestamp is not None:
            self.changed(item, current)

    def _job(self, metadata: ObjectMeta, spec_fields: Mapping[str, Any]) -> Job:
        """Return the job to submit, without its code. Raises RequestError."""
        spec = spec_of(metadata.key, spec_fields)
        job = self._builder.job(metadata.key, spec_fields.get("user", DEFAULT_USER), spec)
        return replace(job, uid=metadata.uid)

    def _request_changes(self, item: CustomObject, before: Mapping[str, Any], spec_fields: Mapping[str, Any]) -> None:
        name, by = id_of(item.metadata.key), str(spec_fields.get("user", DEFAULT_USER))
        events = list[Event]()
        if bool(before.get("suspend")) != bool(spec_fields.get("suspend")):
            suspends = bool(spec_fields.get("suspend"))
            events.append(SuspendRequested(gang=name, by=by) if suspends else ResumeRequested(gang=name, by=by))
        if any(spec_fields.get(key) and not before.get(key) for key in ("stop", "stopNow")):
            events.append(StopRequested(gang=name, by=by, now=bool(spec_fields.get("stopNow"))))
        if (priority := _priority(spec_fields)) != _priority(before):
            events.append(PriorityChanged(gang=name, priority=priority, by=by))
        if (size := _size(spec_fields)) != _size(before):
            most = spec_of(item.metadata.key, spec_fields).sizes[-1]
            events.append(ScaleRequested(gang=name, nodes=most if size is None else size, by=by))
        if (step := spec_fields.get("rollback")) is not None and step != before.get("rollback"):
            events.append(RollbackRequested(gang=name, step=step, by=by))
        if not events:
            self._set_observed(item)
            return
        kinds = ", ".join(event.kind for event in events)
        _log.debug("GangJob %s/%s, generation %d: %s", *item.metadata.key, item.metadata.generation, kinds)
        event_loop = asyncio.get_running_loop()

        def observe(done: "Future[int]") -> None:
            # On the core's thread, and before this cycle is written to objects, which then have the generation.
            _log_refusal(done)
            self._observed[name] = item.metadata.generation
            with suppress(RuntimeError):  # the event loop has ended
                event_loop.call_soon_threadsafe(self._set_observed, item)

        *others, last = self._loop.post_all(events)
        for future in others:
            future.add_done_callback(_log_refusal)
        last.add_done_callback(observe)

    def _set_observed(self, item: CustomObject) -> None:
        """Note that all requests of this generation of an object have been handled."""
        generation = item.metadata.generation
        self._observed[id_of(item.metadata.key)] = generation
        if (msgspec.json.decode(item.status) or {}).get("observedGeneration") != generation:
            self._write_status(item.metadata.key, {"observedGeneration": generation})

    def _deleted(self, name: str, before: CustomObject | None) -> None:
        self._refused.pop(name, None)
        if before is not None and (msgspec.json.decode(before.status) or {}).get("phase") in OVER:
            self._known.discard(name)
            self._request(Deleted(gang=name))  # listings do not show it any more
        elif name in self._known:
            self._known.discard(name)
            self._request(StopRequested(gang=name))

    def _request(self, event: Event) -> None:
        self._loop.post(event).add_done_callback(_log_refusal)


def _requests_of(gang: Gang) -> dict[str, Any]:
    """Return what users have requested of a gang, as fields of a GangJob's spec."""
    is_suspended = gang.state in (GangState.SUSPENDING, GangState.SUSPENDED)
    suspend = gang.suspends is Cause.SUSPENDED or (is_suspended and gang.attempt.stop_sent is not Cause.IDLE_SUSPEND)
    size = None if gang.wanted.nodes == gang.job.spec.sizes[-1] else gang.wanted.nodes
    step = gang.checkpoints.requested_step
    return {"suspend": suspend, "priority": gang.job.spec.priority, "scale": size, "rollback": step}


def _size(spec_fields: Mapping[str, Any]) -> int | None:
    """Return the size that is requested; None: as many as it can have."""
    size: int | None = spec_fields.get("scale")
    return size


def _priority(spec_fields: Mapping[str, Any]) -> int:
    """Return a spec's priority as a number."""
    return spec_from_dict({"run": "true", "priority": spec_fields.get("priority", "normal")}, "GangJob").priority


def _log_refusal(done: "Future[int]") -> None:
    if (error := done.exception()) is not None:
        _log.info("%s", error)
