"""Retention: removal of logs of jobs that ended long ago, copies of code that no job needs, and old events.

It runs on a thread and a database connection of its own, in small steps with pauses: the core never waits for it longer
than for one short transaction. `settings.RetentionLimits` sets the limits. What belongs to a live job stays, and so
does every event that a snapshot of the state needs to recover."""

import fcntl
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from ganger.core.state.state import State
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.event_row import subjects
from ganger.model.units import HOUR_MS, format_bytes, format_duration
from ganger.ports import Backend
from ganger.settings import Home, RetentionLimits

T = TypeVar("T")

ROWS_PER_STEP: Final = 500
PAUSE_S: Final = 0.02
"""Pause between two steps."""
YOUNG_MS: Final = HOUR_MS
"""A copy of code used within this time may belong to a submission under way."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PAGES: Final = ("page_count", "freelist_count", "page_size")
_JOBS: Final = (
    "SELECT id, ended_ms, json_extract(CAST(job AS TEXT), '$.origin.code_hash') FROM job ORDER BY ended_ms, number"
)


@dataclass(slots=True)
class RemovedCounts:
    """Counts of what one run removed."""

    logs: int = 0
    log_bytes: int = 0
    copies: int = 0
    repositories: int = 0
    events: int = 0

    def __str__(self) -> str:
        """Return a sentence; empty when nothing was removed."""
        parts = (
            f"the logs of {self.logs} jobs ({format_bytes(self.log_bytes)})" * bool(self.logs),
            f"{self.copies} copies of code" * bool(self.copies),
            f"{self.repositories} repositories" * bool(self.repositories),
            f"{self.events} events" * bool(self.events),
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _JobEntry:
    """A job of the listing; `ended_ms` is None while it lives."""

    id: str
    ended_ms: int | None
    code_hash: str | None


@dataclass(slots=True)
class Retention:
    """Retention of one state directory. `view` gives the live state; `run_once` may be called repeatedly."""

    home: Home
    limits: RetentionLimits
    backend: Backend
    view: Callable[[], AbstractContextManager[State]]
    _sizes: dict[str, int] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """End a run that is under way after its step."""
        self._closing.set()

    def run_once(self, now_ms: int) -> RemovedCounts:
        """Remove everything that is over its limit.

        Raise OSError or sqlite3.Error when something cannot be removed; the next run tries again.
        """
        removed = RemovedCounts()
        with closing(sqlite3.connect(self.home.database, isolation_level=None, timeout=5.0)) as database:
            jobs = [_JobEntry(*row) for row in database.execute(_JOBS)]
            self._remove_logs(jobs, now_ms, removed)
            self._remove_code(jobs, now_ms, removed)
            self._remove_repositories(now_ms, removed)
            self._remove_events(database, now_ms, removed)
        return removed

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _remove_logs(self, jobs: list[_JobEntry], now_ms: int, removed: RemovedCounts) -> None:
        """Remove logs by age; then, the job that ended first first, until the others are within the size limit."""
        sizes = {job.id: self._log_bytes(job) for job in self._paced(jobs)}
        self._sizes = {job.id: sizes[job.id] for job in jobs if job.ended_ms is not None and job.id in sizes}
        total = sum(sizes.values())
        for job in jobs:
            if job.ended_ms is None or not sizes.get(job.id) or self._closing.is_set():
                continue
            if _exceeds(self.limits.logs_ms, now_ms - job.ended_ms):
                reason = f"it was older than {format_duration(self.limits.logs_ms or 0)} (keep.logs)"
            elif self.limits.logs_bytes is not None and total > self.limits.logs_bytes:
                reason = f"all logs took more than {format_bytes(self.limits.logs_bytes)} (keep.logs_size)"
            else:
                continue
            self.backend.drop_logs(job.id, f"ganger: this log was removed: {reason} of {self.home.settings_file.name}")
            total -= sizes[job.id]
            removed.logs, removed.log_bytes = removed.logs + 1, removed.log_bytes + sizes[job.id]
            self._sizes[job.id] = 0

    def _log_bytes(self, job: _JobEntry) -> int:
        """Return the size of a job's logs; that of an ended job is cached: it does not change any more."""
        if job.id in self._sizes:
            return self._sizes[job.id]
        with suppress(OSError):  # it was deleted in the meantime
            return self.backend.log_bytes(job.id)
        return 0

    # -- code ----------------------------------------------------------------------------------------------------------

    def _remove_code(self, jobs: list[_JobEntry], now_ms: int, removed: RemovedCounts) -> None:
        """Remove copies that no job has, by age; then those that no live job has, the least recently used first."""
        listed = {job.code_hash for job in jobs}
        live = {job.code_hash for job in jobs if job.ended_ms is None}
        copies = sorted(
            (_last_used_ms(path), path) for path in _subdirectories(self.home.code) if _DIGEST.fullmatch(path.name)
        )
        sizes = {path: tree_bytes(path) for _, path in self._paced(copies)}
        total = sum(sizes.values())
        for used_ms, path in copies:
            age_ms = now_ms - used_ms
            if path.name in live or age_ms < YOUNG_MS or self._closing.is_set():
                continue
            is_old = path.name not in listed and _exceeds(self.limits.code_ms, age_ms)
            if is_old or (self.limits.code_bytes is not None and total > self.limits.code_bytes):
                _remove(path)
                total -= sizes.get(path, 0)
                removed.copies += 1
        for link in self.home.code.glob(".last-*"):
            if not link.exists():  # the last copy of a directory was removed
                link.unlink(missing_ok=True)

    def _remove_repositories(self, now_ms: int, removed: RemovedCounts) -> None:
        """Remove old repositories. A repository is a cache: it is fetched again when a job names it."""
        for path in _subdirectories(self.home.git):
            lock = path / "ganger.lock"
            if (
                not lock.exists()
                or not _exceeds(self.limits.code_ms, now_ms - _last_used_ms(lock))
                or self._closing.is_set()
            ):
                continue
            with lock.open("r") as lock_file:
                try:
                    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # a fetch is under way
                _remove(path)
                removed.repositories += 1

    # -- events --------------------------------------------------------------------------------------------------------

    def _remove_events(self, database: sqlite3.Connection, now_ms: int, removed: RemovedCounts) -> None:
        """Remove the oldest rows while they are too old or the file is too large, unless they are needed."""
        last = self._last_removable(database)
        while not self._closing.is_set():
            too_large = self.limits.events_bytes is not None and _used_bytes(database) > self.limits.events_bytes
            rows = database.execute(
                "SELECT seq, at_ms, data FROM event WHERE seq <= ? ORDER BY seq LIMIT ?", (last, ROWS_PER_STEP)
            ).fetchall()
            rows = [row for row in rows if too_large or _exceeds(self.limits.events_ms, now_ms - row[1])]
            if not rows:
                return
            row_subjects, unreadable = _subjects(rows)
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM about WHERE subject = ? AND seq = ?", row_subjects)
            database.executemany("DELETE FROM about WHERE seq = ?", unreadable)  # scans the whole table
            database.executemany("DELETE FROM event WHERE seq = ?", [(seq,) for seq, _, _ in rows])
            database.execute("DELETE FROM beginning WHERE seq + 1 < (SELECT min(seq) FROM event)")
            database.execute("COMMIT")
            removed.events += len(rows)
            self._closing.wait(PAUSE_S)

    def _last_removable(self, database: sqlite3.Connection) -> int:
        """Return the last row that neither the oldest snapshot nor a live job needs; 0 without a snapshot."""
        oldest = database.execute("SELECT min(seq) FROM snapshot").fetchone()[0] or 0
        with self.view() as state:
            return min([oldest, *(gang.submitted_seq - 1 for gang in state.gangs.values())])

    def _paced(self, values: list[T]) -> Iterator[T]:
        """Yield the values, with a pause from time to time; stop early when the retention is closed."""
        for number, value in enumerate(values):
            if self._closing.is_set():
                return
            if number % ROWS_PER_STEP == ROWS_PER_STEP - 1:
                time.sleep(PAUSE_S)
            yield value


def remove_unfinished(home: Home) -> None:
    """Remove what a killed server left of copies of code that it was writing; no server of this directory may run."""
    for path in _subdirectories(home.code):
        if path.name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)


def tree_bytes(path: Path) -> int:
    """Return the total size of the files below a directory; copies of code that are hard links share one file's."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # it was removed in the meantime
                status = (Path(folder) / name).lstat()
                total += status.st_size // status.st_nlink
    return total


def _subjects(rows: list[tuple[int, int, bytes]]) -> tuple[list[tuple[str, int]], list[tuple[int]]]:
    """Return the subjects of events, each with the event's number; and the numbers of those that cannot be read."""
    pairs, unreadable = [], []
    for seq, _, data in rows:
        try:
            pairs += [(subject, seq) for subject in subjects(codec.decode(data))]
        except ValueError:
            unreadable.append((seq,))
    return pairs, unreadable


def _exceeds(limit_ms: int | None, age_ms: int) -> bool:
    return limit_ms is not None and age_ms >= limit_ms


def _subdirectories(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def _last_used_ms(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns // 1_000_000
    return 0


def _used_bytes(database: sqlite3.Connection) -> int:
    """Return the size of the file, without the free pages."""
    pages, free, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
    return int((pages - free) * size)


def _remove(directory: Path) -> None:
    """Rename a directory away at once, then delete it."""
    trash = directory.with_name(f".gone-{directory.name[:16]}")
    shutil.rmtree(trash, ignore_errors=True)
    directory.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
