"""A read-only view of a log, as it was when it was opened: nothing is written, and its server goes on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ganger.engine.eventlog.event_log import EventLog
from ganger.errors import RequestError

_NEXT: Final = "name a log of this ganger: ganger.db in GANGER_HOME, or a copy of it, with its -wal where it has one"


class _LogReader(EventLog):
    """The content of the file at one moment, without later writes and removals."""

    def __init__(self, path: Path) -> None:
        """Open the log. Raise RequestError when there is nothing to read."""
        self._path = str(path)
        self._readers = threading.local()
        self.unreadable = {}
        self._wal = Path(self._path + "-wal")
        self._is_unused = not self._wal.exists()
        try:
            with path.open("rb") as file:
                is_empty = not file.read(1)
        except OSError as error:
            raise RequestError("log_failed", f"{path} cannot be read: {error.strerror}", _NEXT, 500) from None
        if is_empty or not self._has_log():
            raise RequestError("log_failed", f"{path} is empty: no server has written there", _NEXT, 500)
        self._reader().execute("BEGIN")
        self.last_seq()

    def _uri(self) -> str:
        """Return the URI; where no server has the file open, SQLite is kept from creating files beside it."""
        return super()._uri() + ("&immutable=1" if self._is_unused else "")

    def close(self) -> None:
        """Close the file. Raise RequestError when a server has begun to write it, unseen."""
        self._readers.connection.close()
        if self._is_unused and self._wal.exists():
            raise RequestError(
                "log_failed", f"a server began to write {self._path} while it was read", "read it again", 500
            )


@contextmanager
def open_snapshot(path: Path) -> Iterator[EventLog]:
    """Open the log at `path` for reading.

    Raise RequestError when there is none of this ganger, or it is damaged, which may be detected late.
    """
    log = _LogReader(path)
    yield log
    log.close()
