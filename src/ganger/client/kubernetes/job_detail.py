"""What the controller knows of a GangJob, and the object does not say: attempts, where time went, estimates, elements.

Called by `in_context`. The controller tells it whose job it is, and who may list the jobs of all namespaces. Of a job
as a whole the object is there anyway: where the controller does not answer, the rest is left out, with why.
"""

import json
from typing import Any, Final
from urllib.parse import quote, urlencode

from ganger.client.kubernetes import controller_requests
from ganger.client.kubernetes.caller import REFUSED, Caller, CannotError
from ganger.client.kubernetes.find_job import FoundJob, chosen, named
from ganger.client.kubernetes.job_row import in_full, status_of

Record = dict[str, Any]

_OF_CONTROLLER: Final = ("attempts", "ledger", "checkpoint_step", "progress", "reason", "ends_by_ms")


async def detail(who: Caller, user: str, text: str) -> Record:
    """{row, spec, gpu_seconds}, and what the controller knows besides; `untold` says why it does not tell. Of an
    element it is all from there. Raises ApiError and CannotError."""
    its = await chosen(who, text)
    known = in_full(its.found) | {"gpu_seconds": (status_of(its.found).get("ledger") or {}).get("gpuSeconds")}
    try:
        told = await _told(who, user, its)
    except CannotError as why:
        if its.index is not None:
            raise
        return known | {"untold": why.record}
    if its.index is not None:
        return {"row": told["row"], "spec": told["spec"]} | {key: told[key] for key in _OF_CONTROLLER}
    return known | {key: told[key] for key in _OF_CONTROLLER}


async def explanation(who: Caller, user: str, text: str) -> Record:
    """{row, spec}, and `explanation` as a server of ganger's gives it, or `untold` why not. Raises the same."""
    its = await chosen(who, text)
    try:
        told = await _told(who, user, its, "/explain")
    except CannotError as why:
        if its.index is not None:
            raise
        return in_full(its.found) | {"untold": why.record}
    return in_full(its.found) | {"explanation": told}


async def elements(who: Caller, user: str, text: str, query: Record) -> Record:
    """A page of the elements of an array: {items, next}. Raises the same."""
    its = await chosen(who, text)
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return await _told(who, user, its, f"/elements?{given}")


async def _told(who: Caller, user: str, its: FoundJob, rest: str = "") -> Record:
    """What the controller answers to a question about it, with names as its objects have them. Raises CannotError."""
    target = f"/jobs/{quote(its.gang, safe='')}{rest}"
    answer = await controller_requests.ask(who, user, {"method": "GET", "target": target, "body": None})
    told: Record = json.loads(answer["body"])
    if "code" in told and "detail" in told:
        raise CannotError(told["code"], told["detail"], told["next"], REFUSED)
    for row in (told.get("row", told), *told.get("items", ())):
        for key in ("id", "name", "job", "array"):
            if isinstance(row.get(key), str):
                row[key] = named(row[key], who.namespace)
    return told
