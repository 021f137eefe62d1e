"""Figures over time, in SQLite: a day every 10 s, a month every 5 min.

The bounds are numbers of rows and not ages: a clock that jumps must not delete what was measured. A disk that is full
or broken costs history and nothing else.
"""

import logging
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from ganger.agent.history.sample_figures import MACHINE
from ganger.model.node_health.node_figures import NOT_MEASURED, Figures, GpuSamples, GpuWork
from ganger.model.units import DAY_MS

STEP_S: Final = 10
COARSE_STEP_S: Final = 300
MEAN_STEP_S: Final = 30
"""Interval of the samples for which a mean stands: no more than a gap in them may be."""
FINE_ROWS: Final = DAY_MS // 1000 // STEP_S
COARSE_ROWS: Final = 30 * DAY_MS // 1000 // COARSE_STEP_S
"""Rows of the machine and of each of its GPUs."""
MAX_DEVICES: Final = 33
"""The machine and 32 GPUs; of more, the first are kept."""
MAX_FILE_BYTES: Final = 64 << 20
MAX_AHEAD_S: Final = 3_600
"""Rows that are further ahead were written while the clock was wrong."""
_PAGE_BYTES: Final = 4_096
_NAMES: Final = tuple(field.name for field in fields(Figures))
_COLUMNS: Final = ", ".join(_NAMES)
_MEANS: Final = ", ".join(f"CAST(round(avg({name})) AS INTEGER)" for name in _NAMES)
_SCHEMA: Final = "".join(
    f"CREATE TABLE IF NOT EXISTS {table} (at_s INTEGER, device INTEGER, {_COLUMNS}, PRIMARY KEY (at_s, device))"
    " WITHOUT ROWID;"
    for table in ("fine", "coarse")
)
_DEVICES: Final = "CREATE TABLE IF NOT EXISTS devices (id INTEGER PRIMARY KEY, name TEXT UNIQUE);"
_POSITION: Final = "CREATE TABLE IF NOT EXISTS kernel_log (boot TEXT, seq INTEGER);"
_log = logging.getLogger("ganger")

Series = tuple[Figures | None, ...]
"""One for each step of a while, oldest first; None where nothing was measured."""


class FigureHistory:
    """The history of one machine. Written by one thread; `series` may be called by any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._ids: dict[str, int] = {}
        self._bucket_s: int | None = None
        self._is_failing = False

    def add(self, at_s: int, figures: Mapping[str, Figures], position: tuple[str, int] | None = None) -> None:
        """Add the figures of a moment, in Unix seconds, and the newest record of the kernel's log that was read.

        An error is logged once until this succeeds again, and not raised.
        """
        try:
            if self._database is None:
                self._database = self._open()
            with self._database as database:
                self._write(database, at_s, figures, position)
        except (sqlite3.Error, OSError) as error:
            if not self._is_failing:
                _log.warning("no history of this machine is written: %s: %s", self._path, error)
            self._is_failing = True
            self.close()
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                self._path.unlink(missing_ok=True)  # it is no database any more: the next sample begins a new one
        else:
            if self._is_failing:
                _log.info("the history of this machine is written again: %s", self._path)
            self._is_failing = False

    def position(self) -> tuple[str, int] | None:
        """Return the newest record of the kernel's log that was read: its boot and its number."""
        try:
            with closing(self._reader()) as database:
                row: tuple[str, int] | None = database.execute("SELECT boot, seq FROM kernel_log").fetchone()
                return row
        except sqlite3.Error:
            return None

    def series(self, since_s: int, until_s: int, points: int) -> dict[str, Series]:
        """Return the figures of the machine and of each GPU in equal steps of a while; empty without a history."""
        step_s = max(1, (until_s - since_s) // points)
        try:
            with closing(self._reader()) as database:
                rows = _means(database, since_s, until_s, step_s, points)
        except sqlite3.Error:
            return {}
        steps: dict[str, list[Figures | None]] = {}
        for name, step, *values in rows:
            of_device = steps.setdefault(name, [None] * points)
            of_device[step] = Figures(**dict(zip(_NAMES, values, strict=True)))
        return {name: tuple(of_device) for name, of_device in steps.items()}

    def gpu_work(self, since_s: int, until_s: int) -> GpuWork:
        """Return the work of each GPU in a while: every 10 s of the last day, and before that the means of 5 min."""
        times: dict[str, array[int]] = {}
        values: dict[str, array[int]] = {}
        if not self._path.exists():
            return GpuWork(problem=f"{self._path} does not exist: the agent of this machine has not sampled it yet")
        try:
            with closing(self._reader()) as database:
                for name, at_s, busy_permille in _gpu_rows(database, since_s, until_s):
                    if name not in times:
                        times[name], values[name] = array("q"), array("q")
                    times[name].append(1000 * at_s)
                    values[name].append(NOT_MEASURED if busy_permille is None else busy_permille)
        except sqlite3.Error as error:
            return GpuWork(problem=f"{self._path} cannot be read: {error}; delete it, and the agent begins a new one")
        samples = {name: GpuSamples(times_ms=times[name], busy_permille=values[name]) for name in times}
        return GpuWork(samples=samples, problem="" if samples else f"{self._path} has no samples of GPUs")

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _reader(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=1.0)

    def _write(
        self,
        database: sqlite3.Connection,
        at_s: int,
        figures: Mapping[str, Figures],
        position: tuple[str, int] | None,
    ) -> None:
        step_s = at_s - at_s % STEP_S
        rows = [
            (step_s, device, *(getattr(item, name) for name in _NAMES))
            for name, item in figures.items()
            if (device := self._device(database, name)) is not None
        ]
        marks = ", ".join("?" * (2 + len(_NAMES)))
        database.executemany(f"INSERT OR REPLACE INTO fine VALUES ({marks})", rows)  # noqa: S608
        if position is not None:
            database.execute("DELETE FROM kernel_log")
            database.execute("INSERT INTO kernel_log VALUES (?, ?)", position)
        bucket_s = at_s - at_s % COARSE_STEP_S
        if self._bucket_s is not None and bucket_s != self._bucket_s:
            _complete(database, self._bucket_s, at_s)
        self._bucket_s = bucket_s

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA wal_autocheckpoint = 250")
            database.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // _PAGE_BYTES}")
            database.executescript(_SCHEMA + _DEVICES + _POSITION)
            newest = database.execute("SELECT max(at_s) FROM fine").fetchone()[0]
        except sqlite3.Error:
            database.close()
            raise
        self._ids = {name: id_ for id_, name in database.execute("SELECT id, name FROM devices")}
        self._bucket_s = None if newest is None else newest - newest % COARSE_STEP_S
        return database

    def _device(self, database: sqlite3.Connection, name: str) -> int | None:
        """Return the number of a device; None for one beyond the limit."""
        if name not in self._ids and len(self._ids) < MAX_DEVICES:
            self._ids[name] = int(database.execute("INSERT INTO devices (name) VALUES (?)", (name,)).lastrowid or 0)
        return self._ids.get(name)


def _means(database: sqlite3.Connection, since_s: int, until_s: int, step_s: int, points: int) -> list[tuple[Any, ...]]:
    """Return rows of device, number of the step and means; from the fine rows, where they go back far enough."""
    newest_s = database.execute("SELECT max(at_s) FROM fine").fetchone()[0] or 0
    table = "fine" if since_s >= newest_s - FINE_ROWS * STEP_S else "coarse"
    query = (
        f"SELECT name, min((at_s - ?) / ?, ?) AS step, {_MEANS} FROM {table} JOIN devices ON id = device "  # noqa: S608
        "WHERE at_s >= ? AND at_s < ? GROUP BY device, step"
    )
    return database.execute(query, (since_s, step_s, points - 1, since_s, until_s)).fetchall()


def _gpu_rows(database: sqlite3.Connection, since_s: int, until_s: int) -> Iterator[tuple[str, int, int | None]]:
    """Yield rows of device, time and work, oldest first; a mean stands for all samples of its bucket."""
    query = (
        "SELECT name, at_s, busy_permille FROM {} JOIN devices ON id = device "
        "WHERE at_s >= ? AND at_s < ? AND name != ? ORDER BY at_s"
    )
    fine_s = database.execute("SELECT min(at_s) FROM fine").fetchone()[0]
    fine_s = until_s if fine_s is None else min(until_s, fine_s)
    for name, at_s, busy_permille in database.execute(query.format("coarse"), (since_s, fine_s, MACHINE)):
        end_s = min(at_s + COARSE_STEP_S, fine_s)  # the newest buckets are there as their samples too
        yield from ((name, step_s, busy_permille) for step_s in range(at_s, end_s, MEAN_STEP_S))
    yield from database.execute(query.format("fine"), (since_s, until_s, MACHINE))


def _complete(database: sqlite3.Connection, bucket_s: int, now_s: int) -> None:
    """Write the means of a bucket that is over, and delete what is beyond the bounds."""
    database.execute(
        f"INSERT OR REPLACE INTO coarse SELECT ?, device, {_MEANS} FROM fine WHERE at_s >= ? AND at_s < ? "  # noqa: S608
        "GROUP BY device",
        (bucket_s, bucket_s, bucket_s + COARSE_STEP_S),
    )
    for table, rows in (("fine", FINE_ROWS), ("coarse", COARSE_ROWS)):
        database.execute(f"DELETE FROM {table} WHERE at_s > ?", (now_s + MAX_AHEAD_S,))  # noqa: S608
        oldest = (
            f"SELECT at_s FROM {table} WHERE device = (SELECT id FROM devices WHERE name = ?) "  # noqa: S608
            "ORDER BY at_s DESC LIMIT 1 OFFSET ?"
        )
        database.execute(f"DELETE FROM {table} WHERE at_s <= ({oldest})", (MACHINE, rows))  # noqa: S608
