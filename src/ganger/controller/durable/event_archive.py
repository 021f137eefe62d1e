"""Event archive: the rows of the event log in a durable store, so that a new pod has those of earlier controllers.

A file has the rows from one event on. The newest grows until it is large enough or another policy is in force, so that
few files are written, and its name, `events/<first event>-<policy version>.gz`, tells a new controller what to begin
after. The first file of a controller also has the state that it began with.
"""

import base64
import gzip
import json
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ganger.controller.durable.store import Store, StoredFile, unpacked
from ganger.core.state.state import Image
from ganger.engine.eventlog import event_row
from ganger.engine.eventlog.event_log import LOG_FORMAT

FOLDER: Final = "events"
FILE_BYTES: Final = 1 << 20
"""Size from which a file grows no more."""
ROWS_PER_STEP: Final = 500
PAUSE_S: Final = 0.02
"""Pause between two steps of an import: the core writes to the same database."""
MAX_IMPORTED_BYTES: Final = 1 << 30
"""Size of a log beyond which nothing older is added: its disk is small."""
GAP: Final = 1_000_000
"""Distance of a controller's first event from the last file of the one before, which may have written more."""
_NAME: Final = re.compile(rf"{FOLDER}/(\d{{20}})-(\d+)\.gz")
_POLICY_SET: Final = "policy_set"
MAX_NUMBER: Final = 1 << 62
"""Largest number of an event or a policy; the database has integers of 64 bits."""


class Begin(NamedTuple):
    """Numbers that a controller's events and policy versions continue from."""

    seq: int
    policy_version: int


def continued(image: Image, begin: Begin | None) -> Image:
    """Return the image with numbers that continue those of the history, if there is one."""
    if begin is None:
        return image
    version = max(image.policy_version, begin.policy_version)
    return replace(image, seq=max(image.seq, begin.seq + GAP), policy_version=version)


def newest(store: Store) -> Begin | None:
    """Return the numbers of the newest file; None without one. Raises StoreError."""
    names = [match for file in store.list(FOLDER) if (match := _NAME.fullmatch(file.name))]
    numbers = [Begin(int(match[1]), int(match[2])) for match in names]
    return next((begin for begin in reversed(numbers) if max(begin) <= MAX_NUMBER), None)


class EventArchive:
    """Writer of a log's rows. Not thread-safe: one thread at a time calls it.

    Args:
        store: the store.
        database: the log, which a controller writes.
        begin: numbers of the state that the log begins with.
    """

    def __init__(self, store: Store, database: Path, begin: Begin) -> None:
        self._store, self._database, self._begin = store, database, begin
        self._shipped_seq, self._first_seq = begin.seq, begin.seq + 1
        self._version = begin.policy_version
        self._content = b""
        self._is_first = True

    @property
    def first_seq(self) -> int:
        """First event of this controller."""
        return self._begin.seq + 1

    def ship(self) -> int:
        """Write the rows that are not in the store yet, and return their number. Raises StoreError, sqlite3.Error."""
        count = 0
        with closing(_connect(self._database)) as database:
            while rows := database.execute(
                "SELECT seq, at_ms, closes, kind, data FROM event WHERE seq > ? ORDER BY seq LIMIT ?",
                (self._shipped_seq, ROWS_PER_STEP),
            ).fetchall():
                for part in _split_at_policies(rows):
                    self._write(database, part)
                    count += len(part)
        return count

    def _write(self, database: sqlite3.Connection, rows: list[Any]) -> None:
        """Write rows of one policy version."""
        version = _version_after(rows[0], self._version)
        if version != self._version or len(self._content) >= FILE_BYTES:
            self._content, self._first_seq, self._version = b"", rows[0][0], version
        head = []
        if self._is_first:
            ((image,),) = database.execute("SELECT image FROM beginning WHERE seq = ?", (self._begin.seq,))
            head = [{"format": LOG_FORMAT, "seq": self._begin.seq, "image": base64.b64encode(image).decode()}]
        elif not self._content:
            head = [{"format": LOG_FORMAT}]
        lines = [*head, *([*row[:4], bytes(row[4]).decode()] for row in rows)]
        member = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), compresslevel=5, mtime=0)
        content = self._content + member
        self._store.put(f"{FOLDER}/{self._first_seq:020}-{self._version}.gz", content)
        self._content, self._shipped_seq, self._is_first = content, rows[-1][0], False


def import_earlier(store: Store, database: Path, before_seq: int, closing_event: threading.Event) -> int:
    """Add rows of earlier controllers to a log, and return their number; the newest file first.

    Runs beside the controller, in small steps. A file that cannot be read is left out. Raises StoreError and
    sqlite3.Error.
    """
    count, listed = 0, store.list(FOLDER)
    files = [file for file in listed if (match := _NAME.fullmatch(file.name)) and int(match[1]) < before_seq]
    with closing(sqlite3.connect(database, isolation_level=None, timeout=5.0)) as connection:
        for file in reversed(files):
            for step in _steps(_read(store, file)):
                if closing_event.is_set() or _used_bytes(connection) > MAX_IMPORTED_BYTES:
                    return count
                connection.execute("BEGIN IMMEDIATE")
                count += sum(_insert(connection, line, before_seq) for line in step)
                connection.execute("COMMIT")
                closing_event.wait(PAUSE_S)
    return count


def _used_bytes(connection: sqlite3.Connection) -> int:
    ((pages,),), ((size,),) = (connection.execute(f"PRAGMA {name}").fetchall() for name in ("page_count", "page_size"))
    return int(pages * size)


def _read(store: Store, file: StoredFile) -> list[Any]:
    """Return the lines of a file; none if it is gone, damaged, or of another format."""
    try:
        lines = [json.loads(line) for line in unpacked(store, file).splitlines()]
        return lines if lines and lines[0]["format"] == LOG_FORMAT else []
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _insert(connection: sqlite3.Connection, line: Any, before_seq: int) -> bool:
    """Insert a line of a file; return whether it was a row that was not there. A damaged line is left out."""
    try:
        if isinstance(line, dict):
            if "image" in line and _is_number(line["seq"], before_seq):
                values = line["seq"], base64.b64decode(line["image"])
                connection.execute("INSERT OR IGNORE INTO beginning VALUES (?, ?)", values)
            return False
        seq, at_ms, closes, kind, data = line
        if not (_is_number(seq, before_seq) and _is_number(closes, 2)):
            return False
        subjects = event_row.subjects(event_row.stamped(seq, at_ms, closes, kind, data).event)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    row = (seq, at_ms, closes, kind, data.encode())
    inserted = connection.execute("INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?)", row).rowcount
    connection.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", [(subject, seq) for subject in subjects])
    return inserted > 0


def _is_number(value: Any, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _steps(lines: list[Any]) -> Iterator[list[Any]]:
    for begin in range(0, len(lines), ROWS_PER_STEP):
        yield lines[begin : begin + ROWS_PER_STEP]


def _split_at_policies(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield rows in parts of which each change of the policy begins one."""
    part = list[Any]()
    for row in rows:
        if row[3] == _POLICY_SET and part:
            yield part
            part = []
        part.append(row)
    yield part


def _version_after(row: Any, version: int) -> int:
    return int(json.loads(row[4])["version"]) if row[3] == _POLICY_SET else version


def _connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(database.absolute().as_uri() + "?mode=ro", uri=True, timeout=5.0)
