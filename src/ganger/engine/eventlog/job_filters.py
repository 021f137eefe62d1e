"""Filters of job listings: the SQL that finds the jobs, and the elements of an array.

A page walks an index downwards from its cursor and stops when it is full: it costs what it shows, however long the
history is. Several states are several such walks, merged by SQLite as they go.

An element has a row of its own once it has a gang; until then it is in the state of its array, and an element that
ended with its array was stopped before it began.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ganger.errors import RequestError
from ganger.model.job import ENDED, GangState
from ganger.model.views.service_views import JobRow

NEWEST: Final = (1 << 62) - 1
"""Above the number of every job."""
_TERM: Final = re.compile(r"\s*(?P<key>[^\s=!,]+)\s*(?P<sign>!=|=)\s*(?P<value>[^\s=!,]*)\s*")
_COLUMNS: Final = "job.state, job.row, job.labels"


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """One condition of a selector: the label has that value; or, not `equal`, has another one or is not there."""

    key: str
    value: str
    equal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are wanted; everything that is set must hold.

    since_ms, until_ms: the job was there at some time between them, so submitted by `until_ms` and not ended before
    `since_ms`, both Unix ms.
    """

    states: tuple[str, ...] = ()
    user: str | None = None
    queue: str | None = None
    name: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    labels: tuple[LabelTerm, ...] = ()

    def of_states(self, states: Sequence[str]) -> "JobFilter":
        """The same, of these states."""
        return replace(self, states=tuple(states))


def label_terms(text: str) -> tuple[LabelTerm, ...]:
    """The terms of a selector: `team=nlp,stage!=prod`. Refused (invalid_request) if it is none."""
    terms = []
    for part in text.split(",") if text.strip() else ():
        found = _TERM.fullmatch(part)
        if not found:
            remedy = "write team=nlp, or team=nlp,stage!=prod"
            raise RequestError("invalid_request", f"labels={text} is no selector", remedy, 422)
        terms.append(LabelTerm(found["key"], found["value"], equal=found["sign"] == "="))
    return tuple(terms)


def page_query(wanted: JobFilter, lowest: int, beyond: int, limit: int) -> tuple[str, list[Any]]:
    """SQL and values of a page, newest first: (number, state, row, labels) of jobs from number `lowest` up to the one
    before `beyond`."""
    walks, values = [], list[Any]()
    for state in dict.fromkeys(wanted.states) or (None,):
        walk, given = _walk(wanted, state, lowest, beyond)
        walks.append(walk)
        values += given
    return f"{' UNION ALL '.join(walks)} ORDER BY 1 DESC LIMIT ?", [*values, limit]


def _walk(wanted: JobFilter, state: str | None, lowest: int, beyond: int) -> tuple[str, list[Any]]:
    """One walk: by a label where one is asked for, else by the index of a column, else by the numbers."""
    terms = sorted(wanted.labels, key=lambda term: not term.equal)
    where, values, source = list[str](), list[Any](), "job"
    if terms and terms[0].equal:
        source = "label CROSS JOIN job ON job.number = label.number"  # CROSS: in this order
        where.append("label.key = ? AND label.value = ? AND label.number >= ? AND label.number < ?")
        values += [terms[0].key, terms[0].value, lowest, beyond]
        terms = terms[1:]
    else:
        where.append("job.number >= ? AND job.number < ?")
        values += [lowest, beyond]
    asked = {"name": wanted.name, "user": wanted.user, "queue": wanted.queue, "state": state}
    given = [column for column, value in asked.items() if value is not None]
    # The walk goes by what is likely to be the rarest; a plus hides the other columns' indexes from SQLite, which has
    # no statistics.
    rarest = "state" if state is not None and state not in ENDED else given[0] if given else None
    for column in given:
        where.append(f"{'' if column == rarest and source == 'job' else '+'}job.{column} = ?")
        values.append(asked[column])
    if wanted.since_ms is not None:
        where.append("coalesce(job.ended_ms, ?) >= ?")
        values += [wanted.since_ms, wanted.since_ms]
    for term in terms:
        found = "EXISTS (SELECT 1 FROM label AS l WHERE l.key = ? AND l.value = ? AND l.number = job.number)"
        where.append(found if term.equal else f"NOT {found}")
        values += [term.key, term.value]
    number = "label.number" if source != "job" else "job.number"
    return f"SELECT {number}, {_COLUMNS} FROM {source} WHERE {' AND '.join(where)}", values  # noqa: S608 - nothing of a caller's is put in


def untouched_element_state(array: JobRow, touched: Mapping[str, int]) -> str:
    """Return the state of the elements of an array that have no row. `touched` counts those that have one, by state."""
    if array.state in ENDED:
        return GangState.STOPPED
    left = (state for state, amount in (array.elements or {}).items() if amount > touched.get(state, 0))
    return next(left, GangState.PENDING)


def untouched_element(array: JobRow, index: int, state: str) -> JobRow:
    """Return the row of an element that has none of its own."""
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


def element_page(
    indices: Sequence[int], after: int, states: Mapping[int, str], default: str, wanted: Sequence[str]
) -> list[int]:
    """Return the indices beyond `after` of the elements in one of the states `wanted`, or of all. `states` has the
    states of elements with a row; the others are in state `default`."""
    beyond = [index for index in indices if index > after]
    return [index for index in beyond if states.get(index, default) in wanted] if wanted else beyond
