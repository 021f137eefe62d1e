"""The log of a server: stderr, rate-limited per message, in a file of limited size.

server.log is the stderr of the server's process, so that it also gets what the interpreter prints at its end; hence
the file is shortened in place instead of being replaced.
"""

import fcntl
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from ganger.settings import log_level

MAX_BYTES: Final = 8 << 20
KEPT_BYTES: Final = 4 << 20
"""Newest lines that are kept of a file that has grown beyond MAX_BYTES."""
LINES_PER_MINUTE: Final = 10
"""Lines of one message, with any arguments; beyond it only their number is written."""
MINUTE_S: Final = 60.0
_MAX_MESSAGES: Final = 1_000
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_Message = tuple[str, int, str]
"""The place in the source and the first line of the format: asyncio logs all its errors at one place."""


class ServerLog(logging.StreamHandler[TextIO]):
    """Writes to stderr. file: the one to keep short, if stderr is redirected there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._file = file
        self._counts: dict[_Message, int] = {}
        self._newest: dict[_Message, dict[str, Any]] = {}
        self._minute: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
        if len(self._counts) >= _MAX_MESSAGES:
            self._write_counts()
        if self._minute is None:
            minute = threading.Timer(MINUTE_S, self._end_minute)
            minute.daemon = True
            with suppress(RuntimeError):  # no thread can be started while the interpreter exits
                minute.start()
                self._minute = minute
        message = (record.pathname, record.lineno, str(record.msg).partition("\n")[0])
        self._counts[message] = self._counts.get(message, 0) + 1
        if self._counts[message] > LINES_PER_MINUTE:
            # Not the record itself, whose traceback would keep its objects alive.
            attributes = ("name", "levelno", "levelname", "msg", "args")
            self._newest[message] = {name: getattr(record, name) for name in attributes}
            return
        self._write(record)

    def close(self) -> None:
        """Write the counts so far."""
        self._end_minute()
        super().close()

    def _end_minute(self) -> None:
        self.acquire()
        try:
            if self._minute is not None:
                self._minute.cancel()
                self._minute = None
            self._write_counts()
        finally:
            self.release()

    def _write_counts(self) -> None:
        for message, attributes in self._newest.items():
            omitted = self._counts[message] - LINES_PER_MINUTE
            summary = attributes | {"msg": f"{omitted} more like this in the last minute: {attributes['msg']}"}
            self._write(logging.makeLogRecord(summary))
        self._counts.clear()
        self._newest.clear()

    def _write(self, record: logging.LogRecord) -> None:
        super().emit(record)
        with suppress(OSError, ValueError):  # no file behind the stream, or a full disk: retried with the next line
            shorten(self.stream.fileno(), self._file)


def shorten(descriptor: int, path: Path) -> None:
    """Cut the oldest lines off the file at `path` if it is too long and `descriptor` appends to it."""
    status = os.fstat(descriptor)
    if status.st_size <= MAX_BYTES or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
        return
    with path.open("r+b") as file:
        if os.path.samestat(status, os.fstat(file.fileno())):
            file.seek(-KEPT_BYTES, os.SEEK_END)
            newest = file.read().partition(b"\n")[2]
            file.seek(0)
            file.truncate()
            file.write(newest)


def set_up(file: Path) -> None:
    """Send log records to stderr: those of ganger as GANGER_LOG says, others from WARNING on. Raise SettingsError."""
    level = log_level(os.environ)
    logging.basicConfig(handlers=[ServerLog(file)], level=logging.WARNING)
    logging.getLogger("ganger").setLevel(level)
