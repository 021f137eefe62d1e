"""A job of a Kubernetes cluster by what a person calls it: its GangJob, and which element of it if it is an array.

Called by `in_context` and the modules that answer its requests. `sweep-k3x9[7]` is an element of `sweep-k3x9`: it has
pods and no object of its own, so how it is stands in what the array's object keeps for the next controller.
"""

from dataclasses import dataclass
from typing import Final

from ganger.backends.kubernetes.custom_resources import GANG_JOBS
from ganger.backends.kubernetes.object_names import gang_of, id_of
from ganger.client.kubernetes.caller import NOT_FOUND, REFUSED, Caller, CannotError
from ganger.client.kubernetes.job_row import OVER, in_full, row, status_of
from ganger.engine.eventlog import job_checkpoint
from ganger.kubeapi.objects import Custom
from ganger.model.job import array_of

ENDED: Final = "ended"
"""The state of an element that has ended, where nobody says how."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    """text: what it was called; gang: its id, as its pods have it; index: of an element."""

    text: str
    found: Custom
    gang: str
    index: int | None

    @property
    def state(self) -> str:
        """How it is now."""
        return str(row(self.found)["state"]) if self.index is None else state_of(self.found, self.index)


async def chosen(who: Caller, text: str) -> FoundJob:
    """text: its name, or its id as sentences have it. Raises ApiError, and CannotError where there is no such
    element."""
    text = named(text, who.namespace)
    element = array_of(text)
    found = await who.api.get(GANG_JOBS, element[0] if element else text, who.namespace)
    indices = _indices(found)
    if element is not None and element[1] not in indices:
        what = f"no element {element[1]}" if indices else "no elements: it is no array"
        raise CannotError("no_such_job", f"{element[0]} has {what}", who.typed("get", element[0]), NOT_FOUND)
    return FoundJob(text, found, gang_of(text, who.namespace), element[1] if element else None)


def named(id: str, namespace: str) -> str:
    """How a person calls it there: `sweep[3]`, which is `sweep.research[3]` everywhere."""
    element = array_of(id)
    name = (element[0] if element else id).removesuffix(f".{namespace}")
    return f"{name}[{element[1]}]" if element else name


async def with_pods(who: Caller, text: str) -> FoundJob:
    """The same of what has pods: no array, but its elements. Raises the same."""
    its = await chosen(who, text)
    if its.index is None and (indices := _indices(its.found)):
        why = f"{text} is an array: each element has logs and ranks of its own"
        raise CannotError("is_array", why, who.typed("logs", f"{text}[{indices[-1]}]"), REFUSED)
    return its


async def whole(who: Caller, text: str, does: str) -> Custom:
    """The GangJob of what is asked of a job as a whole; does: "stopped". Raises the same."""
    its = await chosen(who, text)
    if its.index is not None:
        why = f"an element cannot be {does} by itself: its GangJob is the whole array's"
        array = its.found.metadata.name
        raise CannotError("is_element", why, who.typed("get", array), REFUSED)
    return its.found


def state_of(array: Custom, index: int) -> str:
    """How an element is."""
    whole: str = row(array)["state"]
    record = status_of(array).get("record")
    if whole in OVER or not record:
        return ENDED if whole in OVER else whole
    try:
        piece = job_checkpoint.decode(record, id_of(array.metadata.key))
    except ValueError:
        return whole  # of another version: nothing better is known
    own = next((gang for gang in piece.gangs if gang.job.index == index), None)
    if own is not None:
        return str(own.state)
    return "pending" if piece.array is not None and index in piece.array.rest else ENDED


def _indices(found: Custom) -> tuple[int, ...]:
    spec = in_full(found)["spec"]
    return tuple(spec["array"]["indices"]) if spec and spec["array"] else ()
