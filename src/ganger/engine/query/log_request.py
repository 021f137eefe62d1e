"""Whether there can be anything of what a reader of logs asks for. Called by `engine.service` before a line is read.

What is not there is told at once, not shown as an empty log.
"""

from collections.abc import Collection

from ganger.errors import RequestError
from ganger.model.job import ENDED, JobSpec, typed
from ganger.model.views.service_views import JobRow
from ganger.patterns import PatternError, pattern
from ganger.ports import LogQuery


def see_there(query: LogQuery, row: JobRow, spec: JobSpec, nodes: Collection[str], *, may_come: bool) -> None:
    """Refused (no_such_attempt, no_such_rank, no_such_role, no_such_node; 404) when the job never had them, of the
    cluster's `nodes`; an attempt to come only counts if it `may_come`. Refused (bad_pattern, 409)."""
    see_attempt(query.generation or query.first or row.generation, row, may_come=may_come)
    last = spec.processes - 1
    missing = [rank for rank in query.ranks or () if rank > last]
    if missing:
        has = f"ranks 0 to {last}" if last else "rank 0 alone"
        remedy = f"ganger logs {typed(row.id)} --rank all"
        raise RequestError("no_such_rank", f"{row.id} has {has}, and no rank {missing[0]}", remedy, 404)
    if query.role is not None and query.role not in spec.order:
        has = " and ".join(spec.order)
        remedy = f"ganger logs {typed(row.id)} --role {spec.order[0]}"
        raise RequestError("no_such_role", f"{row.id} has the roles {has}, and no role {query.role}", remedy, 404)
    if query.node is not None and query.node not in (*nodes, *row.nodes):
        raise RequestError("no_such_node", f"there is no node {query.node}", "ganger node", 404)
    if query.grep is not None:
        _see_pattern(query.grep)


def see_attempt(attempt: int, row: JobRow, *, may_come: bool = False) -> None:
    """Refused (no_such_attempt, 404) when the job never had it; one to come only counts if it `may_come`."""
    if attempt > row.generation and not (may_come and row.state not in ENDED):
        had = f"attempts 1 to {row.generation}" if row.generation > 1 else "one attempt"
        detail = f"{row.id} has had {had if row.generation else 'no attempt'}, and no attempt {attempt}"
        raise RequestError("no_such_attempt", detail, f"ganger get {typed(row.id)}", 404)


def _see_pattern(grep: str) -> None:
    try:
        pattern(grep)
    except PatternError as error:
        why = f"{grep[:80]!r} is not a regular expression: {error}"
        raise RequestError("bad_pattern", why, "put \\ before a character that stands for itself") from None
