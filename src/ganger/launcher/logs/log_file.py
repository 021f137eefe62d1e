"""The log of one process on the disk: whole records, appended; of a long one the beginning and the newest.

A log with a limit is cut into parts. `NAME` is the first and stays; `NAME.START` begins that many bytes after the
beginning of the log. When there are as many parts as a log may have, the oldest but the first goes for each new one, so
that the names alone tell how much is missing, and no byte that is there ever moves. Used by `logs`; read by
`errors` and `reading`.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from ganger.launcher.task_directory import now_ms

PARTS = 8
SMALLEST_PART_BYTES = 64 * 1024


class LogFile:
    """The records of one process, at most about `most_bytes` of them on the disk at once (0: any number). Survives a
    disk that takes none for a while."""

    def __init__(self, path: str, most_bytes: int = 0) -> None:
        self._path = path
        self._part_bytes = max(most_bytes // PARTS, SMALLEST_PART_BYTES) if most_bytes else 0
        self._start = 0  # where in the log the part begins that is written to
        self._size = 0  # of that part
        self._later: deque[int] = deque()  # where the parts after the first begin
        self._fd: int | None = None
        self._torn = False
        self._lost_bytes = 0
        self._why = ""
        self._append(b"")  # so that the file is there from the start

    def write(self, records: str) -> None:
        """`records` end with a line feed."""
        data = records.encode()
        if self._part_bytes and self._size >= self._part_bytes and not self._torn:
            self._next_part()
        if self._lost_bytes:
            lost = f"{now_ms()} e ganger: {self._lost_bytes} bytes of output were lost here: {self._why}\n"
            if self._append(lost.encode()):
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
        self._later.append(self._start)
        if len(self._later) == PARTS:
            with suppress(OSError):  # somebody else has removed it
                os.unlink(f"{self._path}.{self._later.popleft()}")

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> int:
        """Bytes that were not taken. After a part of a record, the next one starts on a line of its own."""
        rest = data
        try:
            if self._fd is None:
                path = f"{self._path}.{self._start}" if self._start else self._path
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if self._torn and data:
                self._size += os.write(self._fd, b"\n")
                self._torn = False
            while rest:
                taken = os.write(self._fd, rest)
                self._size += taken
                rest = rest[taken:]
                self._torn = bool(rest)
        except OSError as error:
            self._why = error.strerror or str(error)
        return len(rest)


def newest_bytes(path: str, most: int) -> tuple[bytes, bool]:
    """The last bytes of a log, and whether others are before them. Raises OSError when its directory cannot be read."""
    found = b""
    left = parts(path)
    while left and len(found) < most:
        try:
            with open(left.pop(), "rb") as file:
                length = os.fstat(file.fileno()).st_size
                start = max(length - most + len(found), 0)
                file.seek(start)
                found = file.read(length - start) + found
        except FileNotFoundError:  # it has gone just now
            continue
        if start:
            return found, True
    return found, bool(left)


def parts(path: str) -> list[str]:
    """The files that a log consists of, in its order. OSError when its directory cannot be read."""
    directory, name = os.path.split(path)
    starts = [entry[len(name) + 1 :] for entry in os.listdir(directory) if entry.startswith(f"{name}.")]
    return [path, *(f"{path}.{start}" for start in sorted(int(start) for start in starts if start.isdecimal()))]
