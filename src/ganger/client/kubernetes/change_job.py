"""What a person wants of a GangJob that lives: to be suspended, to go on, to have another priority, to end.

Called by `in_context`. Wishes are fields of the object's spec, which a controller reads: so it is waited for a moment
until one has, and said if none has.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ganger.backends.kubernetes.custom_resources import GANG_JOBS
from ganger.client.kubernetes.caller import REFUSED, Caller, CannotError
from ganger.client.kubernetes.find_job import whole
from ganger.client.kubernetes.job_row import OVER, in_full, row, spec_of, status_of
from ganger.kubeapi.objects import Custom
from ganger.kubeapi.request import Place

Record = dict[str, Any]

HEARD_WITHIN_S: Final = 5.0
HEARD_EVERY_S: Final = 0.2
ENDED_EVERY_S: Final = 1.0
SUSPENDED: Final = ("suspending", "suspended")


async def stop(who: Caller, name: str) -> Record:
    """Have it end; gives its row. Raises ApiError and CannotError."""
    await _living(who, name, "stopped")
    return row(await who.api.merge(_place(who, name), {"spec": {"stop": True}}))


async def suspend(who: Caller, name: str) -> Record:
    """Have it give its nodes back and wait; {row, heard}. Raises ApiError and CannotError."""
    found = await _living(who, name, "suspended")
    state = _state(found)
    if state in SUSPENDED:
        raise CannotError("already_suspended", f"{name} is {state} already", who.typed("resume", name), REFUSED)
    return await _hold(who, found, suspended=True)


async def resume(who: Caller, name: str) -> Record:
    """Have it wait for its turn again; {row, heard}. Raises ApiError and CannotError."""
    found = await _living(who, name, "resumed")
    state = _state(found)
    if state not in SUSPENDED:
        next_ = who.typed("explain", name) if state in ("pending", "unread") else who.typed("logs", name, "-f")
        raise CannotError("not_suspended", f"{name} is not suspended: it is {state}", next_, REFUSED)
    return await _hold(who, found, suspended=False)


async def prioritise(who: Caller, name: str, priority: int) -> Record:
    """Put it into another place of the queue; {row, heard, before}. Raises ApiError and CannotError."""
    before = row(await _living(who, name, "put into another place"))["priority"]
    now = await who.api.merge(_place(who, name), {"spec": {"priority": priority}})
    return await _heard(who, now, lambda _: True) | {"before": before}


async def ended(who: Caller, name: str, timeout_s: float | None) -> Record | None:
    """The job in full once it has ended; None when it has not within the time. Raises ApiError."""
    loop = asyncio.get_running_loop()
    until_s = None if timeout_s is None else loop.time() + timeout_s
    while True:
        found = await whole(who, name, "waited for")
        if row(found)["state"] in OVER:
            return in_full(found)
        if until_s is not None and loop.time() >= until_s:
            return None
        await asyncio.sleep(ENDED_EVERY_S if until_s is None else min(ENDED_EVERY_S, max(0.0, until_s - loop.time())))


async def _hold(who: Caller, found: Custom, *, suspended: bool) -> Record:
    place = _place(who, found.metadata.name)
    if bool(spec_of(found).get("suspend")) is suspended:
        # It was changed since by way of the controller itself: only a change of the object is a wish.
        await who.api.merge(place, {"spec": {"suspend": not suspended}})
    now = await who.api.merge(place, {"spec": {"suspend": suspended}})
    return await _heard(who, now, lambda state: (state in SUSPENDED) is suspended)


async def _heard(who: Caller, now: Custom, fits: Callable[[str], bool]) -> Record:
    """The row as it is when a controller has heard of the change; {row, heard}."""
    loop, name, asked = asyncio.get_running_loop(), now.metadata.name, now.metadata.generation
    until_s = loop.time() + HEARD_WITHIN_S
    while True:
        heard = status_of(now).get("observedGeneration", 0) >= asked and fits(row(now)["state"])
        if heard or loop.time() >= until_s:
            return {"row": row(now), "heard": heard}
        await asyncio.sleep(HEARD_EVERY_S)
        now = await who.api.get(GANG_JOBS, name, who.namespace)


def _state(found: Custom) -> str:
    """How it is, with a wish counted that no controller has heard yet."""
    state: str = row(found)["state"]
    if status_of(found).get("observedGeneration", 0) < found.metadata.generation:
        if spec_of(found).get("suspend") and state not in SUSPENDED:
            return SUSPENDED[0]
        if spec_of(found).get("suspend") is False and state in SUSPENDED:
            return "pending"
    return state


async def _living(who: Caller, name: str, does: str) -> Custom:
    found = await whole(who, name, does)
    state = row(found)["state"]
    if state in OVER:
        raise CannotError("already_ended", f"{name} has ended already: {state}", who.typed("explain", name), REFUSED)
    return found


def _place(who: Caller, name: str) -> Place[Custom]:
    return Place(GANG_JOBS, who.namespace, name)
