"""An event log that is read while it is written: each row goes to whoever takes it, and nothing is kept.

For runs in virtual time, which nobody restores and nobody asks while they last. Given to `engine.loop` by
`simulation.run`; `line` is how a row is written where somebody wants the log itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ganger.core.state.state import State
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.disk_reserve import DiskReserve
from ganger.engine.eventlog.projection import Projection
from ganger.model.event import Stamped


class StreamLog:
    """A log that begins empty. `readers` are told of every row, in its order."""

    TELLS = False

    def __init__(self, *readers: Callable[[Stamped], None]) -> None:
        """Nothing has happened."""
        self._readers = readers
        self.reserve = DiskReserve(None)
        self.unreadable: dict[int, str] = {}
        self._is_empty = True

    def restore(self) -> State:
        """Nothing is kept: asked once, before anything is written."""
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
        """Hand on what happened."""
        shows()
        self._is_empty = False
        for row in batch:
            for reader in self._readers:
                reader(row)

    def snapshot(self, state: State) -> None:
        """Nothing is restored."""


class StreamedEvent(StreamLog):
    """One in which those who wait are told why, as a server tells them: that takes rounds that nobody else needs."""

    TELLS = True


def line(row: Stamped) -> bytes:
    """A row as one line: number, time, whether a round was planned after it, and the event as JSON."""
    return b"%d %d %d %s\n" % (row.seq, row.at_ms, row.closes, codec.encode(row.event))
