"""Details of a GangJob that only the controller knows: attempts, GPU time, estimates, elements.

The controller answers the job's user, and users who may list the jobs of all namespaces. The object of a whole job is
available anyway: if the controller does not answer, the rest is left out, with the reason.
"""

import json
from typing import Any, Final
from urllib.parse import quote, urlencode

from ganger.client.kubernetes import controller_requests
from ganger.client.kubernetes.caller import REFUSED, Caller, CannotError
from ganger.client.kubernetes.find_job import FoundJob, display_name, find_job
from ganger.client.kubernetes.job_row import in_full, status_of

Record = dict[str, Any]

_CONTROLLER_KEYS: Final = ("attempts", "ledger", "checkpoint_step", "progress", "reason", "ends_by_ms")


async def detail(caller: Caller, user: str, text: str) -> Record:
    """Return {row, spec, gpu_seconds} and what the controller knows; `unavailable` says why it does not answer.

    All of an element comes from the controller. Raises ApiError and CannotError.
    """
    job = await find_job(caller, text)
    ledger = status_of(job.gang_job).get("ledger") or {}
    known = in_full(job.gang_job) | {"gpu_seconds": ledger.get("gpuSeconds")}
    try:
        answer = await _query(caller, user, job)
    except CannotError as error:
        if job.index is not None:
            raise
        return known | {"unavailable": error.record}
    if job.index is not None:
        known = {"row": answer["row"], "spec": answer["spec"]}
    return known | {key: answer[key] for key in _CONTROLLER_KEYS}


async def explanation(caller: Caller, user: str, text: str) -> Record:
    """Return {row, spec} with `explanation`, or `unavailable` with the reason why not. Raises the same errors."""
    job = await find_job(caller, text)
    try:
        answer = await _query(caller, user, job, "/explain")
    except CannotError as error:
        if job.index is not None:
            raise
        return in_full(job.gang_job) | {"unavailable": error.record}
    return in_full(job.gang_job) | {"explanation": answer}


async def elements(caller: Caller, user: str, text: str, query: Record) -> Record:
    """Return a page of the elements of an array: {items, next}. Raises the same errors."""
    job = await find_job(caller, text)
    parameters = urlencode({name: value for name, value in query.items() if value is not None})
    return await _query(caller, user, job, f"/elements?{parameters}")


async def _query(caller: Caller, user: str, job: FoundJob, suffix: str = "") -> Record:
    """Return the controller's response about a job, with the names of its objects. Raises CannotError."""
    target = f"/jobs/{quote(job.gang, safe='')}{suffix}"
    query = {"method": "GET", "target": target, "body": None}
    response = await controller_requests.query_controller(caller, user, query)
    answer: Record = json.loads(response["body"])
    if "code" in answer and "detail" in answer:
        raise CannotError(answer["code"], answer["detail"], answer["next"], REFUSED)
    for row in (answer.get("row", answer), *answer.get("items", ())):
        for key in ("id", "name", "job", "array"):
            if isinstance(row.get(key), str):
                row[key] = display_name(row[key], caller.namespace)
    return answer
