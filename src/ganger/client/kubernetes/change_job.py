"""Changes of a GangJob: stop, suspend, resume, scale, rollback, priority, labels, notes, and its deletion.

Requests are fields of the object's spec, which a controller reads; the client waits for a moment until one has, and
says if none has.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from ganger.client.client_errors import REFUSED, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.find_job import find_whole_job
from ganger.client.kubernetes.job_row import in_full, is_rejected, read_spec, row, spec_of, status_of
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.request import ObjectRef
from ganger.model.job import ENDED, GangState
from ganger.spec.submission_checks import scaled_size

Record = dict[str, Any]

HANDLED_TIMEOUT_S: Final = 5.0
HANDLED_POLL_S: Final = 0.2
SUSPENDED: Final = ("suspending", "suspended")


async def stop(caller: Caller, name: str, *, now: bool) -> Record:
    """Stop a job, with time to save unless `now`; return it. Raises ApiError and ClientError."""
    job = await _live_job(caller, name, "stopped")
    requests = {"stop": True} | ({"stopNow": True} if now else {})
    return in_full(await caller.api.merge(_ref(caller, job), {"spec": requests}))


async def change(caller: Caller, name: str, fields: Record) -> Record:
    """Change priority, suspension, labels or notes of a job; return it. Raises ApiError and ClientError.

    `unhandled` tells what to type if no controller has handled the change yet.
    """
    job, is_suspended = await find_whole_job(caller, name, "changed"), fields.get("suspended")
    spec = {key: fields[key] for key in ("priority", "labels", "notes") if fields.get(key) is not None}
    if is_suspended is not None or "priority" in spec or fields.get("nodes") or fields.get("rollback") is not None:
        job = await _live_job(caller, name, "changed")
    if fields.get("nodes"):
        spec["scale"] = _scaled_size(job, fields["nodes"])
    if fields.get("rollback") is not None:
        spec["rollback"] = _rollback_step(job, fields["rollback"])
        if spec_of(job).get("rollback") == fields["rollback"]:  # only a change of it is a request
            await caller.api.merge(_ref(caller, job), {"spec": {"rollback": None}})
    if spec:
        job = await caller.api.merge(_ref(caller, job), {"spec": spec})
    if is_suspended is None:
        is_request = any(key in spec for key in ("priority", "scale", "rollback"))
        return await _wait_until_handled(caller, job, lambda _: True) if is_request else in_full(job)
    if (_state(job) in SUSPENDED) is is_suspended:
        return in_full(job)
    return await _set_suspended(caller, job, suspended=is_suspended)


def _scaled_size(job: CustomObject, wanted: str) -> int:
    """Return the size that is asked for. Raises RequestError."""
    spec, status, name = read_spec(job), status_of(job), job.metadata.name
    if spec is None:
        raise RequestError("bad_spec", f"the spec of {name} cannot be read", "kubectl explain gangjob.spec")
    if spec.array is not None:
        raise RequestError("is_array", f"elements of {name} have no objects of their own", f"ganger get {name}", 409)
    present = re.findall(r"(?:^| \+ )(\d+)x", status.get("shape") or "")
    requested = spec_of(job).get("scale") if _state(job) == GangState.RESIZING else None
    size = requested or (int(present[spec.elastic_part]) if present else spec.sizes[0])
    return scaled_size(name, spec, size, wanted)


def _rollback_step(job: CustomObject, step: int) -> int:
    """Return the step that is asked for. Raises RequestError."""
    spec, name = read_spec(job), job.metadata.name
    if spec is None:
        raise RequestError("bad_spec", f"the spec of {name} cannot be read", "kubectl explain gangjob.spec")
    if spec.array is not None:
        raise RequestError("is_array", f"elements of {name} have no objects of their own", f"ganger get {name}", 409)
    if not spec.has_steps:
        detail = f"{name} has no checkpoints by step: it has no checkpoint section, or one file for all"
        raise RequestError("no_checkpoint", detail, f"ganger get {name}", 409)
    return step


async def delete(caller: Caller, name: str) -> None:
    """Delete the object of an ended job. Raises ApiError and ClientError."""
    await caller.api.delete(GANG_JOBS, (await ended_job(caller, name, "deleted")).metadata)


async def ended_job(caller: Caller, name: str, action: str) -> CustomObject:
    """Return the GangJob of an ended job. Raises ApiError and ClientError."""
    job = await find_whole_job(caller, name, action)
    if (state := row(job)["state"]) not in ENDED:
        full_name = job.metadata.name
        detail = f"{full_name} is {state}: wait for its end, or stop it"
        raise client_error("still_live", detail, caller.typed("stop", full_name), REFUSED)
    return job


async def _set_suspended(caller: Caller, job: CustomObject, *, suspended: bool) -> Record:
    ref = _ref(caller, job)
    if bool(spec_of(job).get("suspend")) is suspended:
        # It was changed since through the controller: only a change of the object counts as a request.
        await caller.api.merge(ref, {"spec": {"suspend": not suspended}})
    changed = await caller.api.merge(ref, {"spec": {"suspend": suspended}})
    return await _wait_until_handled(caller, changed, lambda state: (state in SUSPENDED) is suspended)


async def _wait_until_handled(caller: Caller, job: CustomObject, is_expected: Callable[[str], bool]) -> Record:
    """Return the job once a controller has handled the change."""
    loop, name, generation = asyncio.get_running_loop(), job.metadata.name, job.metadata.generation
    until_s = loop.time() + HANDLED_TIMEOUT_S
    while True:
        is_handled = status_of(job).get("observedGeneration", 0) >= generation and is_expected(row(job)["state"])
        if is_handled or loop.time() >= until_s:
            pods = caller.kubectl("get", "pods", "-n", caller.controller)
            return in_full(job) | ({} if is_handled else {"unhandled": f"not handled by a controller yet: {pods}"})
        await asyncio.sleep(HANDLED_POLL_S)
        job = await caller.api.get(GANG_JOBS, name, caller.namespace)


def _state(job: CustomObject) -> str:
    """Return a job's state, with a request included that no controller has handled yet."""
    state: str = row(job)["state"]
    if status_of(job).get("observedGeneration", 0) < job.metadata.generation:
        if spec_of(job).get("suspend") and state not in SUSPENDED:
            return SUSPENDED[0]
        if spec_of(job).get("suspend") is False and state in SUSPENDED:
            return "pending"
    return state


async def _live_job(caller: Caller, name: str, action: str) -> CustomObject:
    job = await find_whole_job(caller, name, action)
    state, full_name = row(job)["state"], job.metadata.name
    if is_rejected(job):
        detail = f"{full_name} was rejected; it is checked again when queues, policy or claims change"
        raise client_error("already_ended", detail, f"to give it up: {caller.typed('delete', full_name)}", REFUSED)
    if state in ENDED:
        detail = f"{full_name} has ended already: {state}"
        raise client_error("already_ended", detail, caller.typed("get", full_name), REFUSED)
    return job


def _ref(caller: Caller, job: CustomObject) -> ObjectRef[CustomObject]:
    return ObjectRef(GANG_JOBS, caller.namespace, job.metadata.name)
