"""The format of node faults: `node`, `start_day`, `end_day` (days, with a fraction), `level`, `class`, `desc`.

The columns of `node_faults_348d.csv`, made of stepfun-ai/InfiniteHBD-Trace. A fault that begins before the
previous one of its node has ended is kept and counted: the node is down while any of them lasts. One of the level
`note` takes no node away: it is reported as checks report a fault that calls for nothing.
"""

from collections.abc import Callable
from typing import Final

from ganger.model.units import DAY_MS
from ganger.simulation.traces.trace import Flaw, NodeFault
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import BadRow, Row


def fault(row: Row) -> NodeFault:
    """Return the fault of a row."""
    start_ms, end_ms = row.rounded("start", DAY_MS), row.rounded("end", DAY_MS)
    if end_ms < start_ms:
        raise BadRow(Flaw.CONTRADICTION, f"ends at {end_ms} ms, before it begins at {start_ms} ms")
    return NodeFault(
        node=row.required("node"),
        start_ms=start_ms,
        end_ms=end_ms,
        level=row.text("level"),
        category=row.text("category"),
        detail=row.text("detail"),
        line=row.line,
    )


def _new_fault_check() -> Callable[[NodeFault], tuple[Flaw, str] | None]:
    down_until_ms: dict[str, int] = {}

    def check(fault: NodeFault) -> tuple[Flaw, str] | None:
        before_ms = down_until_ms.get(fault.node, 0)
        down_until_ms[fault.node] = max(before_ms, fault.end_ms)
        return (Flaw.OVERLAP, f"node {fault.node} is down until {before_ms} ms") if fault.start_ms < before_ms else None

    return check


FORMAT: Final = Format(
    name="node_faults",
    doc="node faults, in days",
    columns=(
        {
            "node": "node",
            "start": "start_day",
            "end": "end_day",
            "level": "level",
            "category": "class",
            "detail": "desc",
        },
    ),
    record=fault,
    new_check=_new_fault_check,
    time_of=lambda fault: fault.start_ms,
)
