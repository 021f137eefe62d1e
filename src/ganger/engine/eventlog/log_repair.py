"""Find damage in an event log, and restore the log to an earlier event. No server may run on it."""

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganger.core.state.gang import STRIDE
from ganger.core.state.state import State
from ganger.engine.eventlog import job_table
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import project, project_array
from ganger.errors import RequestError
from ganger.model.event import Stamped, Unreadable

_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of a log.

    events: number of events.
    faults: rows that cannot be read, are missing, or do not follow from those before, by number, with the reason.
    refusal: why no server starts on it, if none does.
    """

    events: int
    faults: dict[int, str]
    refusal: RequestError | None = None

    @property
    def last_good(self) -> int:
        """The newest event before the first fault."""
        return min(self.faults) - 1


def examine(log: EventLog) -> Damage:
    """Decode every row of a log, and fold in those that the next start of a server would."""
    faults: dict[int, str] = {}
    refusal = None
    events = after = 0
    while page := log.rows(after=after, limit=_PAGE):
        for row in page:
            if after and row.seq != after + 1:
                faults[after + 1] = f"missing, up to event {row.seq - 1}"
            if isinstance(row.event, Unreadable):
                faults[row.seq] = row.event.reason
            after, events = row.seq, events + 1
    try:
        log.restore()
    except RequestError as error:
        if not faults:
            raise
        refusal = error
    for seq, reason in log.unreadable.items():
        faults.setdefault(abs(seq), reason)
    return Damage(events, dict(sorted(faults.items())), refusal)


def go_back(path: Path, seq: int) -> Path:
    """Remove what came after event `seq` from the log at `path`, and return the path of a copy kept beside it.

    Raise RequestError if there is no such event, or the log cannot be restored up to it.
    """
    log = EventLog(path)
    try:
        row = next(iter(log.rows(after=seq - 1, limit=1)), None)
        if row is None or row.seq != seq or isinstance(row.event, Unreadable):
            raise RequestError("log_failed", f"{path} has no event {seq} that can be read", "see `ganger doctor`", 500)
        state = log.restore(seq)
    finally:
        log.close()
    backup = path.with_name(f"{path.name}.before-restore-{time.strftime('%Y%m%dT%H%M%S')}")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        with closing(sqlite3.connect(backup)) as backup_database:
            backup.chmod(0o600)
            database.backup(backup_database)
        database.execute("BEGIN IMMEDIATE")
        _cut(database, state, row)
        database.execute("COMMIT")
    return backup


def _cut(database: sqlite3.Connection, state: State, last: Stamped) -> None:
    """Remove what came after an event; jobs that lived then are as they were."""
    for table in ("event", "about", "snapshot"):
        database.execute(f"DELETE FROM {table} WHERE seq > ?", (last.seq,))  # noqa: S608 - constant table names
    later = database.execute("SELECT id FROM job WHERE number >= ?", ((last.seq + 1) * STRIDE,)).fetchall()
    for (name,) in later:
        job_table.delete(database, name)
    for table in ("loss", "account"):
        database.execute(f"DELETE FROM {table} WHERE id IN (SELECT id FROM account WHERE seq > ?)", (last.seq,))  # noqa: S608 - the same
    for name in state.arrays:
        statement = "DELETE FROM element WHERE array = ? AND (ended_ms IS NULL OR ended_ms > ?)"
        database.execute(statement, (name, last.at_ms))
    arrays = [project_array(array, last.at_ms) for array in state.arrays.values()]
    gangs = [project(gang, last.at_ms) for gang in state.gangs.values() if not gang.is_head]
    for projection in (*arrays, *gangs):
        job_table.put(database, projection, last)
