"""The log of a server: stderr, with few lines of a message that comes again and again, in a file that stays short.

Set up by `serve`. server.log is the stderr of the server's process, so that it also has what the interpreter says at
its end; that is why the file is shortened in place instead of being replaced.
"""

import fcntl
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

MOST_BYTES: Final = 8 << 20
KEPT_BYTES: Final = 4 << 20
"""Of a file that has grown beyond the former, the newest lines."""
LINES_A_MINUTE: Final = 10
"""Of one message, whatever it names; of the others only the number is written."""
MINUTE_S: Final = 60.0
_MOST_MESSAGES: Final = 1_000
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_Message = tuple[str, int, str]
"""The place in the source, and the first line before anything is put in: asyncio says all its errors at one place."""


class ServerLog(logging.StreamHandler[TextIO]):
    """Writes to stderr. file: the one to keep short, if stderr goes there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._file = file
        self._counts: dict[_Message, int] = {}
        self._newest: dict[_Message, dict[str, Any]] = {}
        self._minute: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
        if len(self._counts) >= _MOST_MESSAGES:
            self._write_counts()
        if self._minute is None:
            minute = threading.Timer(MINUTE_S, self._end_minute)
            minute.daemon = True
            with suppress(RuntimeError):  # no thread can be started: the interpreter ends
                minute.start()
                self._minute = minute
        message = (record.pathname, record.lineno, str(record.msg).partition("\n")[0])
        self._counts[message] = self._counts.get(message, 0) + 1
        if self._counts[message] > LINES_A_MINUTE:
            # Not the record itself, whose traceback would keep what it is about.
            said = ("name", "levelno", "levelname", "msg", "args")
            self._newest[message] = {name: getattr(record, name) for name in said}
            return
        self._write(record)

    def close(self) -> None:
        """Write what is only counted so far."""
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
        for message, said in self._newest.items():
            more = self._counts[message] - LINES_A_MINUTE
            summary = said | {"msg": f"{more} more like it in the last minute, as: {said['msg']}"}
            self._write(logging.makeLogRecord(summary))
        self._counts.clear()
        self._newest.clear()

    def _write(self, record: logging.LogRecord) -> None:
        super().emit(record)
        with suppress(OSError, ValueError):  # a stream without a file, a file without room: the next line tries again
            shorten(self.stream.fileno(), self._file)


def shorten(descriptor: int, path: Path) -> None:
    """Cut the oldest lines off the file at `path` when it is too long, if `descriptor` appends to it."""
    status = os.fstat(descriptor)
    if status.st_size <= MOST_BYTES or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
        return
    with path.open("r+b") as file:
        if os.path.samestat(status, os.fstat(file.fileno())):
            file.seek(-KEPT_BYTES, os.SEEK_END)
            newest = file.read().partition(b"\n")[2]
            file.seek(0)
            file.truncate()
            file.write(newest)


def set_up(file: Path) -> None:
    """Send what the process logs to stderr, ours from INFO on and that of others from WARNING on."""
    logging.basicConfig(handlers=[ServerLog(file)], level=logging.WARNING)
    logging.getLogger("ganger").setLevel(logging.INFO)
