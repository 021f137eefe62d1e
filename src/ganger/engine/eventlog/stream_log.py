"""An event log that is read while it is written: each row goes to the readers, and nothing is kept.

For runs in virtual time, which are never restored and never queried while they last. `line` is the text form of a row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ganger import registry
from ganger.core.state.state import State
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.disk_reserve import DiskReserve
from ganger.engine.eventlog.projection import Projection
from ganger.model.event import Event, Stamped


class StreamLog:
    """A log that begins empty. `readers` get every row, in order."""

    PUBLISHES_REASONS = False

    def __init__(self, *readers: Callable[[Stamped], None]) -> None:
        """Begin without events."""
        self._readers = readers
        self.reserve = DiskReserve(None)
        self.unreadable: dict[int, str] = {}
        self._is_empty = True

    def restore(self) -> State:
        """Return the empty state. Called once, before anything is written."""
        if not self._is_empty:
            raise RuntimeError("a stream log keeps no state to restore")
        return State(find_score=registry.score)

    def encode(self, event: Event) -> bytes:
        """Return nothing: the readers get events as they are."""
        return b""

    def append(
        self,
        batch: Sequence[Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        """Pass the rows on to the readers."""
        shows()
        self._is_empty = False
        for row in batch:
            for reader in self._readers:
                reader(row)

    def snapshot(self, state: State) -> None:
        """Do nothing: nothing is restored."""


class ReasonStreamLog(StreamLog):
    """A stream log with pending reasons, as a server publishes them: that takes cycles that nothing else needs."""

    PUBLISHES_REASONS = True


def line(row: Stamped) -> bytes:
    """Return a row as one line: number, time, whether a cycle was planned after it, and the event as JSON."""
    return b"%d %d %d %s\n" % (row.seq, row.at_ms, row.closes, codec.encode(row.event))
