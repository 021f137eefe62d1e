"""The table of jobs beside the event log, from which listings and single jobs are read.

Written inside the transaction of the events. Labels and notes are columns of their own: they may be changed after a job
has ended, when the state no longer has it.
"""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from ganger.engine.eventlog import job_costs
from ganger.engine.eventlog.codec import adapter
from ganger.engine.eventlog.projection import Projection
from ganger.model.event import Described, Stamped
from ganger.model.job import Job
from ganger.model.job_metrics import JobMetric, JobMetrics
from ganger.model.views.service_views import JobRow, Ledger, Loss

SCHEMA: Final = f"""
CREATE TABLE job (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL, queue TEXT NOT NULL,
    state TEXT NOT NULL, submitted_ms INTEGER NOT NULL, ended_ms INTEGER, request_id TEXT NOT NULL,
    labels TEXT NOT NULL, notes TEXT NOT NULL, row BLOB NOT NULL, figures BLOB NOT NULL, job BLOB NOT NULL)
    WITHOUT ROWID;
CREATE UNIQUE INDEX job_number ON job (number);
CREATE INDEX job_name ON job (name, number);
CREATE INDEX job_user ON job (user, number);
CREATE INDEX job_queue ON job (queue, number);
CREATE INDEX job_state ON job (state, number);
CREATE INDEX job_submitted ON job (submitted_ms, number);
CREATE INDEX job_ended ON job (ended_ms, number);
CREATE INDEX job_request ON job (request_id);
CREATE TABLE element (
    array TEXT, number INTEGER, state TEXT NOT NULL, ended_ms INTEGER, row BLOB NOT NULL, figures BLOB NOT NULL,
    PRIMARY KEY (array, number)) WITHOUT ROWID;
CREATE INDEX element_state ON element (array, state, number);
{job_costs.SCHEMA}
CREATE TABLE label (key TEXT, value TEXT, number INTEGER, PRIMARY KEY (key, value, number)) WITHOUT ROWID;
"""

_INSERT: Final = """
INSERT INTO job (id, number, name, user, queue, submitted_ms, request_id, labels, notes, job, state, ended_ms, row,
    figures) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def put(db: sqlite3.Connection, projection: Projection, last: Stamped) -> None:
    """Write a job as it is after the events up to `last`; the first time with its constant columns.

    An element of an array has a short row in a table of its own: listings of jobs do not walk past thousands of them.
    """
    job_costs.put(db, projection, last)
    row, job = projection.row, projection.job
    figures = to_json({"ledger": projection.ledger, "checkpoint_step": projection.checkpoint_step})
    variable_columns = (row.state, row.ended_ms, adapter(JobRow).dump_json(row), figures)
    if row.array is not None:
        db.execute(
            "INSERT OR REPLACE INTO element VALUES (?, ?, ?, ?, ?, ?)", (row.array, row.index, *variable_columns)
        )
        return
    update = "UPDATE job SET state = ?, ended_ms = ?, row = ?, figures = ? WHERE id = ?"
    if db.execute(update, (*variable_columns, row.id)).rowcount:
        return
    labels, notes = job.spec.labels, job.spec.notes or ""
    constant_columns = (row.id, projection.number, row.name, row.user, row.queue, row.submitted_ms, job.request_id)
    db.execute(_INSERT, (*constant_columns, json.dumps(labels), notes, adapter(Job).dump_json(job), *variable_columns))
    _add_labels(db, projection.number, labels)


def describe(db: sqlite3.Connection, event: Described) -> None:
    """Change labels and notes; a label without a value is removed. Ignore a job deleted in the meantime."""
    stored = db.execute("SELECT number, labels, notes FROM job WHERE id = ?", (event.gang,)).fetchone()
    if stored is None:
        return
    number, old_labels, notes = stored[0], json.loads(stored[1]), stored[2]
    labels = {key: value for key, value in (old_labels | event.labels).items() if value is not None}
    notes = notes if event.notes is None else event.notes
    db.execute("UPDATE job SET labels = ?, notes = ? WHERE number = ?", (json.dumps(labels), notes, number))
    _remove_labels(db, number, old_labels)
    _add_labels(db, number, labels)


def delete(db: sqlite3.Connection, id: str) -> None:
    """Remove a job."""
    for number, labels in db.execute("SELECT number, labels FROM job WHERE id = ?", (id,)).fetchall():
        _remove_labels(db, number, json.loads(labels))
    db.execute("DELETE FROM job WHERE id = ?", (id,))
    db.execute("DELETE FROM element WHERE array = ?", (id,))
    job_costs.delete(db, id)


def _add_labels(db: sqlite3.Connection, number: int, labels: Mapping[str, str]) -> None:
    db.executemany("INSERT INTO label VALUES (?, ?, ?)", [(*label, number) for label in labels.items()])


def _remove_labels(db: sqlite3.Connection, number: int, labels: Mapping[str, str]) -> None:
    rows = [(*label, number) for label in labels.items()]
    db.executemany("DELETE FROM label WHERE key = ? AND value = ? AND number = ?", rows)


def decode_row(text: str | bytes, labels: dict[str, str]) -> JobRow:
    """Return a listing row of the table, with its present labels."""
    row = json.loads(text)
    return JobRow(**row | {"nodes": tuple(row["nodes"]), "labels": labels, "metrics": decode_metrics(row["metrics"])})


def decode_metrics(data: dict[str, Any]) -> JobMetrics:
    """Return the metrics in a listing row."""
    values = tuple(JobMetric(**metric) for metric in data["values"])
    return JobMetrics(values=values, left_out=data["left_out"])


def decode_ledger(figures: dict[str, Any]) -> Ledger:
    """Return the ledger among the figures of a job."""
    ledger = figures["ledger"]
    return Ledger(**ledger | {"losses": tuple(Loss(**loss) for loss in ledger["losses"])})
