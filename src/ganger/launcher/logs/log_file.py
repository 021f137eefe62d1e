"""The log of one process on disk: whole records, appended; of a long log the beginning and the newest part.

A log with a limit is cut into parts. `NAME` is the first and stays; `NAME.START` begins START bytes after the beginning
of the log. Once the maximum number of parts exists, each new one replaces the oldest but the first, so that the names
alone tell how much is missing, and existing bytes never move.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from ganger.launcher.task_directory import now_ms

PARTS = 8
MIN_PART_BYTES = 64 * 1024


class LogFile:
    """The records of one process, at most about `most_bytes` (0: no limit); tolerates a full disk for a while."""

    def __init__(self, path: str, most_bytes: int = 0) -> None:
        self._path = path
        self._part_bytes = max(most_bytes // PARTS, MIN_PART_BYTES) if most_bytes else 0
        self._start = 0  # offset in the log of the part being written
        self._size = 0  # of that part
        self._part_starts: deque[int] = deque()  # offsets of the parts after the first
        self._fd: int | None = None
        self._is_torn = False
        self._lost_bytes = 0
        self._error = ""
        self._append(b"")  # so that the file exists from the start

    def write(self, records: str) -> None:
        """Append records, which end with a line feed."""
        data = records.encode()
        if self._part_bytes and self._size >= self._part_bytes and not self._is_torn:
            self._next_part()
        if self._lost_bytes:
            notice = f"{now_ms()} e ganger: {self._lost_bytes} bytes of output were lost here: {self._error}\n"
            if self._append(notice.encode()):
                self._lost_bytes += len(data)
                return
            self._lost_bytes = 0
        self._lost_bytes += self._append(data)

    def close(self) -> None:
        if self._lost_bytes:
            self.write("")
        self._close()

    def _next_part(self) -> None:
        self._close()
        self._start += self._size
        self._size = 0
        self._part_starts.append(self._start)
        if len(self._part_starts) == PARTS:
            with suppress(OSError):  # already removed
                os.unlink(f"{self._path}.{self._part_starts.popleft()}")

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> int:
        """Append bytes; return how many were not written. After a partial record, the next one starts on a new line."""
        rest = data
        try:
            if self._fd is None:
                path = f"{self._path}.{self._start}" if self._start else self._path
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if self._is_torn and data:
                self._size += os.write(self._fd, b"\n")
                self._is_torn = False
            while rest:
                written = os.write(self._fd, rest)
                self._size += written
                rest = rest[written:]
                self._is_torn = bool(rest)
        except OSError as error:
            self._error = error.strerror or str(error)
        return len(rest)


def newest_bytes(path: str, most: int) -> tuple[bytes, bool]:
    """Return the last bytes of a log, and whether others precede them; raise OSError if the directory is unreadable."""
    data = b""
    files = parts(path)
    while files and len(data) < most:
        try:
            with open(files.pop(), "rb") as file:
                length = os.fstat(file.fileno()).st_size
                start = max(length - most + len(data), 0)
                file.seek(start)
                data = file.read(length - start) + data
        except FileNotFoundError:  # removed since it was listed
            continue
        if start:
            return data, True
    return data, bool(files)


def parts(path: str) -> list[str]:
    """Return the files of a log in order; raise OSError if its directory cannot be read."""
    directory, name = os.path.split(path)
    starts = [entry[len(name) + 1 :] for entry in os.listdir(directory) if entry.startswith(f"{name}.")]
    return [path, *(f"{path}.{start}" for start in sorted(int(start) for start in starts if start.isdecimal()))]
