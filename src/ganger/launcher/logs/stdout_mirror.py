"""Output of the ranks mirrored to the launcher's stdout: `[rank] line`, and `[rank stderr] line`.

In a container `kubectl logs` shows it. Its reader may be slow: no rank waits for that; lines are dropped instead, and
their number is reported.
"""

from __future__ import annotations

import os
import selectors
from collections import deque
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.logs.log_file import LogFile

MAX_PENDING_BYTES = 1 << 20
MAX_LINE_CHARACTERS = 256 * 1024
CLOSE_WAIT_S = 2.0
_STREAMS = {"o": "", "e": " stderr"}


class StdoutMirror:
    """Writer to a file descriptor that never blocks."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        self._fd = _reopen(fd)
        self._selector = selector
        self._pending: deque[bytes] = deque()
        self._bytes = 0
        self._is_watched = False
        self._dropped = 0

    def wrap(self, log: LogFile, tag: str) -> MirroredLog:
        """Return a log whose lines are mirrored under a tag."""
        return MirroredLog(log, self, tag)

    def line(self, tag: str, text: str) -> None:
        """Write one line, or drop it if too much is pending."""
        data = f"[{tag}] {text}\n".encode("utf-8", "replace")
        if self._bytes + len(data) > MAX_PENDING_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            self._add(f"[launcher] {self._dropped} lines were dropped here: they came faster than they were read\n")
            self._dropped = 0
        self._pending.append(data)
        self._bytes += len(data)
        if not self._is_watched:
            self._write()

    def close(self) -> None:
        """Write the pending lines, as long as they are read."""
        if self._is_watched:
            self._unwatch()
        os.set_blocking(self._fd, False)
        with selectors.DefaultSelector() as selector, suppress(OSError, ValueError):
            selector.register(self._fd, selectors.EVENT_WRITE)
            while self._pending and selector.select(CLOSE_WAIT_S):
                self._flush()

    def _add(self, text: str) -> None:
        self._pending.append(text.encode())
        self._bytes += len(self._pending[-1])

    def _write(self) -> None:
        self._flush()
        if bool(self._pending) == self._is_watched:
            return
        if self._pending:
            try:
                self._selector.register(self._fd, selectors.EVENT_WRITE, self._write)
                self._is_watched = True
            except OSError:  # a file, which can always be written: the rest follows with the next line
                return
        else:
            self._unwatch()

    def _unwatch(self) -> None:
        self._selector.unregister(self._fd)
        self._is_watched = False

    def _flush(self) -> None:
        while self._pending:
            data = self._pending[0]
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                return
            except OSError:  # the reader is gone
                self._pending.clear()
                self._bytes = 0
                return
            self._bytes -= written
            self._pending.popleft()
            if written < len(data):
                self._pending.appendleft(data[written:])


class MirroredLog:
    """A log whose lines are also mirrored, under a tag."""

    def __init__(self, log: LogFile, mirror: StdoutMirror, tag: str) -> None:
        self._log = log
        self._mirror = mirror
        self._tag = tag
        self._pieces = {"o": "", "e": ""}

    def write(self, records: str) -> None:
        """Write records, as `LogFile.write` does."""
        self._log.write(records)
        for record in records.split("\n")[:-1]:
            _, letter, text = record.split(" ", 2)
            stream = letter.lower()
            if stream not in _STREAMS:  # an update of a line that has not ended
                continue
            text = self._pieces[stream] + text
            if letter == stream or len(text) > MAX_LINE_CHARACTERS:
                self._pieces[stream] = ""
                self._mirror.line(self._tag + _STREAMS[stream], text)
            else:
                self._pieces[stream] = text

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _reopen(fd: int) -> int:
    """Open the output again, so that other processes that share it are not set to non-blocking mode."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a socket
        duplicate = os.dup(fd)
        os.set_blocking(duplicate, False)
        return duplicate
