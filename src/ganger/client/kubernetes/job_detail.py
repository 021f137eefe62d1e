"""Details of a GangJob that only the controller knows: attempts, GPU time, estimates, elements.

The controller answers the job's user, and users who may list the jobs of all namespaces. The object of a whole job is
available anyway: if the controller does not answer, the rest is left out, with the reason.
"""

import json
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

from ganger.client.client_errors import ClientError
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.controller_requests import query_controller
from ganger.client.kubernetes.find_job import FoundJob, display_name, find_job
from ganger.client.kubernetes.job_row import in_full, is_rejected
from ganger.client.local.http import query_of
from ganger.model.job import GangState
from ganger.model.views.service_views import Explanation

Record = dict[str, Any]

_OF_THE_OBJECT: Final = ("row", "spec", "directory", "code_hash")
"""Keys of a whole job that its object knows better."""
_ELEMENTS: Final = 2_000
"""Elements of an array that are requested at a time."""


async def detail(caller: Caller, text: str) -> Record:
    """Return a job in full; `unavailable` says why the controller does not answer.

    All of an element comes from the controller. Raises ApiError and ClientError.
    """
    job = await find_job(caller, text)
    if is_rejected(job.gang_job):
        return in_full(job.gang_job)
    try:
        answer = await ask_about(caller, job)
    except ClientError as error:
        if job.index is not None:
            raise
        return in_full(job.gang_job) | {"unavailable": {"code": error.code, "detail": error.detail, "next": error.next}}
    if job.index is not None:
        return answer
    known = in_full(job.gang_job)
    if known["row"]["elements"]:
        known["row"]["elements"] = answer["row"]["elements"]
    known["row"]["metrics"] = answer["row"]["metrics"]  # the object has those of attempts that have ended
    return known | {key: value for key, value in answer.items() if key not in _OF_THE_OBJECT}


async def explanation(caller: Caller, text: str) -> Record:
    """Return the explanation of the controller, or what the object says and why there is no more.

    `startup` is where the time of the newest start went, None while there is nothing of it.
    """
    job = await find_job(caller, text)
    known = in_full(job.gang_job)
    row, startup = known["row"], {"startup": known["startup"]}
    if is_rejected(job.gang_job):
        remedy = f"to give it up: ganger delete {row['id']}"
        sentence = f"{row['sentence']}\n  it is checked again when queues, policy or claims change; {remedy}"
        return asdict(Explanation(job=row["id"], state=row["state"], sentence=sentence)) | startup
    try:
        return await ask_about(caller, job, "/explain") | startup
    except ClientError as error:
        if job.index is not None:
            raise
        sentence = f"{row['sentence']}\n  no more is known: {error.detail.splitlines()[0]}: {error.next}".lstrip()
        return asdict(Explanation(job=row["id"], state=row["state"], sentence=sentence)) | startup


async def unsuccessful_elements(caller: Caller, name: str) -> list[int]:
    """Return the indices of an array's elements that failed or were stopped, ascending. Raises the same errors."""
    array, indices = await find_job(caller, name), list[int]()
    query = {"state": f"{GangState.FAILED},{GangState.STOPPED}", "limit": _ELEMENTS}
    page: Record = {"next": None}
    while True:
        page = await ask_about(caller, array, f"/elements{query_of(query | {'cursor': page['next']})}")
        indices += [element["index"] for element in page["items"]]
        if page["next"] is None:
            return indices


async def ask_about(caller: Caller, job: FoundJob, suffix: str = "") -> Record:
    """Return the controller's response about a job, with the names of its objects. Raises ClientError and ApiError."""
    answer = json.loads(await query_controller(caller, "GET", f"/jobs/{quote(job.gang, safe='')}{suffix}"))
    return with_display_names(answer, caller.namespace)


def with_display_names(answer: Record, namespace: str) -> Record:
    """Return a response of the controller with jobs of the namespace named as users type them."""
    decisions = [
        decision
        for item in answer.get("items", ())
        for decision in (item.get("data") or {}).get("plan", {}).get("decisions", ())
    ]
    for row in (answer.get("row", answer), *answer.get("items", ()), *decisions):
        for key in ("id", "name", "job", "array", "gang"):
            if isinstance(row.get(key), str):
                row[key] = display_name(row[key], namespace)
    return answer
