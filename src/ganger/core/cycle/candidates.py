"""Iteration over pending gangs in policy order, skipping those that cannot start.

A cycle may have tens of thousands of pending gangs, of which few can start, so the cost of an order key per gang is
avoided in three steps:

1. Pending gangs wait in lanes, each sorted by age, so only the first gang of a lane that may start competes.
2. All job classes are tested at once for whether one of them may start (`core.cycle.viability`).
3. For the first gang of each lane the policy gives a lower bound of its key, for all lanes at once. The exact key is
   computed only for lanes whose bound is not above the smallest exact key.

The order is right although keys change while gangs start, since usage only grows within a cycle: a key that was
computed earlier is a lower bound of the key now. So the heap holds lower bounds, and its first entry is computed again
before it is returned: if its key is still the same, no other can be smaller, as each of them is at least its bound. An
entry whose key has grown goes back into the heap. This is the lazy evaluation of a greedy choice (Minoux, 1978).

A lane is in one of three places: among `_unkeyed` by the bound of its first gang, in the heap by a key of it, or in
neither, once none of its gangs is viable; `_rescan` brings it back if one has become viable.
"""

from bisect import bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.cycle.attempt import Blocked, Preempts, Reserved, Started
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.cycle.viability import Viability, gang_number
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.state import pending_index as columns
from ganger.core.state.pending_index import Lane, LaneEntry
from ganger.core.state.runtime_estimate import NEVER_MS

LANE_HEAD_COLUMNS: Final = (columns.OWNER, columns.NUMBER, columns.SUBMITTED, columns.PRIORITY, columns.STAYS)
"""Columns of the pending index that make up `LaneHeads`, in its order."""
MAX_SKIPPED: Final = 128
"""Gangs skipped one by one before all job classes are scanned again."""
MIN_CLASSES_TO_BOUND: Final = 4
"""Number of job classes up to which exact keys are cheaper than lower bounds, which cost a call of the policy."""
Candidate = tuple[Key, int, LaneEntry]
"""(order key, number of the gang, entry); no two keys are equal."""


class Candidates:
    """The candidates of one cycle in policy order."""

    def __init__(self, cycle: Cycle) -> None:
        """Prepare the candidates of a cycle in which no gang was tried yet."""
        self._cycle, self._lanes, self._viability = cycle, cycle.state.pending.lanes(cycle.policy), Viability(cycle)
        self._account_keys: dict[tuple[str, str], Key] = {}
        self._heap: list[Candidate] = []
        self._unkeyed: list[tuple[float, int]] = []
        """Lane heads without an exact key, smallest bound last: (lower bound of the key, row of the job_class)."""
        self._key_bounds = np.full(self._lanes.lane_numbers.limit, -np.inf)
        """By lane, the lower bound of the key of one of its gangs."""
        self._bounded_numbers = np.full(self._lanes.lane_numbers.limit, NEVER_MS, dtype=np.int64)
        """By lane, the number of the gang that the bound was computed for; it holds for later gangs too."""
        self._skip_count = 0
        self._viable: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        """By row of a job class, whether one of its gangs may start."""
        self._lane_heaps: dict[int, list[tuple[int, int]]] = {}
        """By lane, the viable job classes as a heap of (least number of the next gang, row)."""
        self._scan()

    def next(self) -> LaneEntry | None:
        """Return the first candidate, or None; it stays first until it is marked as started or refused."""
        entry = self._next()
        while entry is None and self._cycle.limits.rotate():
            self._viability.urgency.forget_all()
            self._rescan()
            entry = self._next()
        return entry

    def _next(self) -> LaneEntry | None:
        while self._fill_heap():
            key, number, entry = self._heap[0]
            if self._viability.close_if_full(entry.demand):
                if not self._viability.has_open_demand:
                    self._scan()
                if self._viability.is_exhausted:
                    return None
                continue
            if not self._viability.is_candidate(entry):
                self._skip_first()
                continue
            current_key = self._cycle.precedence.order_key(entry.gang)
            if current_key == key:
                return entry
            heapreplace(self._heap, (current_key, number, entry))
        return None

    def mark_started(self, outcome: Started) -> None:
        """Take the first candidate out if it has started, the last element of an array."""
        entry = self._heap[0][2]
        if outcome.is_last:
            heappop(self._heap)
        if self._viability.record_start(entry, outcome):
            self._rescan()
        if outcome.is_last:
            self._push_next_of(entry.lane)

    def mark_refused(self, entry: LaneEntry, outcome: Preempts | Reserved | Blocked) -> None:
        """Rule out the gangs that cannot start since this one could not."""
        if self._viability.record_refusal(entry, outcome):
            self._rescan()

    # -- the order -----------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Find all viable job classes again, and the head of each lane."""
        self._heap, self._unkeyed, self._skip_count, self._lane_heaps = [], [], 0, {}
        self._viable = self._viability.of_job_classes(slice(None))
        self._add_lane_heads(np.flatnonzero(self._viable))

    def _rescan(self) -> None:
        """Add job classes that have become viable since the last scan. Those that no longer are get skipped later."""
        index, rows_before = self._lanes.index, np.flatnonzero(~self._viable)
        new_rows = rows_before[self._viability.of_job_classes(rows_before)]
        self._viable[new_rows] = True
        for row in new_rows.tolist():
            heap = self._lane_heaps.get(index.rows[row].lane.slot)
            if heap is not None:
                heappush(heap, (index.rows[row].number, row))
        self._add_lane_heads(new_rows)

    def _add_lane_heads(self, rows: NDArray[np.intp]) -> None:
        """Queue the first viable job_class of each lane of these rows, by the lower bound of its key."""
        if len(rows) <= MIN_CLASSES_TO_BOUND:
            self._unkeyed += ((-np.inf, row) for row in rows.tolist())
            return
        cells = self._lanes.index.cells
        lanes, numbers = cells[columns.LANE, rows], cells[columns.NUMBER, rows]
        first_numbers = np.full(self._lanes.lane_numbers.limit, NEVER_MS, dtype=np.int64)
        np.minimum.at(first_numbers, lanes, numbers)
        rows = rows[numbers == first_numbers[lanes]]
        lanes, numbers = cells[columns.LANE, rows], cells[columns.NUMBER, rows]
        unbounded = np.flatnonzero(numbers < self._bounded_numbers[lanes])  # later gangs of a lane have no smaller keys
        if unbounded.size:
            heads = LaneHeads(list(self._lanes.owners), *cells[:, rows[unbounded]][list(LANE_HEAD_COLUMNS)])
            self._key_bounds[lanes[unbounded]] = self._cycle.policy.key_lower_bound(
                heads, self._cycle.state, self._cycle.now_ms
            )
            self._bounded_numbers[lanes[unbounded]] = numbers[unbounded]
        bounds = self._key_bounds[lanes]
        self._unkeyed += zip(bounds.tolist(), rows.tolist(), strict=True)
        self._unkeyed.sort(key=itemgetter(0), reverse=True)

    def _fill_heap(self) -> bool:
        """Compute exact keys until no lane can come before the first candidate; return whether there is a candidate."""
        while self._unkeyed and not (self._heap and self._unkeyed[-1][0] > self._heap[0][0][0]):
            _, row = self._unkeyed.pop()
            self._push_next_of(self._lanes.index.rows[row].lane)
        return bool(self._heap)

    def _skip_first(self) -> None:
        """Replace the first candidate, which is not viable any more, by the next of its lane."""
        self._skip_count += 1
        if self._skip_count > MAX_SKIPPED:
            self._scan()
            return
        entry = heappop(self._heap)[2]
        if not self._viability.was_tried(entry):
            self._viable[entry.job_class.row] = False
        self._push_next_of(entry.lane)

    def _push_next_of(self, lane: Lane) -> None:
        """Push the next viable gang of a lane; a job class whose gang is skipped is not viable until the next scan."""
        job_classes, heap = self._lanes.index.rows, self._lane_heap(lane)
        while heap:
            number, row = heap[0]
            job_class = job_classes[row]
            entry = None if self._viability.is_closed(job_class) else self._viability.first_entry(job_class, number - 1)
            if entry is None:
                self._viable[row] = False
                heappop(heap)
            elif entry.gang.number > number:
                self._viable[row] = False
                heapreplace(heap, (entry.gang.number, row))
            else:
                next_index = bisect_right(job_class.entries, number, key=gang_number)
                if next_index < len(job_class.entries):
                    heapreplace(heap, (job_class.entries[next_index].gang.number, row))
                else:
                    heappop(heap)
                self._push(entry)
                return

    def _lane_heap(self, lane: Lane) -> list[tuple[int, int]]:
        """Return the viable job classes of a lane as a heap, made when first needed."""
        heap = self._lane_heaps.get(lane.slot)
        if heap is None:
            viable = self._viable
            heap = [(members.number, members.row) for members in lane.job_classes.values() if viable[members.row]]
            self._lane_heaps[lane.slot] = heap
            heapify(heap)
        return heap

    def _push(self, entry: LaneEntry) -> None:
        heappush(self._heap, (self._key_lower_bound(entry), entry.gang.number, entry))

    def _key_lower_bound(self, entry: LaneEntry) -> Key:
        """Return the key with the account's usage as first seen in the cycle: the exact key or a smaller one."""
        policy, state, now_ms, owner = self._cycle.policy, self._cycle.state, self._cycle.now_ms, entry.lane.owner
        account_key = self._account_keys.get(owner)
        if account_key is None:
            account_key = self._account_keys[owner] = policy.account_key(state, *owner, now_ms)
        return join_key(account_key, policy.gang_key(entry.gang, state, now_ms))
