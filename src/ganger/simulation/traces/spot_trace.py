"""Spot nodes as clouds gave them and took them back (uclasystem/bamboo): two forms, neither with a header.

`ms,add|remove,node` names the node; `date, time, count` says how many were held from then on, by a clock whose zone
nobody knows (it is read as UTC, so that only differences mean something). Adding a node that is there, or removing one
that is not, contradicts what came before, and is dropped.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.record_checks import nothing
from ganger.simulation.traces.trace import Flaw, SpotCapacity, SpotChange
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Broken, Row

_ACTIONS: Final = {"add": True, "remove": False}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}")


def change(row: Row) -> SpotChange:
    """One node that comes or goes."""
    action = row.needed("action")
    if action not in _ACTIONS:
        raise Broken(Flaw.NOT_LEGAL, f"{action[:40]!r} is neither add nor remove")
    at_ms, node = row.rounded("at", 1), row.needed("node")
    return SpotChange(at_ms=at_ms, node=node, is_up=_ACTIONS[action], line=row.line)


def capacity(row: Row) -> SpotCapacity:
    """One count."""
    date, time = row.needed("date"), row.needed("time")
    try:
        if not _DATE.fullmatch(date) or not _TIME.fullmatch(time):
            raise ValueError
        at = datetime.fromisoformat(f"{date}T{time}+00:00")
    except ValueError:
        raise Broken(Flaw.NOT_LEGAL, f"{date[:20]!r} {time[:20]!r} is no moment") from None
    at_ms = int(at.timestamp()) * SECOND_MS
    return SpotCapacity(at_ms=at_ms, nodes=row.whole("nodes"), line=row.line)


def _each_change() -> Callable[[SpotChange], tuple[Flaw, str] | None]:
    up: set[str] = set()

    def look(change: SpotChange) -> tuple[Flaw, str] | None:
        if change.is_up == (change.node in up):
            return Flaw.CONTRADICTION, f"{change.node} is {'already' if change.is_up else 'not'} there"
        (up.add if change.is_up else up.remove)(change.node)
        return None

    return look


def _acts(fields: Sequence[str]) -> bool:
    return fields[1].strip() in _ACTIONS


def _counts(fields: Sequence[str]) -> bool:
    return bool(_DATE.fullmatch(fields[0].strip()))


CHANGES: Final = Format(
    name="spot_changes",
    doc="spot nodes that come and go, in ms",
    columns=({"at": "at_ms", "action": "action", "node": "node"},),
    record=change,
    watch=_each_change,
    at_ms=lambda change: change.at_ms,
    positions=(("at_ms", "action", "node"),),
    looks=_acts,
)
CAPACITY: Final = Format(
    name="spot_capacity",
    doc="how many spot nodes are held, by date and time",
    columns=({"date": "date", "time": "time", "nodes": "nodes"},),
    record=capacity,
    watch=nothing,
    at_ms=lambda capacity: capacity.at_ms,
    positions=(("date", "time", "nodes"),),
    looks=_counts,
)
