"""A log that is only read, as it was when it was opened: no byte is written there, and its server goes on.

Called by `simulation.from_log.recorded_days`, for the log of this user's server and for a copy of any.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ganger.engine.eventlog.event_log import EventLog
from ganger.errors import RequestError

_NEXT: Final = "name a log of this ganger: ganger.db in GANGER_HOME, or a copy of it, with its -wal where it has one"


class _LogReader(EventLog):
    """What is in the file at one moment: what is written meanwhile, or forgotten, is not seen."""

    def __init__(self, path: Path) -> None:
        """Refused: there is nothing to read."""
        self._path = str(path)
        self._readers = threading.local()
        self.unreadable = {}
        self._wal = Path(self._path + "-wal")
        self._is_still = not self._wal.exists()
        try:
            with path.open("rb") as file:
                is_empty = not file.read(1)
        except OSError as error:
            raise RequestError("log_failed", f"{path} cannot be read: {error.strerror}", _NEXT, 500) from None
        if is_empty or not self._examined():
            raise RequestError("log_failed", f"{path} is empty: no server has written there", _NEXT, 500)
        self._reader().execute("BEGIN")
        self.last_seq()

    def _uri(self) -> str:
        """Where no server has the file open, SQLite is kept from making files beside it."""
        return super()._uri() + ("&immutable=1" if self._is_still else "")

    def close(self) -> None:
        """Let the file go. Refused: a server has begun to write it, unseen."""
        self._readers.connection.close()
        if self._is_still and self._wal.exists():
            raise RequestError(
                "log_failed", f"a server began to write {self._path} while it was read", "read it again", 500
            )


@contextmanager
def reading(path: Path) -> Iterator[EventLog]:
    """The log at `path`, to read. Refused: there is none of this ganger's, or it is damaged, which may be seen late."""
    log = _LogReader(path)
    yield log
    log.close()
