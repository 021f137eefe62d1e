"""The formats of spot nodes that clouds granted and reclaimed (uclasystem/bamboo), neither with a header.

`ms,add|remove,node` names the node; `date, time, count` is the number held from then on, in an unknown time zone (it is
read as UTC, so that only differences mean something). Adding a node that is held, or removing one that is not,
contradicts the rows before, and is dropped.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.record_checks import no_check
from ganger.simulation.traces.trace import Flaw, SpotCapacity, SpotChange
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import BadRow, Row

_ACTIONS: Final = {"add": True, "remove": False}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}")


def change(row: Row) -> SpotChange:
    """Return the change of a row."""
    action = row.required("action")
    if action not in _ACTIONS:
        raise BadRow(Flaw.NOT_LEGAL, f"{action[:40]!r} is neither add nor remove")
    at_ms, node = row.rounded("at", 1), row.required("node")
    return SpotChange(at_ms=at_ms, node=node, is_up=_ACTIONS[action], line=row.line)


def capacity(row: Row) -> SpotCapacity:
    """Return the number of nodes of a row."""
    date, time = row.required("date"), row.required("time")
    try:
        if not _DATE.fullmatch(date) or not _TIME.fullmatch(time):
            raise ValueError
        utc_time = datetime.fromisoformat(f"{date}T{time}+00:00")
    except ValueError:
        raise BadRow(Flaw.NOT_LEGAL, f"{date[:20]!r} {time[:20]!r} is not a date and time") from None
    at_ms = int(utc_time.timestamp()) * SECOND_MS
    return SpotCapacity(at_ms=at_ms, nodes=row.integer("nodes"), line=row.line)


def _new_change_check() -> Callable[[SpotChange], tuple[Flaw, str] | None]:
    up: set[str] = set()

    def check(change: SpotChange) -> tuple[Flaw, str] | None:
        if change.is_up == (change.node in up):
            return Flaw.CONTRADICTION, f"{change.node} is {'already' if change.is_up else 'not'} there"
        (up.add if change.is_up else up.remove)(change.node)
        return None

    return check


def _has_action(fields: Sequence[str]) -> bool:
    return fields[1].strip() in _ACTIONS


def _has_date(fields: Sequence[str]) -> bool:
    return bool(_DATE.fullmatch(fields[0].strip()))


CHANGES: Final = Format(
    name="spot_changes",
    doc="spot nodes that come and go, in ms",
    columns=({"at": "at_ms", "action": "action", "node": "node"},),
    record=change,
    new_check=_new_change_check,
    time_of=lambda change: change.at_ms,
    positions=(("at_ms", "action", "node"),),
    matches=_has_action,
)
CAPACITY: Final = Format(
    name="spot_capacity",
    doc="how many spot nodes are held, by date and time",
    columns=({"date": "date", "time": "time", "nodes": "nodes"},),
    record=capacity,
    new_check=no_check,
    time_of=lambda capacity: capacity.at_ms,
    positions=(("date", "time", "nodes"),),
    matches=_has_date,
)
