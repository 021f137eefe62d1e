"""What the log shows of the elements of an array, those that nobody has touched too. Called by
`engine.eventlog.event_log`.

An element has a row of its own once it has a gang; until then it is what its array says, and what ended with the array
was stopped before it began.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ganger.model.job import ENDED, GangState
from ganger.model.views.service_views import JobRow


def state_of_untouched(array: JobRow, touched: Mapping[str, int]) -> str:
    """The state of the elements of an array that have no row; `touched`: how many of those that have are in each."""
    if array.state in ENDED:
        return GangState.STOPPED
    left = (state for state, amount in (array.elements or {}).items() if amount > touched.get(state, 0))
    return next(left, GangState.PENDING)


def untouched(array: JobRow, index: int, state: str) -> JobRow:
    """The row of an element that nobody has touched."""
    return replace(
        array,
        id=f"{array.id}[{index}]",
        state=state,
        started_ms=None,
        exit_code=None,
        sentence="stopped before it began" if state == GangState.STOPPED else "",
        elements=None,
        array=array.id,
        index=index,
    )


def page(
    indices: Sequence[int], after: int, states: Mapping[int, str], default: str, wanted: Sequence[str]
) -> list[int]:
    """The indices beyond `after` of the elements in one of the states `wanted`, or all; `states`: of those with a row,
    `default`: of the others."""
    beyond = [index for index in indices if index > after]
    return [index for index in beyond if states.get(index, default) in wanted] if wanted else beyond
