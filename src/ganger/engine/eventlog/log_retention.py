"""What a server forgets by itself: logs of jobs that ended long ago, copies of code that nobody needs, old events.

Run by `wiring` now and then, on a thread and a database connection of its own, in small steps with pauses: the core
never waits for it longer than for one short transaction. `settings.Keep` says how much is kept. What belongs to a live
job stays, and so does every event that a snapshot of the state needs to recover.
"""

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
from ganger.engine.eventlog.event_row import about
from ganger.model.units import DAY_MS, HOUR_MS, format_bytes, format_duration
from ganger.ports import Backend
from ganger.settings import Home, Keep

T = TypeVar("T")

ROWS_A_STEP: Final = 500
PAUSE_S: Final = 0.02
"""Between two steps."""
YOUNG_MS: Final = HOUR_MS
"""A copy of code used within this time may be a submission's under way."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PAGES: Final = ("page_count", "freelist_count", "page_size")
_JOBS: Final = (
    "SELECT id, ended_ms, json_extract(CAST(job AS TEXT), '$.origin.code_hash') FROM job ORDER BY ended_ms, number"
)


@dataclass(slots=True)
class Forgotten:
    """What one run took away."""

    logs: int = 0
    log_bytes: int = 0
    copies: int = 0
    repositories: int = 0
    events: int = 0

    def __str__(self) -> str:
        """As a sentence; empty when it was nothing."""
        parts = (
            f"the logs of {self.logs} jobs ({format_bytes(self.log_bytes)})" * bool(self.logs),
            f"{self.copies} copies of code" * bool(self.copies),
            f"{self.repositories} repositories" * bool(self.repositories),
            f"{self.events} events" * bool(self.events),
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A job of the listing; `ended_ms` is None while it lives."""

    id: str
    ended_ms: int | None
    code_hash: str | None


@dataclass(slots=True)
class Retention:
    """Of one state directory. `view` gives the state that lives; `once` may be called again and again."""

    home: Home
    keep: Keep
    backend: Backend
    view: Callable[[], AbstractContextManager[State]]
    _sizes: dict[str, int] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """End a run that is under way after its step."""
        self._end.set()

    def once(self, now_ms: int) -> Forgotten:
        """Forget what is due. OSError and sqlite3.Error when something cannot be taken away; the next run tries
        again."""
        gone = Forgotten()
        with closing(sqlite3.connect(self.home.database, isolation_level=None, timeout=5.0)) as database:
            jobs = [_Listed(*row) for row in database.execute(_JOBS)]
            self._forget_logs(jobs, now_ms, gone)
            self._forget_code(jobs, now_ms, gone)
            self._forget_repositories(now_ms, gone)
            self._forget_events(database, now_ms, gone)
        return gone

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _forget_logs(self, jobs: list[_Listed], now_ms: int, gone: Forgotten) -> None:
        """By age, then, the first that ended first, until the others are within the limit."""
        sizes = {job.id: self._log_bytes(job) for job in self._steps(jobs)}
        self._sizes = {job.id: sizes[job.id] for job in jobs if job.ended_ms is not None and job.id in sizes}
        total = sum(sizes.values())
        for job in jobs:
            if job.ended_ms is None or not sizes.get(job.id) or self._end.is_set():
                continue
            if _is_over(self.keep.logs_ms, now_ms - job.ended_ms):
                why = f"it was older than {format_duration(self.keep.logs_ms or 0)} (keep.logs)"
            elif self.keep.logs_bytes is not None and total > self.keep.logs_bytes:
                why = f"all logs took more than {format_bytes(self.keep.logs_bytes)} (keep.logs_size)"
            else:
                continue
            self.backend.drop_logs(job.id, f"ganger: this log was taken away: {why} of {self.home.settings_file.name}")
            total -= sizes[job.id]
            gone.logs, gone.log_bytes = gone.logs + 1, gone.log_bytes + sizes[job.id]
            self._sizes[job.id] = 0

    def _log_bytes(self, job: _Listed) -> int:
        """Of an ended job it is looked at once: it does not change any more."""
        if job.id in self._sizes:
            return self._sizes[job.id]
        with suppress(OSError):  # it was deleted meanwhile
            return self.backend.log_bytes(job.id)
        return 0

    # -- code ---------------------------------------------------------------------------------------------------------

    def _forget_code(self, jobs: list[_Listed], now_ms: int, gone: Forgotten) -> None:
        """Copies that no job has, by age; then those that no live job has, the one used longest ago first."""
        listed = {job.code_hash for job in jobs}
        live = {job.code_hash for job in jobs if job.ended_ms is None}
        copies = sorted((_used_ms(path), path) for path in _below(self.home.code) if _DIGEST.fullmatch(path.name))
        sizes = {path: tree_bytes(path) for _, path in self._steps(copies)}
        total = sum(sizes.values())
        for used_ms, path in copies:
            age_ms = now_ms - used_ms
            if path.name in live or age_ms < YOUNG_MS or self._end.is_set():
                continue
            old = path.name not in listed and _is_over(self.keep.code_ms, age_ms)
            if old or (self.keep.code_bytes is not None and total > self.keep.code_bytes):
                _remove(path)
                total -= sizes.get(path, 0)
                gone.copies += 1
        for path in _below(self.home.code):
            if path.name.startswith(".") and now_ms - _used_ms(path) > DAY_MS:  # left by a server that was killed
                shutil.rmtree(path, ignore_errors=True)

    def _forget_repositories(self, now_ms: int, gone: Forgotten) -> None:
        """A repository is a cache: it is fetched again when somebody names it."""
        for path in _below(self.home.git):
            lock = path / "ganger.lock"
            if not lock.exists() or not _is_over(self.keep.code_ms, now_ms - _used_ms(lock)) or self._end.is_set():
                continue
            with lock.open("r") as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # somebody fetches just now
                _remove(path)
                gone.repositories += 1

    # -- events -------------------------------------------------------------------------------------------------------

    def _forget_events(self, database: sqlite3.Connection, now_ms: int, gone: Forgotten) -> None:
        """Rows from the oldest on, as long as they are too old or the file is too large, and nobody needs them."""
        last = self._last_to_forget(database)
        while not self._end.is_set():
            too_large = self.keep.events_bytes is not None and _used_bytes(database) > self.keep.events_bytes
            rows = database.execute(
                "SELECT seq, at_ms, data FROM event WHERE seq <= ? ORDER BY seq LIMIT ?", (last, ROWS_A_STEP)
            ).fetchall()
            rows = [row for row in rows if too_large or _is_over(self.keep.events_ms, now_ms - row[1])]
            if not rows:
                return
            subjects, unreadable = _subjects(rows)
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM about WHERE subject = ? AND seq = ?", subjects)
            database.executemany("DELETE FROM about WHERE seq = ?", unreadable)  # reads all of the table
            database.executemany("DELETE FROM event WHERE seq = ?", [(seq,) for seq, _, _ in rows])
            database.execute("COMMIT")
            gone.events += len(rows)
            self._end.wait(PAUSE_S)

    def _last_to_forget(self, database: sqlite3.Connection) -> int:
        """Of the rows that neither the oldest snapshot nor a live job needs, the last; 0 without a snapshot."""
        oldest = database.execute("SELECT min(seq) FROM snapshot").fetchone()[0] or 0
        with self.view() as state:
            return min([oldest, *(gang.submitted_seq - 1 for gang in state.gangs.values())])

    def _steps(self, values: list[T]) -> Iterator[T]:
        """The values, with a pause now and then; none any more once it is to end."""
        for number, value in enumerate(values):
            if self._end.is_set():
                return
            if number % ROWS_A_STEP == ROWS_A_STEP - 1:
                time.sleep(PAUSE_S)
            yield value


def tree_bytes(path: Path) -> int:
    """How much the files below a directory take."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # it went meanwhile
                total += (Path(folder) / name).lstat().st_size
    return total


def _subjects(rows: list[tuple[int, int, bytes]]) -> tuple[list[tuple[str, int]], list[tuple[int]]]:
    """Return the subjects of events, each with the event's number; and the numbers of those that cannot be read."""
    subjects, unreadable = [], []
    for seq, _, data in rows:
        try:
            subjects += [(subject, seq) for subject in about(codec.decode(data))]
        except ValueError:
            unreadable.append((seq,))
    return subjects, unreadable


def _is_over(limit_ms: int | None, age_ms: int) -> bool:
    return limit_ms is not None and age_ms >= limit_ms


def _below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def _used_ms(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns // 1_000_000
    return 0


def _used_bytes(database: sqlite3.Connection) -> int:
    """Of the file, without the pages that are free to be used again."""
    pages, free, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
    return int((pages - free) * size)


def _remove(directory: Path) -> None:
    """Out of sight at once, then gone."""
    dying = directory.with_name(f".gone-{directory.name[:16]}")
    shutil.rmtree(dying, ignore_errors=True)
    directory.rename(dying)
    shutil.rmtree(dying, ignore_errors=True)
