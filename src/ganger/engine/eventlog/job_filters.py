"""Filters of job listings (`ports.JobFilter`): the SQL that finds the jobs, and the elements of an array.

A page walks an index downwards from its cursor and stops when it is full: its cost is that of the rows it shows,
however long the history is. Several states are several such walks, merged by SQLite as they go.

An element has a row of its own once it has a gang; until then it is in the state of its array, and an element that
ended with its array was stopped before it started.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ganger.model.job import ENDED, GangState
from ganger.model.views.service_views import JobRow
from ganger.ports import JobFilter

Read = Callable[[str, tuple[Any, ...]], list[Any]]
"""Return the rows of a query."""

NEWEST: Final = (1 << 62) - 1
"""Above the number of every job."""
_COLUMNS: Final = "job.state, job.row, job.labels"


def number_range(read: Read, job_filter: JobFilter) -> tuple[int, int]:
    """Return the range of numbers of the jobs in the time range of a filter, the end not included."""
    lowest, beyond = 0, NEWEST
    if job_filter.since_ms is not None:
        firsts = read(
            "SELECT * FROM (SELECT number FROM job WHERE ended_ms IS NULL ORDER BY number LIMIT 1)"
            # The plus keeps SQLite from walking up the index of numbers until it meets a match.
            " UNION ALL SELECT min(+number) FROM job WHERE ended_ms >= ?",
            (job_filter.since_ms,),
        )
        lowest = min((number for (number,) in firsts if number is not None), default=NEWEST)
    if job_filter.until_ms is not None:
        last = read(
            "SELECT number FROM job WHERE submitted_ms <= ? ORDER BY submitted_ms DESC, number DESC LIMIT 1",
            (job_filter.until_ms,),
        )
        beyond = last[0][0] + 1 if last else 0
    return lowest, beyond


def page_query(job_filter: JobFilter, lowest: int, beyond: int, limit: int) -> tuple[str, list[Any]]:
    """Return the SQL and values of a page, newest first: rows of (number, state, row, labels).

    lowest, beyond: jobs from number `lowest` up to the one before `beyond`.
    """
    walks, values = [], list[Any]()
    for state in dict.fromkeys(job_filter.states) or (None,):
        walk, walk_values = _walk(job_filter, state, lowest, beyond)
        walks.append(walk)
        values += walk_values
    return f"{' UNION ALL '.join(walks)} ORDER BY 1 DESC LIMIT ?", [*values, limit]


def _walk(job_filter: JobFilter, state: str | None, lowest: int, beyond: int) -> tuple[str, list[Any]]:
    """Return one walk: by a label where the filter has one, else by the index of a column, else by the numbers."""
    terms = sorted(job_filter.labels, key=lambda term: not term.equal)
    where, values, source = list[str](), list[Any](), "job"
    if terms and terms[0].equal:
        source = "label CROSS JOIN job ON job.number = label.number"  # CROSS: in this order
        where.append("label.key = ? AND label.value = ? AND label.number >= ? AND label.number < ?")
        values += [terms[0].key, terms[0].value, lowest, beyond]
        terms = terms[1:]
    else:
        where.append("job.number >= ? AND job.number < ?")
        values += [lowest, beyond]
    columns = {"name": job_filter.name, "user": job_filter.user, "queue": job_filter.queue, "state": state}
    used_columns = [column for column, value in columns.items() if value is not None]
    # The walk uses the index of the column that is likely to be the rarest; a plus hides the other columns' indexes
    # from SQLite, which has no statistics.
    rarest = "state" if state is not None and state not in ENDED else used_columns[0] if used_columns else None
    for column in used_columns:
        where.append(f"{'' if column == rarest and source == 'job' else '+'}job.{column} = ?")
        values.append(columns[column])
    if job_filter.since_ms is not None:
        where.append("coalesce(job.ended_ms, ?) >= ?")
        values += [job_filter.since_ms, job_filter.since_ms]
    for term in terms:
        exists = "EXISTS (SELECT 1 FROM label AS l WHERE l.key = ? AND l.value = ? AND l.number = job.number)"
        where.append(exists if term.equal else f"NOT {exists}")
        values += [term.key, term.value]
    number = "label.number" if source != "job" else "job.number"
    return f"SELECT {number}, {_COLUMNS} FROM {source} WHERE {' AND '.join(where)}", values  # noqa: S608 - no user input is inserted


def untouched_element_state(array: JobRow, touched: Mapping[str, int]) -> str:
    """Return the state of the elements of an array that have no row. `touched` counts those that have one, by state."""
    if array.state in ENDED:
        return GangState.STOPPED
    remaining = (state for state, amount in (array.elements or {}).items() if amount > touched.get(state, 0))
    return next(remaining, GangState.PENDING)


def untouched_element(array: JobRow, index: int, state: str) -> JobRow:
    """Return the row of an element that has none of its own."""
    return replace(
        array,
        id=f"{array.id}[{index}]",
        state=state,
        started_ms=None,
        exit_code=None,
        sentence="stopped before it started" if state == GangState.STOPPED else "",
        elements=None,
        array=array.id,
        index=index,
    )


def element_page(
    indices: Sequence[int], after: int, states: Mapping[int, str], default: str, wanted_states: Sequence[str]
) -> list[int]:
    """Return the indices beyond `after` of the elements in one of the states `wanted`, or of all.

    states: states of the elements with a row; the others are in state `default`.
    """
    beyond = [index for index in indices if index > after]
    return [index for index in beyond if states.get(index, default) in wanted_states] if wanted_states else beyond
