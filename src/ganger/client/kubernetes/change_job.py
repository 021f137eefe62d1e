"""Changes of a live GangJob: suspend, resume, priority and stop.

Requests are fields of the object's spec, which a controller reads; the client waits for a moment until one has, and
says if none has.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ganger.backends.kubernetes.custom_resources import GANG_JOBS
from ganger.client.kubernetes.caller import REFUSED, Caller, CannotError
from ganger.client.kubernetes.find_job import find_whole_job
from ganger.client.kubernetes.job_row import OVER, in_full, row, spec_of, status_of
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.request import ObjectRef

Record = dict[str, Any]

HANDLED_TIMEOUT_S: Final = 5.0
HANDLED_POLL_S: Final = 0.2
ENDED_POLL_S: Final = 1.0
SUSPENDED: Final = ("suspending", "suspended")


async def stop(caller: Caller, name: str) -> Record:
    """Stop a job; return its row. Raises ApiError and CannotError."""
    await _live_job(caller, name, "stopped")
    return row(await caller.api.merge(_ref(caller, name), {"spec": {"stop": True}}))


async def suspend(caller: Caller, name: str) -> Record:
    """Have a job release its nodes and wait; return {row, handled}. Raises ApiError and CannotError."""
    job = await _live_job(caller, name, "suspended")
    state = _state(job)
    if state in SUSPENDED:
        raise CannotError("already_suspended", f"{name} is {state} already", caller.typed("resume", name), REFUSED)
    return await _set_suspended(caller, job, suspended=True)


async def resume(caller: Caller, name: str) -> Record:
    """Put a suspended job back into the queue; return {row, handled}. Raises ApiError and CannotError."""
    job = await _live_job(caller, name, "resumed")
    state = _state(job)
    if state not in SUSPENDED:
        next_step = (
            caller.typed("explain", name) if state in ("pending", "unread") else caller.typed("logs", name, "-f")
        )
        raise CannotError("not_suspended", f"{name} is not suspended: it is {state}", next_step, REFUSED)
    return await _set_suspended(caller, job, suspended=False)


async def prioritise(caller: Caller, name: str, priority: int) -> Record:
    """Change a job's priority; return {row, handled, before}. Raises ApiError and CannotError."""
    before = row(await _live_job(caller, name, "given another priority"))["priority"]
    job = await caller.api.merge(_ref(caller, name), {"spec": {"priority": priority}})
    return await _wait_until_handled(caller, job, lambda _: True) | {"before": before}


async def wait_until_ended(caller: Caller, name: str, timeout_s: float | None) -> Record | None:
    """Return the job in full once it has ended; None if it has not within the time. Raises ApiError."""
    loop = asyncio.get_running_loop()
    until_s = None if timeout_s is None else loop.time() + timeout_s
    while True:
        job = await find_whole_job(caller, name, "waited for")
        if row(job)["state"] in OVER:
            return in_full(job)
        if until_s is not None and loop.time() >= until_s:
            return None
        await asyncio.sleep(ENDED_POLL_S if until_s is None else min(ENDED_POLL_S, max(0.0, until_s - loop.time())))


async def _set_suspended(caller: Caller, job: CustomObject, *, suspended: bool) -> Record:
    ref = _ref(caller, job.metadata.name)
    if bool(spec_of(job).get("suspend")) is suspended:
        # It was changed since through the controller: only a change of the object counts as a request.
        await caller.api.merge(ref, {"spec": {"suspend": not suspended}})
    changed = await caller.api.merge(ref, {"spec": {"suspend": suspended}})
    return await _wait_until_handled(caller, changed, lambda state: (state in SUSPENDED) is suspended)


async def _wait_until_handled(caller: Caller, job: CustomObject, is_expected: Callable[[str], bool]) -> Record:
    """Return {row, handled} once a controller has handled the change."""
    loop, name, generation = asyncio.get_running_loop(), job.metadata.name, job.metadata.generation
    until_s = loop.time() + HANDLED_TIMEOUT_S
    while True:
        is_handled = status_of(job).get("observedGeneration", 0) >= generation and is_expected(row(job)["state"])
        if is_handled or loop.time() >= until_s:
            return {"row": row(job), "handled": is_handled}
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
    state = row(job)["state"]
    if state in OVER:
        raise CannotError("already_ended", f"{name} has ended already: {state}", caller.typed("explain", name), REFUSED)
    return job


def _ref(caller: Caller, name: str) -> ObjectRef[CustomObject]:
    return ObjectRef(GANG_JOBS, caller.namespace, name)
