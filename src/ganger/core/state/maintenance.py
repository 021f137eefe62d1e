"""Maintenance: nodes that are not there from a moment until another, whatever state they are in.

Owned by `core.state.state`, a fold of `MaintenanceSet` and `MaintenanceCleared`; asked by `core.placement.start_check`
for the nodes that a start must leave alone, by `core.reservations.capacity_forecast` and
`core.reservations.reservations` for promised starts, by `core.cycle.plan` for who has to leave and when time alone does
something. One that is over is dropped with the next event. Source: Slurm's maintenance reservations (reference:
scheduling, section 2)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.event import MaintenanceSet


class MaintenanceWindows(dict[str, MaintenanceSet]):
    """By id, in the order in which they were said. now_ms: of the round, or else of the newest event."""

    def __init__(self, every: Iterable[MaintenanceSet], now_ms: int) -> None:
        """These, as they are."""
        super().__init__((window.id, window) for window in every)
        self.now_ms = now_ms
        self._at: dict[str, tuple[MaintenanceSet, Ints]] = {}
        self._table: NodeArrays | None = None

    def forget(self, at_ms: int) -> None:
        """Drop what is over by then: from now on it is then."""
        self.now_ms = at_ms
        for name in [window.id for window in self.values() if window.until_ms <= at_ms]:
            del self[name]

    def away(self, nodes: NodeArrays, stays_ms: int, now_ms: int | None = None) -> Ints:
        """Nodes, by index, that are not there for all of so long from now on, or from another moment. A node may occur
        more than once."""
        begin_ms = self.now_ms if now_ms is None else now_ms
        there = [self.at(nodes, window) for window in self.values() if _meets(window, begin_ms, begin_ms + stays_ms)]
        return np.concatenate(there) if there else np.zeros(0, dtype=np.int64)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Inside it `now_ms` may be another moment."""
        before_ms = self.now_ms
        try:
            yield
        finally:
            self.now_ms = before_ms

    def at(self, nodes: NodeArrays, window: MaintenanceSet) -> Ints:
        """The nodes of one, by index, as far as they are there."""
        if self._table is not nodes:
            self._table, self._at = nodes, {}
        known = self._at.get(window.id)
        if known is None or known[0] is not window:
            there = [nodes.index[name] for name in window.nodes if name in nodes.index]
            known = self._at[window.id] = window, np.array(there, dtype=np.int64)
        return known[1]

    def meeting(self, names: Iterable[str], begin_ms: int, end_ms: int) -> list[MaintenanceSet]:
        """Those in which one of these nodes is not there for a part of that time."""
        wanted = dict.fromkeys(names)
        met = (window for window in self.values() if _meets(window, begin_ms, end_ms))
        return [window for window in met if any(name in wanted for name in window.nodes)]

    def under_way(self, now_ms: int) -> Iterator[str]:
        """Nodes that are not there now."""
        for window in self.values():
            if _meets(window, now_ms, now_ms + 1):
                yield from window.nodes

    def ends_ms(self, now_ms: int) -> list[int]:
        """When each ends that is not over, the first first."""
        return sorted({window.until_ms: None for window in self.values() if window.until_ms > now_ms})

    def next_ms(self, now_ms: int) -> int | None:
        """The first moment after now at which one begins or ends."""
        moments = (ms for window in self.values() for ms in (window.from_ms, window.until_ms))
        return min((ms for ms in moments if ms > now_ms), default=None)


def refusal(windows: MaintenanceWindows, nodes: NodeArrays, asked: MaintenanceSet) -> str | None:
    """Why a maintenance cannot be set, or None."""
    if asked.id in windows:
        return f"maintenance {asked.id} exists already"
    if not asked.nodes:
        return "a maintenance needs a node"
    if asked.until_ms <= asked.from_ms:
        return "a maintenance ends after it begins"
    missing = [name for name in asked.nodes if name not in nodes.index]
    if missing:
        return f"there is no node {missing[0]}"
    for window in windows.meeting(asked.nodes, asked.from_ms, asked.until_ms):
        node = next(name for name in asked.nodes if name in window.nodes)
        return f"node {node} is in maintenance {window.id} in that time"
    return None


def _meets(window: MaintenanceSet, begin_ms: int, end_ms: int) -> bool:
    return window.from_ms < end_ms and begin_ms < window.until_ms
