"""What the ranks print, also on the launcher's own output: `[rank] line`, and `[rank stderr] line`. Used by
`generation`, around each log.

In a container that is what `kubectl logs` shows. Whoever reads it may be slow: no rank waits for that, lines are left
out instead, and it is said how many.
"""

from __future__ import annotations

import os
import selectors
from collections import deque
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.logs.log_file import LogFile

MOST_WAITING_BYTES = 1 << 20
LONGEST_LINE_CHARACTERS = 256 * 1024
WAITED_FOR_S = 2.0  # at the very end
_STREAMS = {"o": "", "e": " stderr"}


class StdoutMirror:
    """Writes to a file descriptor as much as it takes, when it takes it."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        self._fd = _own(fd)
        self._selector = selector
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_watched = False
        self._left_out = 0

    def around(self, log: LogFile, tag: str) -> MirroredLog:
        """A log of which every line comes here too."""
        return MirroredLog(log, self, tag)

    def line(self, tag: str, text: str) -> None:
        """One line, or nothing while too much waits."""
        data = f"[{tag}] {text}\n".encode("utf-8", "replace")
        if self._bytes + len(data) > MOST_WAITING_BYTES:
            self._left_out += 1
            return
        if self._left_out:
            self._add(f"[launcher] {self._left_out} lines were left out here: they came faster than they were read\n")
            self._left_out = 0
        self._waiting.append(data)
        self._bytes += len(data)
        if not self._is_watched:
            self._write()

    def close(self) -> None:
        """Write what waits, as far as somebody reads it."""
        if self._is_watched:
            self._unwatch()
        os.set_blocking(self._fd, False)
        with selectors.DefaultSelector() as waiting, suppress(OSError, ValueError):
            waiting.register(self._fd, selectors.EVENT_WRITE)
            while self._waiting and waiting.select(WAITED_FOR_S):
                self._flush()

    def _add(self, text: str) -> None:
        self._waiting.append(text.encode())
        self._bytes += len(self._waiting[-1])

    def _write(self) -> None:
        self._flush()
        if bool(self._waiting) == self._is_watched:
            return
        if self._waiting:
            try:
                self._selector.register(self._fd, selectors.EVENT_WRITE, self._write)
                self._is_watched = True
            except OSError:  # a file, which always takes something: what is left goes out with the next line
                return
        else:
            self._unwatch()

    def _unwatch(self) -> None:
        self._selector.unregister(self._fd)
        self._is_watched = False

    def _flush(self) -> None:
        while self._waiting:
            data = self._waiting[0]
            try:
                taken = os.write(self._fd, data)
            except BlockingIOError:
                return
            except OSError:  # nobody will ever read it
                self._waiting.clear()
                self._bytes = 0
                return
            self._bytes -= taken
            self._waiting.popleft()
            if taken < len(data):
                self._waiting.appendleft(data[taken:])


class MirroredLog:
    """A log of which every line is echoed too, under a tag."""

    def __init__(self, log: LogFile, echo: StdoutMirror, tag: str) -> None:
        self._log = log
        self._echo = echo
        self._tag = tag
        self._pieces = {"o": "", "e": ""}

    def write(self, records: str) -> None:
        """LogFile.write."""
        self._log.write(records)
        for record in records.split("\n")[:-1]:
            _, letter, text = record.split(" ", 2)
            stream = letter.lower()
            text = self._pieces[stream] + text
            if letter == stream or len(text) > LONGEST_LINE_CHARACTERS:
                self._pieces[stream] = ""
                self._echo.line(self._tag + _STREAMS[letter.lower()], text)
            else:
                self._pieces[stream] = text

    def close(self) -> None:
        """LogFile.close."""
        self._log.close()


def _own(fd: int) -> int:
    """The same output, set to block for nobody else: a pipe may be shared with other processes."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a socket
        own = os.dup(fd)
        os.set_blocking(own, False)
        return own
