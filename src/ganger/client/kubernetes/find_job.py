"""A job of a Kubernetes cluster by the user's name for it: its GangJob, and the element if it is an array.

`sweep-k3x9[7]` is an element of `sweep-k3x9`: it has pods and no object of its own, so its state is in the job
checkpoint of the array's object.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ganger.client.client_errors import NOT_FOUND, REFUSED, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.job_row import read_spec, row, status_of, submitted_name
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.gang_jobs.object_names import gang_of
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.resources import ListOptions
from ganger.model.job import ENDED, GangState, split_element_id

ENDED_STATE: Final = "ended"
"""State of an element that has ended, where it is not recorded how."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job as the user named it.

    Attributes:
        text: the user's name for it.
        gang_job: its object.
        gang: its id, as its pods have it.
        index: the index of an element.
    """

    text: str
    gang_job: CustomObject
    gang: str
    index: int | None

    @property
    def state(self) -> str:
        """Current state."""
        return str(row(self.gang_job)["state"]) if self.index is None else state_of(self.gang_job, self.index)


async def find_job(caller: Caller, text: str) -> FoundJob:
    """Find a job by its name, or its id as messages have it.

    Raises ApiError, and ClientError if the element does not exist.
    """
    text = display_name(text, caller.namespace)
    element = split_element_id(text)
    gang_job = await _get(caller, element[0] if element else text)
    name = gang_job.metadata.name
    text = f"{name}[{element[1]}]" if element else name
    indices = _indices(gang_job)
    if element is not None and element[1] not in indices:
        missing = f"no element {element[1]}" if indices else "no elements: it is not an array"
        raise client_error("no_such_job", f"{element[0]} has {missing}", caller.typed("get", element[0]), NOT_FOUND)
    return FoundJob(text, gang_job, gang_of(text, caller.namespace), element[1] if element else None)


async def _get(caller: Caller, name: str) -> CustomObject:
    """Return the GangJob of that name, or the newest one submitted under it. Raises the same errors."""
    try:
        return await caller.api.get(GANG_JOBS, name, caller.namespace)
    except ApiError as error:
        if not error.missing:
            raise
    newest = newest_of_name(name, await caller.api.list(GANG_JOBS, ListOptions(caller.namespace)))
    if newest is None:
        detail = f"there is no job {name} in namespace {caller.namespace}"
        raise client_error("no_such_job", detail, caller.typed("ls"), NOT_FOUND)
    return newest


def newest_of_name(name: str, gang_jobs: Iterable[CustomObject]) -> CustomObject | None:
    """Return the newest job of that name, or the newest one that was submitted under it."""
    jobs = [job for job in gang_jobs if job.metadata.name == name or submitted_name(job) == name]
    return max(jobs, key=lambda job: (job.metadata.name == name, row(job)["submitted_ms"]), default=None)


def display_name(id: str, namespace: str) -> str:
    """Return the name that the user types in that namespace: `sweep[3]` for `sweep.research[3]`."""
    element = split_element_id(id)
    name = (element[0] if element else id).removesuffix(f".{namespace}")
    return f"{name}[{element[1]}]" if element else name


async def find_job_with_pods(caller: Caller, text: str) -> FoundJob:
    """Find a job that has pods: not an array, but its elements. Raises the same errors."""
    job = await find_job(caller, text)
    if job.index is None and (indices := _indices(job.gang_job)):
        detail = f"{text} is an array: each element has logs and ranks of its own"
        raise client_error("is_array", detail, caller.typed("logs", f"{text}[{indices[-1]}]"), REFUSED)
    return job


async def find_whole_job(caller: Caller, text: str, action: str) -> CustomObject:
    """Return the GangJob for an action on a whole job; action: "stopped". Raises the same errors."""
    job = await find_job(caller, text)
    if job.index is not None:
        detail = f"an element cannot be {action} by itself: its GangJob is the whole array's"
        raise client_error("is_element", detail, caller.typed("get", job.gang_job.metadata.name), REFUSED)
    return job.gang_job


def state_of(array: CustomObject, index: int) -> str:
    """Return the state of an element."""
    array_state: str = row(array)["state"]
    record = status_of(array).get("record")
    if array_state in ENDED or not record:
        return ENDED_STATE if array_state in ENDED else array_state
    try:
        checkpoint = json.loads(record)
        # What is as it begins is left out.
        states = {gang["job"]["index"]: str(gang.get("state", GangState.PENDING)) for gang in checkpoint["gangs"]}
        waiting = (checkpoint.get("array") or {}).get("rest", ())
        return states.get(index) or (GangState.PENDING if index in waiting else ENDED_STATE)
    except (ValueError, KeyError, TypeError):
        return array_state  # of another version: nothing better is known


def _indices(gang_job: CustomObject) -> tuple[int, ...]:
    spec = read_spec(gang_job)
    return spec.array.indices if spec and spec.array else ()
