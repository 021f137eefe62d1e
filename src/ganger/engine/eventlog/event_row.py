"""Rows of the table `event` of the log: encode an event for writing, and decode a row."""

from typing import Final, TypeGuard

from pydantic import ValidationError

from ganger.engine.eventlog import codec
from ganger.errors import RequestError
from ganger.model.decision import Plan, SpareNodes, Start, Stop
from ganger.model.event import (
    Decided,
    DefragRequested,
    Event,
    MaintenanceCleared,
    MaintenanceSet,
    NodeChanged,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodePreempted,
    NodeReturned,
    NodesListed,
    NodeUncordoned,
    PolicySet,
    QueueDeleted,
    QueueSet,
    ServerStarted,
    Stamped,
    Submitted,
    Unreadable,
)
from ganger.model.job import split_element_id
from ganger.model.node_health import health_event as h
from ganger.model.node_health.health_decision import ActOnNode
from ganger.model.queue import Queue

MAX_REASON_CHARACTERS: Final = 300
LATEST_MS: Final = 7_258_118_400_000
"""The beginning of the year 2200.

A row of a later time is damaged: accepted, it would move the time of all later rows, and of the server.
"""


def encode(event: Event) -> bytes:
    """Return an event as it is written. Raise RequestError if it would read back differently."""
    try:
        return codec.encode_checked(event)
    except ValueError as error:
        raise RequestError(
            "log_failed", f"{event.kind} cannot be written: {error}", "see `ganger doctor`", 500
        ) from error


def stamped(seq: int, at_ms: object, closes: object, kind: object, data: object) -> Stamped:
    """Decode a row of the table `event`. Raise ValueError if it is not one."""
    if not isinstance(at_ms, int) or not isinstance(data, bytes | str):
        raise ValueError("its columns have the wrong types")  # noqa: TRY004 - of a row, not of an argument
    if not is_time(at_ms):
        raise ValueError(f"its time, {at_ms} ms, is before 1970 or after 2199")
    try:
        event = codec.decode(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(
            f"{'.'.join(map(str, first['loc'])) or 'data'}: {first['msg']}"[:MAX_REASON_CHARACTERS]
        ) from None
    if event.kind != kind:
        raise ValueError(f"it says {event.kind}, and its column says {kind}")
    return Stamped(seq, at_ms, event, bool(closes))


def is_time(at_ms: object) -> TypeGuard[int]:
    """Return whether a row may have this time."""
    return isinstance(at_ms, int) and 0 <= at_ms <= LATEST_MS


def subjects(event: Event) -> list[str]:
    """Return the subjects of an event: gangs, and their arrays, `queue/NAME`, `node/NAME`, `policy/policy`."""
    match event:
        case Submitted(job=job):
            return [job.id]
        case Decided(plan=plan):
            return _decided_subjects(plan)
        case h.NodeFaulty() | h.NodesMeasured():
            return _measured_subjects(event)
        case QueueSet(queue=Queue(name=name)) | QueueDeleted(queue=str(name)):
            return ["policy/policy", f"queue/{name}"]
        case PolicySet(document=document):
            return ["policy/policy", *(f"queue/{name}" for name in document.queues)]
        case NodeChanged(listed=node):
            return [f"node/{node.name}"]
        case (
            NodeLost()
            | NodeReturned()
            | NodeCordoned()
            | NodeUncordoned()
            | NodeDrained()
            | NodePreempted()
            | h.RepairEnded()
            | h.RepairRequested()
            | h.NodeReturnRequested()
            | h.NodeRetired()
        ):
            return [f"node/{event.node}"]
        case MaintenanceSet(id=name, nodes=nodes):
            return [f"maintenance/{name}", *(f"node/{node}" for node in nodes)]
        case MaintenanceCleared(id=name):
            return [f"maintenance/{name}"]
        case DefragRequested(moves=moves, gang=gang):
            return _subjects_of_gangs([*(move.gang for move in moves), *([gang] if gang else [])])
        case ServerStarted() | NodesListed() | Unreadable() | h.BreakerReset():
            return []
        case _:
            return _gang_subjects(event.gang)


def _measured_subjects(event: h.NodeFaulty | h.NodesMeasured) -> list[str]:
    """Return the node with a fault, or the job that tested nodes, and these."""
    if isinstance(event, h.NodeFaulty):
        return [f"node/{event.fault.node}"]
    return [*_gang_subjects(event.gang), *(f"node/{one.node}" for one in event.measurements)]


def _decided_subjects(plan: Plan) -> list[str]:
    """Return the gangs that start, stop or get spares, and the nodes whose health changes."""
    gangs = [decision.gang for decision in plan.decisions if isinstance(decision, Start | Stop | SpareNodes)]
    nodes = [decision.node for decision in plan.decisions if isinstance(decision, ActOnNode)]
    return [*_subjects_of_gangs(gangs), *map("node/{}".format, nodes)]


def _subjects_of_gangs(gangs: list[str]) -> list[str]:
    return [subject for gang in gangs for subject in _gang_subjects(gang)]


def _gang_subjects(gang: str) -> list[str]:
    """Return a gang, and the array it is an element of."""
    element = split_element_id(gang)
    return [gang, element[0]] if element else [gang]
