"""Reconciler of the Queue and SchedulingPolicy objects: they form the policy document, as far as it is valid.

What is in force is kept in `status.record` of the objects, so that a restarted controller begins with it, and not with
later edits that were refused. An object that is not valid beside the others stays out until it, they or the nodes
change; the rest is put in force without it.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.controller.policy import queue_usage
from ganger.controller.policy.queue_status import ReportTrigger
from ganger.controller.policy.queue_usage import Usage
from ganger.engine.loop import Loop
from ganger.engine.policy_doc.policy_validation import check_fits, policy_from_dict
from ganger.engine.policy_doc.trial_run import find_stranded
from ganger.engine.wall_clock import WallClock
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import POLICIES, QUEUES
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import CustomObject
from ganger.model.event import PolicySet
from ganger.model.job import MAX_PRIORITY
from ganger.model.policy import PolicyDocument
from ganger.model.queue import DEFAULT, ROOT, Queue

COLLECT_S: Final = 0.2
"""Time for which changes are collected: `kubectl apply` changes many objects at once."""
RETRY_S: Final = 30.0
"""Time until a refused object is checked again: nodes with its GPU type may have come, or jobs in its way ended."""
POLICY: Final = ""
"""Key of the policy itself, in place of a queue's name."""
ACCEPTED: Final = "Accepted"
USAGE_READ: Final = "UsageRead"
USAGE_LOST: Final = "its status.usage cannot be read: usage from before this controller started is not counted"
MAX_MESSAGE: Final = 1000

_log = logging.getLogger(__name__)
Specs = dict[str, Any]
"""Specs of objects by queue, and the policy's."""


class PolicyReconciler:
    """Reconciles the objects while `run` runs.

    Args:
        api: client of the API server.
        may_act: returns whether something may be written.

    Attributes:
        trigger: notified when a queue's usage may belong to another object: one was deleted, or another policy is in
            force.
    """

    def __init__(self, api: ApiClient, may_act: Callable[[], bool]) -> None:
        self._queues = Informer(api, QUEUES, self._changed)
        self._policies = Informer(api, POLICIES, self._changed)
        self._writers = {
            resource: StatusWriter(api, resource, informer.objects, may_act)
            for resource, informer in ((QUEUES, self._queues), (POLICIES, self._policies))
        }
        self._in_force: Specs = {}
        self._unreadable_usage: dict[str, str] = {}
        """Queues whose usage could not be read, and why."""
        self._wakeup = asyncio.Event()
        self.trigger = ReportTrigger()
        self._api, self._may_act = api, may_act

    async def run(self) -> None:
        """Follow the objects and write to them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for run in (self._queues.run, self._policies.run, *(writer.run for writer in self._writers.values())):
                group.create_task(run())

    async def wait_synced(self) -> None:
        """Wait until all objects were listed once."""
        for informer in (self._queues, self._policies):
            await informer.synced.wait()

    async def refresh(self) -> None:
        """Wait until every change of the objects from before this call is known."""
        await asyncio.gather(self._queues.refresh(), self._policies.refresh())

    async def policy_in_force(self) -> PolicyDocument:
        """Return the policy that the previous controller had put in force; without one, the default.

        Waits until all objects are listed. Called before `reconcile`.
        """
        await self.wait_synced()
        self._in_force = {
            name: record["spec"] for name, item in self._objects().items() if (record := _record(item)) is not None
        }
        try:
            return _document(self._in_force)
        except RequestError as error:
            _log.error("the policy in force cannot be read from the objects any more: %s", error.detail)
            self._in_force = {}
            return _document({})

    def usage(self) -> dict[str, Usage]:
        """Return the usage of each queue as the previous controller recorded it. Called after `policy_in_force`."""
        usage, now_ms = dict[str, Usage](), WallClock(0).now_ms()
        for key, queue in self._queues.objects.items():
            text = (msgspec.json.decode(queue.status) or {}).get("usage")
            try:
                if text is not None:
                    usage[key.name] = queue_usage.decode(text, key.name, now_ms)
            except ValueError as error:
                self._unreadable_usage[key.name] = " ".join(str(error).split())
                _log.error("%s: its usage cannot be read: %s", key.name, error)
        return usage

    def queues_with_status(self) -> frozenset[str]:
        """Return the queues with a status: those with an object, and those that always exist."""
        return frozenset((ROOT, DEFAULT, *(key.name for key in self._queues.objects)))

    async def write(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Write figures to the status of queues.

        A queue that always exists is given an object once there is something to write; others without an object are
        skipped.
        """
        queues = {key.name: queue for key, queue in self._queues.objects.items()}
        for name, figures in statuses.items():
            queue = queues.get(name)
            if queue is None and name in (ROOT, DEFAULT) and any(figures.values()) and self._may_act():
                with suppress(ApiError):  # the next change retries
                    queue = await self._api.create(QUEUES, _built_in(name))
            if queue is None:
                continue
            status = msgspec.json.decode(queue.status) or {}
            if any(status.get(key) != value for key, value in figures.items()):
                self._writers[QUEUES].update(queue.metadata.key, dict(figures))

    async def flush(self) -> None:
        """Write all pending statuses of queues. Raises ApiError."""
        await self._writers[QUEUES].flush()

    async def reconcile(self, loop: Loop, changed: Callable[[PolicyDocument], None]) -> None:
        """Keep the loop's policy in line with the objects until cancelled. `changed` is called with a new policy."""
        with loop.view() as state:  # a queue whose object was deleted while no controller ran stays for its jobs
            without_object: Specs = {name: {} for name in state.document.queues if name not in (ROOT, DEFAULT)}
        self._in_force = {**without_object, **self._in_force}
        while True:
            self._wakeup.clear()
            with loop.view() as state:
                nodes_are_known = state.ready
            retry_s = await self._reconcile_once(loop, changed) if nodes_are_known else COLLECT_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), retry_s)
                await asyncio.sleep(COLLECT_S)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _changed(self, before: CustomObject | None, now: CustomObject | None) -> None:
        if before is None or now is None or bytes(before.spec) != bytes(now.spec):
            self._wakeup.set()
        if now is None:
            self.trigger.notify()

    def _objects(self) -> dict[str, CustomObject]:
        objects = {key.name: queue for key, queue in self._queues.objects.items()}
        for policy in self._policies.objects.values():  # the API server accepts only one, of one name
            objects[POLICY] = policy
        return objects

    async def _reconcile_once(self, loop: Loop, changed: Callable[[PolicyDocument], None]) -> float | None:
        """Put in force what is valid, and write the result. Return when to retry, in seconds; None: after a change."""
        objects, before = self._objects(), self._in_force
        try:
            specs = {name: _spec(item) for name, item in objects.items()}
            refused = await asyncio.to_thread(self._put_in_force, loop, specs)
        except RequestError as error:
            _log.warning("the policy of the objects could not be put in force: %s", error.detail)
            return RETRY_S
        _log.debug("the policy of %d objects is in force, without those refused: %s", len(objects), [*refused])
        queues = _document(self._in_force).queues
        for name, item in objects.items():
            self._write_status(name, item, refused.get(name), queues)
        if before != self._in_force:
            self.trigger.notify()
            changed(_document(self._in_force))
        return RETRY_S if refused else None

    def _put_in_force(self, loop: Loop, specs: Specs) -> dict[str, RequestError]:
        """Put in force what is valid; return the errors of the rest."""
        refused: dict[str, RequestError] = {}
        try:
            document = _checked_document(specs, loop)
        except RequestError:
            specs, refused = self._accept_valid(loop, specs)
            document = _checked_document(specs, loop)
        with loop.view() as state:
            version, current = state.policy_version, state.document
        if document != current:
            loop.ask(PolicySet(document=document, version=version + 1, by="objects"))
        self._in_force = specs
        return refused

    def _accept_valid(self, loop: Loop, specs: Specs) -> tuple[Specs, dict[str, RequestError]]:
        """Add each valid change to what is in force, until no more are valid: a queue may come before its parent."""
        accepted, refused = dict(self._in_force), dict[str, RequestError]()
        left = [name for name in {**specs, **accepted} if specs.get(name) != accepted.get(name)]
        while left:
            still_refused = []
            for name in left:
                proposed = {other: spec for other, spec in accepted.items() if other != name}
                proposed |= {name: specs[name]} if name in specs else {}
                try:
                    _checked_document(proposed, loop)
                except RequestError as error:
                    refused[name] = error
                    still_refused.append(name)
                else:
                    accepted = proposed
                    refused.pop(name, None)
            if len(still_refused) == len(left):
                break
            left = still_refused
        for name in left:
            if name not in specs:
                title = "the policy" if name == POLICY else f"the queue {name}"
                _log.warning("%s was deleted, and stays until jobs that need it have ended", title)
        return accepted, refused

    def _write_status(
        self, name: str, item: CustomObject, error: RequestError | None, queues: Mapping[str, Queue]
    ) -> None:
        """Write to an object whether it is in force, and to a queue what the admission policy needs of it."""
        status = msgspec.json.decode(item.status) or {}
        generation = item.metadata.generation
        fields: dict[str, Any] = {"conditions": [_condition(status, generation, error)]}
        if name in self._unreadable_usage:
            fields["conditions"].append(_usage_condition(status, generation, self._unreadable_usage[name]))
        if name in self._in_force:
            fields["record"] = json.dumps({"spec": self._in_force[name]}, sort_keys=True)
        if name != POLICY and name in queues:
            fields["maxPriority"] = _max_priority(queues, name)
        if error is None:
            fields["observedGeneration"] = generation
        if any(status.get(key) != value for key, value in fields.items()):
            self._writers[POLICIES if name == POLICY else QUEUES].update(item.metadata.key, fields)


def _max_priority(queues: Mapping[str, Queue], name: str) -> int:
    """Return the highest priority that a user may ask for in a queue, by its limit and those above it."""
    maximum, above = MAX_PRIORITY, queues.get(name)
    while above is not None:
        limit = above.user_limits.priority
        maximum = maximum if limit is None else min(maximum, limit)
        above = None if above.parent is None else queues.get(above.parent)
    return maximum


def _document(specs: Specs) -> PolicyDocument:
    """Return the document of these specs. Raises RequestError."""
    return policy_from_dict(_document_data(specs), "objects").document


def _checked_document(specs: Specs, loop: Loop) -> PolicyDocument:
    """Return the document after checking it against nodes and jobs. Raises RequestError."""
    draft = policy_from_dict(_document_data(specs), "objects")
    with loop.view() as state:
        document = check_fits(draft, state)
        lost = find_stranded(state, document)
    if lost:
        jobs = ", ".join(job.job for job in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise RequestError(
            "jobs_stranded", f"{jobs}{more} could not continue: {lost[0].reason}", "stop or move them first"
        )
    return document


def _document_data(specs: Specs) -> dict[str, Any]:
    queues = {name: spec for name, spec in specs.items() if name != POLICY}
    return {**specs.get(POLICY, {}), "queues": queues}


def _spec(item: CustomObject) -> Any:
    return msgspec.json.decode(item.spec) or {}


def _record(item: CustomObject) -> Mapping[str, Any] | None:
    """Return the record of what was in force; None if there is none."""
    status = msgspec.json.decode(item.status) or {}
    try:
        record = json.loads(status.get("record") or "null")
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("spec"), dict) else None


def _built_in(name: str) -> dict[str, Any]:
    return {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}


def _condition(status: Mapping[str, Any], generation: int, error: RequestError | None) -> dict[str, Any]:
    condition = {
        "type": ACCEPTED,
        "status": "True" if error is None else "False",
        "reason": "InForce" if error is None else "".join(word.capitalize() for word in error.code.split("_")),
        "message": "" if error is None else f"{error.detail}: what was in force before still is",
        "observedGeneration": generation,
    }
    return _with_transition_time(status, condition)


def _usage_condition(status: Mapping[str, Any], generation: int, error: str) -> dict[str, Any]:
    condition = {
        "type": USAGE_READ,
        "status": "False",
        "reason": "UsageUnreadable",
        "message": f"{USAGE_LOST} ({error})"[:MAX_MESSAGE],
        "observedGeneration": generation,
    }
    return _with_transition_time(status, condition)


def _with_transition_time(status: Mapping[str, Any], condition: dict[str, Any]) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = status.get("conditions", [])
    known = next((known for known in conditions if known.get("type") == condition["type"]), {})
    since = known.get("lastTransitionTime") if known.get("status") == condition["status"] else None
    return condition | {"lastTransitionTime": since or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
