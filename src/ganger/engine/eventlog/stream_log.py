"""An event log that passes each row to its readers and keeps nothing.

It serves runs in virtual time, which are never restored and not queried while they last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ganger.core.state.state import State
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.disk_reserve import DiskReserve
from ganger.engine.eventlog.projection import Projection
from ganger.model.event import Stamped


class StreamLog:
    """A log that begins empty. `readers` receive every row, in its order."""

    TELLS = False

    def __init__(self, *readers: Callable[[Stamped], None]) -> None:
        """Begin empty."""
        self._readers = readers
        self.reserve = DiskReserve(None)
        self.unreadable: dict[int, str] = {}
        self._is_empty = True

    def restore(self) -> State:
        """Return an empty state. RuntimeError: rows have been written, of which nothing is kept."""
        if not self._is_empty:
            raise RuntimeError("nothing is kept that a state could be restored from")
        return State()

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Pass rows to the readers."""
        shows()
        self._is_empty = False
        for row in batch:
            for reader in self._readers:
                reader(row)

    def snapshot(self, state: State) -> None:
        """Do nothing: the log is never restored."""


class StreamLogWithReasons(StreamLog):
    """A log with pending reasons, as a server has it, which takes scheduling cycles that nothing else needs."""

    TELLS = True


def line(row: Stamped) -> bytes:
    """Return a row as one line: number, time, whether a cycle followed it, and the event as JSON."""
    return b"%d %d %d %s\n" % (row.seq, row.at_ms, row.closes, codec.encode(row.event))
