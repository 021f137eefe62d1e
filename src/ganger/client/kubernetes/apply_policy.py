"""`ganger policy apply`: a policy document written as a SchedulingPolicy, and a Queue for each of its queues.

It has the caller's permissions. The controller first checks the document, and the API server all objects in a dry run,
so that an invalid or forbidden one leaves nothing half written. If a write fails all the same, or the controller
(`controller.policy.policy_reconciler`) does not put the objects in force, what was written is reverted, except objects
that another client changed since.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ganger.client.client_errors import REFUSED, UNREACHABLE, ClientError, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.controller_requests import query_controller
from ganger.gang_jobs.custom_resources import GROUP, POLICIES, QUEUES
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import Resource
from ganger.model.queue import DEFAULT, ROOT

Record = dict[str, Any]

NAME: Final = "default"
"""Name of the only SchedulingPolicy."""
ACCEPTED: Final = "Accepted"
MAX_ATTEMPTS: Final = 5
"""Attempts of a write, because the controller writes to the same object."""
POLL_INTERVAL_S: Final = 0.2
ACCEPT_TIMEOUT_S: Final = 30.0
"""Time to wait until the controller reports on an object whether it is in force."""
_CHANGED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses for an object that is not as it was known; the latter for a failed `test` step of a patch."""
_KINDS: Final = {QUEUES: "Queue", POLICIES: "SchedulingPolicy"}


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of an object: its new spec (None: it is deleted) and its known state."""

    resource: Resource[CustomObject]
    name: str
    spec: Record | None
    known: CustomObject | None

    @property
    def title(self) -> str:
        return f"{self.resource.plural}/{self.name}"


@dataclass(frozen=True, slots=True)
class _AppliedChange:
    """A written change, and the resulting object (None: it was deleted)."""

    change: _Change
    result: CustomObject | None


async def write(caller: Caller, proposal: Record) -> Record:
    """Write the objects of a document; return the names {"written", "deleted", "unchanged"} once they are in force.

    Raises ApiError, and ClientError for an invalid document, or if the controller refuses.
    """
    document = msgspec.json.decode(await query_controller(caller, "POST", "/policy/check", proposal))["document"]
    changes, unchanged = await _changes(caller.api, document)
    await _put_in_force(caller, changes)
    return {
        "written": [change.title for change in changes if change.spec is not None],
        "deleted": [change.title for change in changes if change.spec is None],
        "unchanged": unchanged,
    }


async def write_queue(caller: Caller, name: str, spec: Record | None) -> None:
    """Write the object of one queue (None: delete it), once it is in force. Raises the same errors."""
    try:
        known = await caller.api.get(QUEUES, name)
    except ApiError as error:
        if not error.missing or spec is None:
            raise
        known = None
    await _put_in_force(caller, [_Change(QUEUES, name, spec, known)])


async def _put_in_force(caller: Caller, changes: Sequence[_Change]) -> None:
    """Validate the changes, write them, and wait until the controller has put them in force; revert all otherwise."""
    async with caller.api.dry_run_client() as dry_run:
        for change in changes:
            await _write(dry_run, change)
    done: list[_AppliedChange] = []
    for change in sorted(
        changes, key=lambda change: change.spec is None
    ):  # deletions last: a deleted object cannot be fully restored
        try:
            done.append(_AppliedChange(change, await _write(caller.api, change)))
        except ApiError as error:
            if not done:
                raise
            raise await _revert_all(caller, done, error, change.title) from error
    if refused := await _find_rejections(caller, [change for change in changes if change.spec is not None]):
        raise await _revert_all(caller, done, "\n".join(refused))


async def _changes(api: ApiClient, specs: Record) -> tuple[list[_Change], list[str]]:
    """Return the changes to write, and the names of unchanged objects."""
    queues: dict[str, Record] = specs.pop("queues", {})
    objects = {(QUEUES, queue.metadata.name): queue for queue in await api.list(QUEUES)}
    objects |= {(POLICIES, policy.metadata.name): policy for policy in await api.list(POLICIES)}
    new_specs: dict[tuple[Resource[CustomObject], str], Record] = {
        (QUEUES, name): spec
        for name, spec in queues.items()
        if spec or name not in (ROOT, DEFAULT) or (QUEUES, name) in objects  # these two exist without an object
    }
    if specs or (POLICIES, NAME) in objects:
        new_specs[POLICIES, NAME] = specs
    deleted = [key for key in objects if key not in new_specs and key[0] is QUEUES]
    candidates = [_Change(*key, new_specs.get(key), objects.get(key)) for key in (*new_specs, *deleted)]
    changes = [change for change in candidates if change.known is None or _spec(change.known) != change.spec]
    return changes, [change.title for change in candidates if change not in changes]


async def _revert_all(
    caller: Caller, done: Sequence[_AppliedChange], cause: ApiError | str, failed: str = ""
) -> ClientError:
    """Revert the writes; return an error that says so, or which object could not be reverted.

    `failed` is the object that was not written.
    """
    lines, problems = [f"{failed}: {cause}" if failed else str(cause)], list[str]()
    if isinstance(cause, ApiError) and cause.outcome_unknown:
        problems.append(f"it is not known whether {failed} was written")
    for written_change in reversed(done):
        try:
            problems += await _revert(caller.api, written_change)
        except ApiError as error:
            problems.append(f"{written_change.change.title} is not as it was before: {error}")
    lines += problems or ["nothing has changed: what was written before was reverted"]
    next_step = caller.kubectl("get", "queues,schedulingpolicies")
    if not isinstance(cause, ApiError):
        return client_error("bad_policy", "\n".join(lines), next_step, REFUSED)
    return client_error("not_applied", "\n".join(lines), next_step, UNREACHABLE if cause.is_retryable else REFUSED)


async def _revert(api: ApiClient, done: _AppliedChange) -> list[str]:
    """Revert one write; return what could not be restored. Raises ApiError; a conflict if it has changed since."""
    change = done.change
    if done.result is not None:
        await _write(
            api, replace(change, spec=None if change.known is None else _spec(change.known), known=done.result)
        )
        return []
    assert change.known is not None  # noqa: S101  # it was deleted
    await _write(api, replace(change, spec=_spec(change.known), known=None))
    usage = (msgspec.json.decode(change.known.status) or {}).get("usage")
    return [f"{change.title} was created again; its previous usage is not counted"] if usage else []


async def _write(api: ApiClient, change: _Change) -> CustomObject | None:
    """Create, change or delete an object; return its new state.

    Raises ApiError; a conflict if its spec has changed since it was known. The outcome of a lost response is read;
    changes of the status do not matter.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await _write_once(api, change)
        except ApiError as error:
            if change.known is None or not (error.outcome_unknown or error.status in _CHANGED):
                raise
            current = await api.get(change.resource, change.name)
            if error.outcome_unknown and _spec(current) == change.spec:
                return current
            if current.metadata.generation != change.known.metadata.generation:
                raise
            if attempt == MAX_ATTEMPTS:
                raise replace(error, outcome_unknown=False) from error  # the object exists unchanged
            change = replace(change, known=current)
    raise AssertionError(change.title)  # the last attempt returns or raises


async def _write_once(api: ApiClient, change: _Change) -> CustomObject | None:
    if change.spec is None:
        assert change.known is not None  # noqa: S101  # only existing objects are deleted
        await api.delete(change.resource, change.known.metadata, unchanged=True)
        return None
    if change.known is None:
        body = {
            "apiVersion": f"{GROUP}/{change.resource.version}",
            "kind": _KINDS[change.resource],
            "metadata": {"name": change.name},
            "spec": change.spec,
        }
        return await api.create(change.resource, body)
    version = change.known.metadata.resource_version
    steps: list[Record] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/spec", "value": change.spec},
    ]
    return await api.patch(ObjectRef(change.resource, name=change.name), steps)


async def _find_rejections(caller: Caller, changes: list[_Change]) -> list[str]:
    """Return why the controller does not put some objects in force. Raises ClientError if it does not report."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ACCEPT_TIMEOUT_S
    while True:
        results = {change.title: _acceptance(await caller.api.get(change.resource, change.name)) for change in changes}
        silent = [title for title, (status, _) in results.items() if not status]
        if not silent:
            return [f"{title}: {message}" for title, (status, message) in results.items() if status == "False"]
        if loop.time() > until_s:
            detail = f"{', '.join(silent)}: written, but no controller reports whether it is in force"
            raise client_error(
                "unreachable", detail, caller.kubectl("get", "pods", "-n", caller.controller), UNREACHABLE
            )
        await asyncio.sleep(POLL_INTERVAL_S)


def _acceptance(item: CustomObject) -> tuple[str, str]:
    """Return the status ("True", "False") and message of its condition for this generation; empty without one."""
    status = msgspec.json.decode(item.status) or {}
    for condition in status.get("conditions", ()):
        if condition["type"] == ACCEPTED and condition.get("observedGeneration") == item.metadata.generation:
            return condition["status"], condition.get("message", "")
    return "", ""


def _spec(item: CustomObject) -> Record:
    spec: Record | None = msgspec.json.decode(item.spec)
    return spec or {}
