"""Order in which the queues of a large cluster get a reservation for their first gang: one queue a scheduling cycle.

To find the first gang of a queue a cycle considers all gangs pending in it, which on a large cluster it can afford for
one queue. It takes the queue whose oldest gang was submitted first, among those that may have one more reservation, and
the next queue if no start can be predicted for that one. The order follows from the state: a dry run and the cycle
after it choose alike, however many unrelated events come between them.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heapreplace, merge
from typing import Final

import numpy as np

from ganger.core.placement.start_check import could_ever_start, start_request
from ganger.core.state.gang import Gang
from ganger.core.state.pending import PendingLanes
from ganger.core.state.pending_index import NUMBER, QUEUE, LaneEntry
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State

LARGE_CLUSTER_NODES: Final = 500
"""Nodes beyond which the most expensive work of a cycle is bounded."""


def is_large_cluster(state: State) -> bool:
    """Return whether the cost of a cycle has to be bounded."""
    return len(state.nodes.nodes) > LARGE_CLUSTER_NODES


class QueueRotation:
    """The queues of one cycle in order of their oldest gang.

    Attributes:
        current: The queue whose first gang may get a reservation, once `queue` was read.
        moves: The number of times that another queue became current.
        has_reserved: The current queue got a reservation, so that no other one does in this cycle.
    """

    def __init__(
        self, state: State, lanes: PendingLanes, is_waiting: Callable[[Gang], bool], may_reserve: Callable[[str], bool]
    ) -> None:
        """Create the rotation.

        Args:
            state: The state of the cycle.
            lanes: The pending gangs.
            is_waiting: Tells of a gang whether it waits for a reservation.
            may_reserve: Tells of a queue whether it may have one more reservation.
        """
        self.current: str | None = None
        self.moves, self.has_reserved = 0, False
        self._state, self._lines, self._counts, self._has_room = state, lanes, is_waiting, may_reserve
        self._ahead: list[tuple[int, str, bool]] | None = None
        """Queues as a heap: number of the oldest gang, queue, whether that gang is known to wait for a reservation."""
        self._possible: dict[tuple[object, ...], bool] = {}
        """By class, whether a gang of it could ever start; a queue waits for no other gangs."""

    @property
    def queue(self) -> str | None:
        """The current queue, or None if no queue is left that may have a reservation."""
        if self._ahead is None:
            cells, queues = self._lines.index.cells, self._lines.queues
            oldest = np.full(self._lines.queue_numbers.limit, NEVER_MS, dtype=np.int64)
            np.minimum.at(oldest, cells[QUEUE], cells[NUMBER])
            self._ahead = [(int(oldest[members.slot]), name, False) for name, members in queues.items()]
            heapify(self._ahead)
            self.current = self._next()
        return self.current

    def move_on(self) -> bool:
        """Make the next queue current, unless a reservation was made; return whether there is one."""
        if self.queue is None or self.has_reserved:
            return False
        self.moves, self.current = self.moves + 1, self._next()
        return self.current is not None

    def is_unfinished(self) -> bool:
        """Return, at the end of the cycle, whether a queue was not considered since another one got its reservation."""
        return self.has_reserved and self._next() is not None

    def _next(self) -> str | None:
        """Take the next queue out of those left: the one whose oldest gang that waits for a reservation is first."""
        while self._ahead:
            _, queue, is_exact = self._ahead[0]
            oldest = None if is_exact or not self._has_room(queue) else self._oldest(queue)
            if oldest is not None:
                heapreplace(self._ahead, (oldest, queue, True))
                continue
            heappop(self._ahead)
            if is_exact and self._has_room(queue):
                return queue
        return None

    def _oldest(self, queue: str) -> int | None:
        """Return the number of the oldest gang of a queue that waits for a reservation."""
        entries = merge(*(lane.entries for lane in self._lines.queues[queue].lanes), key=_number)
        return next((entry.gang.number for entry in entries if self._is_candidate(entry)), None)

    def _is_candidate(self, entry: LaneEntry) -> bool:
        if not self._counts(entry.gang):
            return False
        of_class = entry.job_class.class_id
        if of_class not in self._possible:
            self._possible[of_class] = could_ever_start(self._state, start_request(entry.gang))
        return self._possible[of_class]


def _number(entry: LaneEntry) -> int:
    return entry.gang.number
