"""Costs of ended jobs, as rows of integers beside the table of jobs.

A row is written once, with the end of a job, in the transaction of the events. It records the event after which it was
written, so that a reader can combine it with a state of that moment. Elements of an array are jobs here; those that
ended with it before they started are one row, added up.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

from ganger.core.state.time_accounting import AMOUNTS, COSTS, total
from ganger.engine.eventlog.job_filters import Read
from ganger.engine.eventlog.projection import Projection
from ganger.model.event import Stamped
from ganger.model.job import GangState
from ganger.model.views.service_views import Ledger, Loss

SCHEMA: Final = f"""
CREATE TABLE account (
    id TEXT PRIMARY KEY, job TEXT NOT NULL, user TEXT NOT NULL, queue TEXT NOT NULL, state TEXT NOT NULL,
    seq INTEGER NOT NULL, ended_ms INTEGER NOT NULL, jobs INTEGER NOT NULL, gpu_milli INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in AMOUNTS)}) WITHOUT ROWID;
CREATE INDEX account_job ON account (job);
CREATE INDEX account_ended ON account (ended_ms);
CREATE TABLE loss (
    id TEXT, cause TEXT, {", ".join(f"{name} INTEGER NOT NULL" for name in COSTS)}, PRIMARY KEY (id, cause))
    WITHOUT ROWID;
"""
_INSERT_ACCOUNT: Final = f"INSERT OR IGNORE INTO account VALUES ({', '.join('?' * (9 + len(AMOUNTS)))})"  # noqa: S608 - ours
_INSERT_LOSS: Final = f"INSERT OR IGNORE INTO loss VALUES ({', '.join('?' * (2 + len(COSTS)))})"  # noqa: S608 - ours
_GPU_AMOUNTS: Final = {name: "0" if name == "queued_ms" else f"gpu_milli * {name}" for name in AMOUNTS} | {
    "recovery_ms": "0",  # recovery with devices allocated comes from the losses
    "total_ms": "gpu_milli * held_ms",
}
_GPU_COSTS: Final = {
    "failures": "failures",
    "restarts": "restarts",
    "detect_ms": "gpu_milli * loss.detect_ms",
    "recovery_ms": "gpu_milli * loss.held_ms",
    "lost_ms": "gpu_milli * loss.lost_ms",
    "unobserved_ms": "gpu_milli * loss.unobserved_ms",
    "held_ms": "gpu_milli * loss.held_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuery:
    """Filter of accounts: of jobs that ended by event `seq`; None is any.

    since_ms: ended not before.
    job: a job, or an array with its elements.
    """

    seq: int
    since_ms: int | None = None
    user: str | None = None
    queue: str | None = None
    job: str | None = None


def put(db: sqlite3.Connection, projection: Projection, last: Stamped) -> None:
    """Write the account of an ended job, `last` being the newest event of its cycle; nothing for a live one."""
    row, ledger, jobs = projection.row, projection.ledger, projection.jobs
    is_array = row.elements is not None
    if not (jobs if is_array else row.ended_ms is not None):
        return
    identity = (row.id, row.array or row.id, row.user, row.queue, GangState.STOPPED if is_array else row.state)
    end = (last.seq, last.at_ms, jobs, projection.gpu_milli)
    amounts = (jobs * getattr(ledger, name) for name in AMOUNTS)
    # An array is put again with each of its elements: what ended with it counts once.
    db.execute(_INSERT_ACCOUNT, (*identity, *end, *amounts))
    costs = [(row.id, loss.cause, *(getattr(loss, name) for name in COSTS)) for loss in ledger.losses]
    db.executemany(_INSERT_LOSS, costs)


def delete(db: sqlite3.Connection, job: str) -> None:
    """Remove a job, or an array with its elements."""
    db.execute("DELETE FROM loss WHERE id IN (SELECT id FROM account WHERE job = ?)", (job,))
    db.execute("DELETE FROM account WHERE job = ?", (job,))


def ended_costs(read: Read, cost_query: CostQuery) -> tuple[dict[str, int], Ledger, Ledger]:
    """Return how many jobs ended in each state, where their time went, and that of their GPUs, in thousandths."""
    where, values = _conditions(cost_query)
    sums = [f"sum({name})" for name in AMOUNTS] + [f"sum({_GPU_AMOUNTS[name]})" for name in AMOUNTS]
    query = f"SELECT state, sum(jobs), {', '.join(sums)} FROM account WHERE {where} GROUP BY state"  # noqa: S608 - ours
    rows = read(query, values)
    of_jobs = [Ledger(**dict(zip(AMOUNTS, row[2:], strict=False))) for row in rows]
    of_gpus = [Ledger(**dict(zip(AMOUNTS, row[2 + len(AMOUNTS) :], strict=True))) for row in rows]
    costs = [f"sum(loss.{name})" for name in COSTS] + [f"sum({_GPU_COSTS[name]})" for name in COSTS]
    source = f"account JOIN loss USING (id) WHERE {where} GROUP BY cause"
    for cause, *amounts in read(f"SELECT cause, {', '.join(costs)} FROM {source}", values):  # noqa: S608 - the same
        of_jobs.append(Ledger(losses=(_loss(cause, amounts[: len(COSTS)]),)))
        gpu_loss = _loss(cause, amounts[len(COSTS) :])
        of_gpus.append(Ledger(recovery_ms=gpu_loss.recovery_ms, losses=(gpu_loss,)))
    return {row[0]: row[1] for row in rows}, total(of_jobs), total(of_gpus)


def _loss(cause: str, amounts: list[int]) -> Loss:
    return Loss(cause=cause, **dict(zip(COSTS, amounts, strict=True)))


def _conditions(cost_query: CostQuery) -> tuple[str, tuple[Any, ...]]:
    terms = {"seq <= ?": cost_query.seq, "ended_ms >= ?": cost_query.since_ms, "user = ?": cost_query.user}
    terms |= {"queue = ?": cost_query.queue, "job = ?": cost_query.job}
    active = {term: value for term, value in terms.items() if value is not None}
    return " AND ".join(active), tuple(active.values())
