"""Rows of the table `event` of the log: an event as it is written, and read again. Called by
`engine.eventlog.event_log`, `engine.eventlog.log_retention` and whoever checks a log."""

from typing import Final, TypeGuard

from pydantic import ValidationError

from ganger.engine.eventlog import codec
from ganger.errors import RequestError
from ganger.model.decision import Start, Stop
from ganger.model.event import (
    Decided,
    Event,
    MaintenanceCleared,
    MaintenanceSet,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodePreempted,
    NodeReturned,
    NodeUncordoned,
    PolicySet,
    QueueDeleted,
    QueueSet,
    Stamped,
    Submitted,
)
from ganger.model.job import array_of

WHY_CHARACTERS: Final = 300
LATEST_MS: Final = 7_258_118_400_000
"""The beginning of the year 2200. A row of a later time is damaged: taken, it would lift the time of all rows after it,
and of the server."""


def encoded(event: Event) -> bytes:
    """An event as it is written. Refused if it would be another one when it is read: nothing is written then."""
    try:
        return codec.encode_checked(event)
    except ValueError as error:
        raise RequestError(
            "log_failed", f"{event.kind} cannot be written: {error}", "see `ganger doctor`", 500
        ) from error


def stamped(seq: int, at_ms: object, closes: object, kind: object, data: object) -> Stamped:
    """Read a row of the table `event`. ValueError if it is none."""
    if not isinstance(at_ms, int) or not isinstance(data, bytes | str):
        raise ValueError("the types of its columns are wrong")  # noqa: TRY004 - of a row, not of an argument
    if not is_time(at_ms):
        raise ValueError(f"its time, {at_ms} ms, is before 1970 or after 2199")
    try:
        event = codec.decode(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'data'}: {first['msg']}"[:WHY_CHARACTERS]) from None
    if event.kind != kind:
        raise ValueError(f"it says {event.kind}, and its column says {kind}")
    return Stamped(seq, at_ms, event, bool(closes))


def is_time(at_ms: object) -> TypeGuard[int]:
    """Check that a row may have this time."""
    return isinstance(at_ms, int) and 0 <= at_ms <= LATEST_MS


def about(event: Event) -> list[str]:
    """Return the subjects of an event: gangs, and their arrays, `queue/NAME`, `node/NAME`, `policy/policy`."""
    match event:
        case Submitted(job=job):
            return [job.id]
        case Decided(plan=plan):
            gangs = [decision.gang for decision in plan.decisions if isinstance(decision, Start | Stop)]
            return [subject for gang in gangs for subject in _of_gang(gang)]
        case QueueSet(queue=queue):
            return ["policy/policy", f"queue/{queue.name}"]
        case QueueDeleted(queue=name):
            return ["policy/policy", f"queue/{name}"]
        case PolicySet(document=document):
            return ["policy/policy", *(f"queue/{name}" for name in document.queues)]
        case NodeLost() | NodeReturned() | NodeCordoned() | NodeUncordoned() | NodeDrained() | NodePreempted():
            return [f"node/{event.node}"]
        case MaintenanceSet(id=name, nodes=nodes):
            return [f"maintenance/{name}", *(f"node/{node}" for node in nodes)]
        case MaintenanceCleared(id=name):
            return [f"maintenance/{name}"]
        case _:
            gang = getattr(event, "gang", None)
            return _of_gang(gang) if gang else []


def _of_gang(gang: str) -> list[str]:
    """A gang, and the array it is an element of."""
    element = array_of(gang)
    return [gang, element[0]] if element else [gang]
