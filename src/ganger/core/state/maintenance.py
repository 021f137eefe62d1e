"""Maintenance windows: nodes that are unavailable for a time, whatever state they are in.

A window that is over is dropped with the next event. Source: Slurm's maintenance reservations (reference: scheduling,
section 2).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.event import MaintenanceSet


class MaintenanceWindows(dict[str, MaintenanceSet]):
    """The windows by id, in the order in which they were set.

    now_ms: the time of the cycle, else of the newest event.
    """

    def __init__(self, windows: Iterable[MaintenanceSet], now_ms: int) -> None:
        """Take these windows as they are."""
        super().__init__((window.id, window) for window in windows)
        self.now_ms = now_ms
        self._indices: dict[str, tuple[MaintenanceSet, Ints]] = {}
        self._table: NodeArrays | None = None

    def forget(self, at_ms: int) -> None:
        """Advance to `at_ms` and drop the windows that are over by then."""
        self.now_ms = at_ms
        for name in [window.id for window in self.values() if window.until_ms <= at_ms]:
            del self[name]

    def unavailable(self, nodes: NodeArrays, stays_ms: int, now_ms: int | None = None) -> Ints:
        """Return the indices of nodes that are unavailable at some point of the next `stays_ms`, from `now_ms` on.

        A node may occur more than once.
        """
        begin_ms = self.now_ms if now_ms is None else now_ms
        nodes_of_windows = [
            self.nodes_of(nodes, window) for window in self.values() if _meets(window, begin_ms, begin_ms + stays_ms)
        ]
        return np.concatenate(nodes_of_windows) if nodes_of_windows else np.zeros(0, dtype=np.int64)

    @contextmanager
    def restoring_now(self) -> Iterator[None]:
        """Restore `now_ms` at the end of the context, in which it may be changed."""
        before_ms = self.now_ms
        try:
            yield
        finally:
            self.now_ms = before_ms

    def nodes_of(self, nodes: NodeArrays, window: MaintenanceSet) -> Ints:
        """Return the indices of the window's nodes that exist."""
        if self._table is not nodes:
            self._table, self._indices = nodes, {}
        cached = self._indices.get(window.id)
        if cached is None or cached[0] is not window:
            indices = [nodes.index[name] for name in window.nodes if name in nodes.index]
            cached = self._indices[window.id] = window, np.array(indices, dtype=np.int64)
        return cached[1]

    def overlapping(self, names: Iterable[str], begin_ms: int, end_ms: int) -> list[MaintenanceSet]:
        """Return the windows that take one of these nodes away during a part of that time."""
        nodes = dict.fromkeys(names)
        windows = (window for window in self.values() if _meets(window, begin_ms, end_ms))
        return [window for window in windows if any(name in nodes for name in window.nodes)]

    def affected_nodes(self, now_ms: int) -> Iterator[str]:
        """Iterate over the names of the nodes that are unavailable now."""
        for window in self.values():
            if _meets(window, now_ms, now_ms + 1):
                yield from window.nodes

    def ends_ms(self, now_ms: int) -> list[int]:
        """Return the ends of the windows that are not over, in rising order."""
        return sorted({window.until_ms: None for window in self.values() if window.until_ms > now_ms})

    def next_ms(self, now_ms: int) -> int | None:
        """Return the first begin or end of a window after `now_ms`."""
        times_ms = (ms for window in self.values() for ms in (window.from_ms, window.until_ms))
        return min((ms for ms in times_ms if ms > now_ms), default=None)


def refusal(windows: MaintenanceWindows, nodes: NodeArrays, new: MaintenanceSet) -> str | None:
    """Return the reason why a maintenance window cannot be set, or None."""
    if new.id in windows:
        return f"maintenance {new.id} exists already"
    if not new.nodes:
        return "a maintenance needs a node"
    if new.until_ms <= new.from_ms:
        return "a maintenance ends after it begins"
    missing = [name for name in new.nodes if name not in nodes.index]
    if missing:
        return f"there is no node {missing[0]}"
    for window in windows.overlapping(new.nodes, new.from_ms, new.until_ms):
        node = next(name for name in new.nodes if name in window.nodes)
        return f"node {node} is in maintenance {window.id} in that time"
    return None


def _meets(window: MaintenanceSet, begin_ms: int, end_ms: int) -> bool:
    return window.from_ms < end_ms and begin_ms < window.until_ms
