"""The event log: the source of truth of an embedded server, in SQLite. Rows are only ever added.

Written by `engine.loop` alone, on the core's thread; read by `engine.service` and `engine.replay` on connections of
their own, which in WAL mode neither wait for the writer nor hold it up. The tables besides `event` are projections,
written in the same transaction, or snapshots, from which a restart folds on.
"""

import json
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger import registry
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.eventlog import codec, event_row, job_costs, job_filters, job_table
from ganger.engine.eventlog.disk_reserve import DiskReserve
from ganger.engine.eventlog.projection import Projection
from ganger.engine.eventlog.recovery import JobEntry, Recovery, reconcile
from ganger.errors import RequestError
from ganger.model.event import Deleted, Described, Event, ServerStarted, Stamped, Unreadable
from ganger.model.job import ENDED, GangState, Job, split_element_id
from ganger.model.views.service_views import JobRow, Ledger
from ganger.ports import JobFilter

MEMORY: Final = ":memory:"
SNAPSHOT_EVERY: Final = 2_000
"""Events between snapshots: folding that many again takes well under a second."""
SNAPSHOTS_KEPT: Final = 4
ALL_JOBS: Final = JobFilter()
LOG_FORMAT: Final = 26
_APPLICATION_ID: Final = 0x67616E67
"""Distinguishes a log of ganger from any other SQLite file."""
_logger = logging.getLogger(__name__)
_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE event (
    seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, closes INTEGER NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE about (subject TEXT, seq INTEGER, PRIMARY KEY (subject, seq)) WITHOUT ROWID;
{job_table.SCHEMA}
CREATE TABLE snapshot (seq INTEGER PRIMARY KEY, image BLOB NOT NULL);
CREATE TABLE beginning (seq INTEGER PRIMARY KEY, image BLOB NOT NULL);
CREATE VIEW image AS SELECT * FROM snapshot UNION ALL SELECT * FROM beginning;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {LOG_FORMAT};
COMMIT;
"""  # noqa: S608 - of constants


class EventLog:
    """One log file. `path` may be MEMORY, for tests: then one thread does everything."""

    PUBLISHES_REASONS = True

    def __init__(self, path: Path | str) -> None:
        """Open or create it.

        Raise RequestError if the file is not a log of ganger (corrupt_log) or one of another version
        (unsupported_log_format); it is left as it is.
        """
        self._path = str(path)
        self._readers = threading.local()
        self._since_snapshot = 0
        self.unreadable: dict[int, str] = {}
        is_new = self._path == MEMORY or not self._log_exists()
        try:
            self._writer = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._writer.execute("PRAGMA journal_mode = WAL")
            # With this a crash of the server loses nothing; a power cut may lose the last moments, and then nothing
            # that ran runs any more.
            self._writer.execute("PRAGMA synchronous = NORMAL")
            if is_new:
                self._writer.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise _log_error(self._path, error) from error
        self._file = None if self._path == MEMORY else Path(self._path).stat()
        self.reserve = DiskReserve(None if self._path == MEMORY else Path(self._path + "-reserve"))

    def close(self) -> None:
        """Close the file, with all that is in the WAL. Readers of other threads end with their threads."""
        if hasattr(self._readers, "connection"):
            self._readers.connection.close()
            del self._readers.connection
        with suppress(sqlite3.Error):
            # SQLite does it with the last connection, and other threads may still have one.
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with suppress(sqlite3.Error, OSError):
            self._restore_file()
        self._writer.close()

    def _restore_file(self) -> None:
        """Write the file again if it was deleted: all of it is still readable on this connection."""
        if self._file is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(Path(self._path).stat(), self._file):
                return
        for name in ("-wal", "-shm"):
            Path(self._path + name).unlink(missing_ok=True)
        draft = f"{self._path}.draft"
        os.close(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(draft)) as new_file:
            self._writer.backup(new_file)
        Path(draft).replace(self._path)

    def _log_exists(self) -> bool:
        """Return whether there is a log already, without writing a byte. Raise RequestError for another file."""
        path = Path(self._path)
        if not path.exists() or not path.stat().st_size:
            return False
        if not os.access(self._path, os.W_OK, effective_ids=True):  # SQLite would open it, and fail at the first write
            raise RequestError("log_failed", f"{self._path} is not writable by this user", f"ls -l {self._path}", 500)
        return self._has_log()

    def _has_log(self) -> bool:
        """Return whether the file has a log in it. Raise RequestError if it has something else."""
        try:
            with closing(self._connect_readonly()) as connection:
                queries = "SELECT count(*) FROM sqlite_schema", "PRAGMA application_id", "PRAGMA user_version"
                tables, application, version = (connection.execute(sql).fetchone()[0] for sql in queries)
                damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            raise _log_error(self._path, error) from error
        if not tables and not version:
            return False  # left by a process that died while creating it
        if application != _APPLICATION_ID:
            raise _corrupt_error(self._path, "the file is a database of another program")
        if version != LOG_FORMAT:
            raise _format_error(self._path, version)
        if damage != "ok":
            raise _corrupt_error(self._path, str(damage))
        return True

    # -- writing -------------------------------------------------------------------------------------------------------

    def encode(self, event: Event) -> bytes:
        """Return an event as it is written. Raise ValueError if it cannot be, or is another event when read again."""
        return codec.encode_checked(event)

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Write events and what they change in one transaction.

        shows: called just before readers see it.
        encoded: events that were checked already, as they are written, by the number of their row.
        On any error nothing was written; RequestError is (disk_full) or (log_failed).
        """
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for stamped in batch:
                self._insert(stamped, encoded.get(stamped.seq) or event_row.encode(stamped.event))
            for projection in projections:
                job_table.put(self._writer, projection, batch[-1])
            shows()
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise _log_error(self._path, error) from error
        finally:
            if self._writer.in_transaction:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
        _logger.debug("events up to seq %d are durable", batch[-1].seq)
        self._since_snapshot += len(batch)

    def import_jobs(self, projections: Iterable[Projection], seq: int) -> None:
        """Add rows of jobs from before this log began, with event `seq` as the last one.

        A job whose number is taken is left out. Raise RequestError as for `append`.
        """
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for projection in projections:
                last = Stamped(seq, projection.row.ended_ms or 0, ServerStarted(version=""))
                with suppress(sqlite3.IntegrityError):
                    job_table.put(self._writer, projection, last)
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise _log_error(self._path, error) from error

    def snapshot(self, state: State) -> None:
        """Keep an image of the state if the newest is old enough. A failure costs only time at the next start."""
        if self._since_snapshot < SNAPSHOT_EVERY:
            return
        self._since_snapshot = 0
        image = codec.encode_image(state.image())
        with suppress(sqlite3.Error):
            self._writer.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", (state.seq, image))
            self._writer.execute(
                "DELETE FROM snapshot WHERE seq NOT IN (SELECT seq FROM snapshot ORDER BY seq DESC LIMIT ?)",
                (SNAPSHOTS_KEPT,),
            )

    def _insert(self, stamped: Stamped, data: bytes) -> None:
        event = stamped.event
        self._writer.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
            (stamped.seq, stamped.at_ms, stamped.closes, event.kind, data),
        )
        self._writer.executemany(
            "INSERT OR IGNORE INTO about VALUES (?, ?)",
            [(subject, stamped.seq) for subject in event_row.subjects(event)],
        )
        if isinstance(event, Deleted):
            job_table.delete(self._writer, event.gang)
        elif isinstance(event, Described):
            job_table.describe(self._writer, event)

    # -- reading -------------------------------------------------------------------------------------------------------

    def restore(self, upto: int | None = None) -> State:
        """Return the state after event `upto` (default: the newest), folded from the last snapshot before it.

        Rows that cannot be read are set aside (`recovery`). Raise RequestError if one is missing.
        """
        last = self.last_seq() if upto is None else upto
        first = last

        def begin() -> State:
            nonlocal first
            state = self._image(last)
            first = state.seq
            return state

        recovery = Recovery(begin, lambda state: self.iter_rows(state.seq, last))
        try:
            state = recovery.fold()
        except ValueError as error:
            raise _corrupt_error(self._path, str(error)) from error
        if upto is None:
            self._since_snapshot = last - first
            self._reconcile(state, recovery)
        return state

    def _reconcile(self, state: State, recovery: Recovery) -> None:
        """Bring a state whose log is damaged in line with the table of jobs, and have a snapshot taken soon."""
        new = {seq: reason for seq, reason in recovery.aside.items() if seq not in self.unreadable}
        self.unreadable |= new
        for seq, reason in sorted(new.items(), key=lambda entry: abs(entry[0])):
            _logger.warning("event %s of %s was set aside: %s", abs(seq), self._path, reason)
        if recovery.aside:
            self._since_snapshot = SNAPSHOT_EVERY
            live_ids = self._read("SELECT id FROM job WHERE ended_ms IS NULL ORDER BY number")
            live_jobs = [(name, row.job) for (name,) in live_ids if (row := self._job_entry(name)) is not None]
            for change in reconcile(state, self._job_entry, live_jobs):
                _logger.warning("because of events that were set aside, %s", change)

    def _job_entry(self, name: str) -> JobEntry | None:
        """Return a job as in the table of jobs; None if that cannot be read either."""
        with suppress(RequestError, ValueError, LookupError, TypeError):
            if (stored := self.job(name)) is not None:
                return JobEntry(GangState(stored[0].state), stored[0].generation, stored[3])
        return None

    def _image(self, upto: int) -> State:
        """Return the newest snapshot up to event `upto` that this version can read, else the empty cluster."""
        for (seq,) in self._read("SELECT seq FROM image WHERE seq <= ? ORDER BY seq DESC", (upto,)):
            for (image,) in self._read("SELECT image FROM image WHERE seq = ?", (seq,)):
                with suppress(Exception):  # the row may hold anything that decodes
                    return State(codec.decode_image(image), registry.score)
        return State(find_score=registry.score)

    def state_before(self, row: Stamped, state: State) -> State:
        """Return the state before an event: the one given, or the one that another controller began with there."""
        query = "SELECT seq FROM beginning WHERE seq = ?"
        begins = isinstance(row.event, ServerStarted) and self._read(query, (row.seq - 1,))
        return self._image(row.seq - 1) if begins else state

    def iter_rows(self, after: int, upto: int) -> Iterator[Stamped]:
        """Yield events after `after` up to `upto`, in pages, so that a long log needs little memory."""
        while after < upto:
            page = self.rows(after=after, limit=min(1000, upto - after))
            if not page:
                raise _corrupt_error(self._path, f"event {after + 1} is missing")
            yield from page
            after = page[-1].seq

    def rows(
        self, after: int = 0, gang: str | None = None, limit: int = 1000, kinds: Sequence[str] = ()
    ) -> list[Stamped]:
        """Return events after `after`, oldest first; only about a gang, and of some kinds, if any are named."""
        source, where, values = "event", ["seq > ?"], list[Any]([after])
        if gang is not None:
            source, where, values = "about JOIN event USING (seq)", ["subject = ?", *where], [gang, *values]
        if kinds:
            where.append(f"kind IN ({', '.join('?' * len(kinds))})")
            values += kinds
        rows = self._read(
            f"SELECT seq, at_ms, closes, kind, data FROM {source} WHERE {' AND '.join(where)} ORDER BY seq LIMIT ?",  # noqa: S608 - only question marks are put in
            (*values, limit),
        )
        return [self._stamped(*row) for row in rows]

    def _stamped(self, seq: int, at_ms: object, closes: object, kind: object, data: object) -> Stamped:
        """Return a row as an event; one that cannot be read as `Unreadable`."""
        try:
            return event_row.stamped(seq, at_ms, closes, kind, data)
        except ValueError as error:
            subjects = self._read("SELECT subject FROM about WHERE seq = ?", (seq,))
            about = tuple(str(subject) for (subject,) in subjects)
            unreadable = Unreadable(event_kind=str(kind), reason=f"it cannot be read: {error}", subjects=about)
            return Stamped(seq, at_ms if event_row.is_time(at_ms) else 0, unreadable, bool(closes))

    def last_seq(self) -> int:
        """Return the number of the newest event, or of the state that the log begins with; 0 without both."""
        newest = "SELECT max(seq) FROM event UNION ALL SELECT max(seq) FROM beginning"
        return max(int(seq or 0) for (seq,) in self._read(newest))

    def gang_before_log(self, job: str) -> Gang | None:
        """Return the gang of a job before the first event, for a log that begins with live jobs."""
        return None

    def first_replayable(self) -> int:
        """Return the first event from which the log can be replayed.

        Older events may have been removed, and then replay starts from a snapshot.
        """
        first = self._read("SELECT coalesce(min(seq), 1) FROM event")[0][0]
        query = "SELECT coalesce(min(seq), ?) + 1 FROM image WHERE seq >= ?"
        return 1 if first == 1 else int(self._read(query, (first, first - 1))[0][0])

    def snapshot_after(self, seq: int) -> int | None:
        """Return the number of the first snapshot from event `seq` on; None if there is none."""
        snapshot_seq: int | None = self._read("SELECT min(seq) FROM image WHERE seq >= ?", (seq,))[0][0]
        return snapshot_seq

    def last_ms(self) -> int:
        """Return the time of the newest event; 0 in an empty log. No clock may show less."""
        query = "SELECT at_ms FROM event WHERE at_ms BETWEEN 0 AND ? ORDER BY seq DESC LIMIT 1"
        return int((self._read(query, (event_row.LATEST_MS,)) or [(0,)])[0][0])

    def before(self, at_ms: int) -> int:
        """Return the number of the newest event before `at_ms`; 0 if there is none."""
        query = "SELECT seq FROM event WHERE at_ms < ? ORDER BY seq DESC LIMIT 1"
        return int((self._read(query, (at_ms,)) or [(0,)])[0][0])

    def jobs(
        self, job_filter: JobFilter = ALL_JOBS, limit: int = 100, before: int | None = None
    ) -> list[tuple[int, str, dict[str, Any]]]:
        """Return (number, state, listing row), newest first. `before` is the number at which the last page ended."""
        lowest, beyond = job_filters.number_range(self._read, job_filter)
        beyond = beyond if before is None else min(beyond, before)
        rows = self._read(*job_filters.page_query(job_filter, lowest, beyond, limit))
        return [
            (number, state, json.loads(row) | {"labels": json.loads(labels)}) for number, state, row, labels in rows
        ]

    def job(self, name: str) -> tuple[JobRow, Ledger, int | None, Job] | None:
        """Return listing row, ledger, newest checkpoint and the job itself, by id; None if there is none.

        The job has its present labels and notes. An element that has no gang yet is in the state of its array.
        """
        element = split_element_id(name)
        return self._element(*element) if element else self._job(name)

    def state_of(self, name: str) -> GangState | None:
        """Return the state of a job, by id; None if there is none."""
        stored = self.job(name)
        return GangState(stored[0].state) if stored else None

    def _element(self, array: str, index: int) -> tuple[JobRow, Ledger, int | None, Job] | None:
        stored = self._job(array)
        if stored is None or stored[3].spec.array is None or index not in stored[3].spec.array.indices:
            return None
        array_row, ledger, _, job = stored
        rows = self._read("SELECT row, figures FROM element WHERE array = ? AND number = ?", (array, index))
        if rows:
            row, figures = job_table.decode_row(rows[0][0], array_row.labels), json.loads(rows[0][1])
            job = replace(job, spec=replace(job.spec, priority=row.priority))
            return row, job_table.decode_ledger(figures), figures["checkpoint_step"], job.element(index)
        counts = dict(self._read("SELECT state, count(*) FROM element WHERE array = ? GROUP BY state", (array,)))
        row = job_filters.untouched_element(array_row, index, job_filters.untouched_element_state(array_row, counts))
        return row, ledger if row.state in ENDED else Ledger(), None, job.element(index)

    def elements(self, array: str, states: Sequence[str], after: int, limit: int) -> list[JobRow]:
        """Return elements of an array by index, from the one beyond `after`; of these states, if any are named."""
        stored = self._job(array)
        if stored is None or stored[3].spec.array is None:
            return []
        array_row, indices = stored[0], stored[3].spec.array.indices
        states_of = dict(self._read("SELECT number, state FROM element WHERE array = ?", (array,)))
        default = job_filters.untouched_element_state(array_row, Counter(states_of.values()))
        page = job_filters.element_page(indices, after, states_of, default, states)[:limit]
        bounds = (array, page[0], page[-1]) if page else (array, 0, -1)
        rows = dict(self._read("SELECT number, row FROM element WHERE array = ? AND number BETWEEN ? AND ?", bounds))
        return [
            job_table.decode_row(rows[index], array_row.labels)
            if index in rows
            else job_filters.untouched_element(array_row, index, default)
            for index in page
        ]

    def ended_costs(self, query: job_costs.CostQuery) -> tuple[dict[str, int], Ledger, Ledger]:
        """Return of ended jobs: how many per state, where their time went, and that of their GPUs."""
        return job_costs.ended_costs(self._read, query)

    def _job(self, name: str) -> tuple[JobRow, Ledger, int | None, Job] | None:
        rows = self._read("SELECT row, figures, job, labels, notes FROM job WHERE id = ?", (name,))
        if not rows:
            return None
        try:
            row, figures = job_table.decode_row(rows[0][0], json.loads(rows[0][3])), json.loads(rows[0][1])
            job = codec.adapter(Job).validate_json(rows[0][2])
        except ValueError as error:
            raise _corrupt_error(self._path, f"job {name} cannot be read: {error}") from error
        spec = replace(job.spec, labels=row.labels, notes=rows[0][4] or None, priority=row.priority)
        return row, job_table.decode_ledger(figures), figures["checkpoint_step"], replace(job, spec=spec)

    def version(self, subject: str) -> int:
        """Return the number of the newest event about a gang, `queue/NAME` or `node/NAME`; 0 if there is none."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM about WHERE subject = ?", (subject,))[0][0])

    def find(self, text: str) -> str | None:
        """Return the job with that id, else the newest job of that name; `NAME[7]` is an element, if it exists."""
        element = split_element_id(text)
        if element is not None:
            array = self.find(element[0])
            name = f"{array}[{element[1]}]"
            return name if array is not None and self.job(name) is not None else None
        newest = "SELECT id FROM job WHERE name = ? ORDER BY number DESC LIMIT 1"
        rows = self._read("SELECT id FROM job WHERE id = ?", (text,)) or self._read(newest, (text,))
        return str(rows[0][0]) if rows else None

    def recent_ids(self, limit: int = 50) -> list[str]:
        """Return ids of recent jobs, newest first."""
        return [str(row[0]) for row in self._read("SELECT id FROM job ORDER BY number DESC LIMIT ?", (limit,))]

    def by_request(self, request_id: str) -> str | None:
        """Return the job that was made for a request."""
        rows = self._read("SELECT id FROM job WHERE request_id = ? LIMIT 1", (request_id,)) if request_id else []
        return str(rows[0][0]) if rows else None

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._reader().execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise _log_error(self._path, error) from error

    def _reader(self) -> sqlite3.Connection:
        if self._path == MEMORY:
            return self._writer
        if not hasattr(self._readers, "connection"):
            self._readers.connection = self._connect_readonly()
        connection: sqlite3.Connection = self._readers.connection
        return connection

    def _connect_readonly(self) -> sqlite3.Connection:
        """Return a connection that cannot write."""
        return sqlite3.connect(self._uri(), uri=True, timeout=5.0, isolation_level=None)

    def _uri(self) -> str:
        return Path(self._path).absolute().as_uri() + "?mode=ro"


def _log_error(path: str, error: sqlite3.Error) -> RequestError:
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _corrupt_error(path, str(error))
    if name in ("SQLITE_FULL", "SQLITE_IOERR_WRITE"):
        detail = f"no room to write {path}: {error}; running jobs go on, no request is accepted until there is room"
        return RequestError("disk_full", detail, f"free some space on that disk: df -h {Path(path).parent}", 507)
    return RequestError("log_failed", f"cannot use {path}: {error}", "see `ganger doctor`", 500)


def move_aside_command(path: str, suffix: str = "broken") -> str:
    """Return the command that moves a whole log away: its newest events may be in the WAL alone."""
    parts = [part for part in ("", "-wal") if Path(path + part).exists()]
    return " && ".join(f"mv {path}{part} {path}.{suffix}{part}" for part in parts)


def _format_error(path: str, version: int) -> RequestError:
    age = "an older" if version < LOG_FORMAT else "a newer"
    start_over = f"{move_aside_command(path, f'format-{version}')} && ganger server start"
    return RequestError(
        "unsupported_log_format",
        f"{path} was written by {age} version of ganger: it has format {version}, this version reads only format "
        f"{LOG_FORMAT} and converts no other; it was left as it is",
        f"to continue with its jobs, use the version of ganger that wrote it; to start over, keeping the old log: "
        f"{start_over}",
        500,
    )


def _corrupt_error(path: str, reason: str) -> RequestError:
    return RequestError(
        "corrupt_log",
        f"{path} cannot be read as an event log: {reason}; it was left as it is",
        f"see `ganger doctor`; to start over, keeping the old log: {move_aside_command(path)}",
        500,
    )
