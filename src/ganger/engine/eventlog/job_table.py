"""The table of jobs beside the event log: what listings and single jobs are read from. Called by
`engine.eventlog.event_log` alone, inside the transaction that writes the events.

Labels and notes are columns of their own: people change them after a job has ended, when no state knows it any more.
"""

import json
import sqlite3
from collections.abc import Mapping
from typing import Final

from ganger.engine.eventlog import codec, job_costs
from ganger.engine.eventlog.projection import Projection
from ganger.model.event import Described, Stamped

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
    """A job as it is after the events up to `last`; the first time with what never changes of it. An element of an
    array has a short row in a table of its own: listings of jobs do not walk past thousands of them."""
    job_costs.put(db, projection, last)
    row, job = projection.row, projection.job
    figures = codec.encode_figures(projection.ledger, projection.checkpoint_step)
    changing = (row.state, row.ended_ms, codec.encode_row(row), figures)
    if row.array is not None:
        db.execute("INSERT OR REPLACE INTO element VALUES (?, ?, ?, ?, ?, ?)", (row.array, row.index, *changing))
        return
    update = "UPDATE job SET state = ?, ended_ms = ?, row = ?, figures = ? WHERE id = ?"
    if db.execute(update, (*changing, row.id)).rowcount:
        return
    labels, notes = job.spec.labels, job.spec.notes or ""
    fixed = (row.id, projection.number, row.name, row.user, row.queue, row.submitted_ms, job.request_id)
    db.execute(_INSERT, (*fixed, json.dumps(labels), notes, codec.encode_job(job), *changing))
    _label(db, projection.number, labels)


def describe(db: sqlite3.Connection, said: Described) -> None:
    """Change labels and notes; a label without a value goes. Nothing happens to a job that was deleted meanwhile."""
    found = db.execute("SELECT number, labels, notes FROM job WHERE id = ?", (said.gang,)).fetchone()
    if found is None:
        return
    number, before, notes = found[0], json.loads(found[1]), found[2]
    labels = {key: value for key, value in (before | said.labels).items() if value is not None}
    notes = notes if said.notes is None else said.notes
    db.execute("UPDATE job SET labels = ?, notes = ? WHERE number = ?", (json.dumps(labels), notes, number))
    _unlabel(db, number, before)
    _label(db, number, labels)


def delete(db: sqlite3.Connection, id: str) -> None:
    """Take a job out."""
    for number, labels in db.execute("SELECT number, labels FROM job WHERE id = ?", (id,)).fetchall():
        _unlabel(db, number, json.loads(labels))
    db.execute("DELETE FROM job WHERE id = ?", (id,))
    db.execute("DELETE FROM element WHERE array = ?", (id,))
    job_costs.delete(db, id)


def _label(db: sqlite3.Connection, number: int, labels: Mapping[str, str]) -> None:
    db.executemany("INSERT INTO label VALUES (?, ?, ?)", [(*label, number) for label in labels.items()])


def _unlabel(db: sqlite3.Connection, number: int, labels: Mapping[str, str]) -> None:
    rows = [(*label, number) for label in labels.items()]
    db.executemany("DELETE FROM label WHERE key = ? AND value = ? AND number = ?", rows)
