"""Iteration over pending gangs in policy order, skipping those that cannot start.

A cycle may have tens of thousands of pending gangs, of which few can start, so the cost of an order key per gang is
avoided in three steps:

1. Pending gangs wait in lanes, each sorted by age, so only the first gang of a lane that may start competes.
2. The columns of `core.state.pending_index` tell for all groups of equal gangs at once which are viable: the nodes have
   room for their kind, the quota of their queue allows one of it, and they do not stay too long for the reservations of
   others.
3. For the first gang of each lane the policy gives a lower bound of its key, for all lanes at once. The exact key is
   computed only for lanes whose bound is not above the smallest exact key.

A class that was refused is not tried again in the cycle, nor a kind that lacks quota in its queue: nodes and quota only
become fewer within a cycle, and usage only grows, so that a key that was computed earlier is a lower bound too.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.cycle.cycle import Cycle
from ganger.core.nodes.topology import Ints
from ganger.core.queue_order.policy_interface import Key, LaneHeads, join_key
from ganger.core.queues.quota import UNLIMITED
from ganger.core.state import pending_index as columns
from ganger.core.state.pending_index import JobClass, Lane, LaneEntry, NodeDemand
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.pending_reason import ReasonCode

NO_PLACE_REASONS: Final = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE, ReasonCode.EXCLUDED)
LANE_HEAD_COLUMNS: Final = (columns.OWNER, columns.NUMBER, columns.SUBMITTED, columns.PRIORITY, columns.STAYS)
"""Columns of the pending index that make up `LaneHeads`, in its order."""
VIABILITY_COLUMNS: Final = (columns.DEMAND, columns.QUEUE, columns.STAYS, columns.SINCE)
MAX_SKIPPED: Final = 128
"""Gangs skipped one by one before all groups are scanned again."""
MIN_GROUPS_TO_BOUND: Final = 4
"""Number of groups up to which exact keys are cheaper than lower bounds."""
Candidate = tuple[Key, int, LaneEntry]
"""(order key, number of the gang, entry); no two keys are equal."""


class Candidates:
    """The candidates of one cycle in policy order; gangs with a reservation stay when their class was refused."""

    def __init__(self, cycle: Cycle, find_urgent_since: Callable[[str, bool], int | None]) -> None:
        """Prepare the candidates of a cycle in which no gang was tried yet.

        `find_urgent_since` returns for a queue, and large gangs or others, the latest time since which a gang must have
        waited to be tried even where the nodes have no room for it, or None if no such gang is tried.
        """
        self._cycle, self._find_urgent_since = cycle, find_urgent_since
        self._state, self._now_ms, self._policy = cycle.state, cycle.now_ms, cycle.policy
        self._ending, self._reservations, self._reserved = cycle.ending, cycle.reservations, cycle.reservations.by_gang
        self._holds = cycle.capacity_holds
        self._max_stays: dict[NodeDemand, int] = {}
        """By kind, the longest stay with which a gang that starts now delays no reservation."""
        self._reserved_max_stays: dict[NodeDemand, int] = {}
        """The same by reservations alone, whatever refused gangs have shown since."""
        self._reserved_shapes = {reservation.gang.shape: None for reservation in self._reserved.values()}
        self._lanes = cycle.state.lanes(cycle.policy)
        entries = [entry for reservation in self._reserved.values() if (entry := self._lanes.entry(reservation.gang))]
        self._reserved_entries: dict[JobClass, list[LaneEntry]] = {}
        for entry in sorted(entries, key=_number):
            self._reserved_entries.setdefault(entry.job_class, []).append(entry)
        self._moving: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """By row of a group, whether reservations may not keep one of its gangs from starting."""
        self._moving_kinds: dict[int, None] = {}
        """Slots of the kinds of these groups."""
        self._find_moving()
        self._has_room_now = {name: None for name in self._reserved if self._reservations.table.has_room_now(name)}
        self._kinds = {kind: None for kind in self._lanes.demands.values() if self._has_room(kind)}
        self._queue_numbers = [members.slot for members in self._lanes.queues.values()]
        self._open_pairs = self._quota_table()
        """(queues, kinds) True where the kind may have room and the queue has quota for one gang of it."""
        self._urgent_since: dict[tuple[str, bool], int | None] = {}
        self._cycle_bounds = cycle.bounds
        large = cycle.state.rules.reservations.large
        min_nodes = large.nodes if large.per_queue != 0 else NEVER_MS
        self._large_kinds = {kind: None for kind in self._lanes.demands.values() if kind.shape.all_nodes >= min_nodes}
        self._refused: dict[tuple[object, ...], None] = {}
        self._tried_gangs: dict[str, None] = {}
        self._oldest_since_ms: int | None = None
        self._account_keys: dict[tuple[str, str], Key] = {}
        self._heap: list[Candidate] = []
        self._unkeyed: list[tuple[float, int]] = []
        """Lane heads without an exact key, smallest bound last: (lower bound of the key, row of the group)."""
        self._key_bounds = np.full(self._lanes.lane_numbers.limit, -np.inf)
        """By lane, the lower bound of the key of one of its gangs."""
        self._bounded_numbers = np.full(self._lanes.lane_numbers.limit, NEVER_MS, dtype=np.int64)
        """By lane, the number of the gang that the bound was computed for; it holds for later gangs too."""
        self._skip_count = 0
        self._viable: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        """By row of a group, whether one of its gangs may start."""
        self._lane_heaps: dict[int, list[tuple[int, int]]] = {}
        """By lane, the viable groups as a heap of (least number of the next gang, row)."""
        self._scan()

    def next(self) -> LaneEntry | None:
        """Return the first candidate, or None; it stays first until it is marked as started or refused."""
        entry = self._next()
        while entry is None and self._cycle.rotate():
            self._urgent_since.clear()
            self._rescan()
            entry = self._next()
        return entry

    def _next(self) -> LaneEntry | None:
        while self._fill_heap():
            key, number, entry = self._heap[0]
            if entry.demand in self._kinds and not self._has_room(entry.demand):
                self._close_kind(entry.demand)
                if self._is_exhausted():
                    return None
                continue
            if self._is_excluded(entry) or not self._is_viable(entry):
                self._skip_first()
                continue
            current_key = self._order_key(entry)
            if current_key == key:
                return entry
            heapreplace(self._heap, (current_key, number, entry))
        return None

    def mark_started(self) -> None:
        """Take the first candidate out: it has started."""
        entry = heappop(self._heap)[2]
        self._tried_gangs[entry.gang.id] = None
        has_reserved = entry.job_class in self._reserved_entries or (self._reserved and self._may_move(entry.job_class))
        if self._policy.ORDERS_RUNNING or has_reserved:
            # Capacity that was held for it is free for gangs with a reservation, and the next gang of its queue may get
            # a reservation before others take that capacity. Where running gangs are ordered, some of this owner's may
            # be victims now.
            self._reserved_max_stays.clear()
            self._forget_urgency(entry, others=self._may_move(entry.job_class))
            self._rescan()
        self._push_next_of(entry.lane)

    def mark_refused(self, entry: LaneEntry, reason: ReasonCode) -> None:
        """Rule out the gangs that cannot start since this one could not.

        These are others of its class; if it lacks quota, others of its kind in its queue; and if the nodes have no
        place in spite of free capacity, all others of its kind.
        """
        decided, is_urgent = self._reservations.changes, self._urgent_since_ms(entry.job_class) is not None
        if entry.gang.id not in decided and not (is_urgent and entry.gang.id in self._reserved):
            # Otherwise others of its class may get a reservation too.
            self._refused[entry.job_class.class_id] = None
        self._tried_gangs[entry.gang.id] = None
        if entry.gang.id in decided:
            self._find_moving()
        if self._forget_urgency(entry):  # capacity may be held for it, and for one fewer of the others
            self._rescan()
        if reason is ReasonCode.OVER_QUOTA:
            self._open_pairs[entry.lane.queue_lanes.slot, entry.demand.slot] = False
        is_longer = reason is ReasonCode.RESERVED or (reason is ReasonCode.MAINTENANCE and not self._state.tree.types)
        if is_longer and not self._may_move(entry.job_class) and entry.gang.expected is None:
            is_held = reason is ReasonCode.RESERVED
            others_ms = self._reservations.max_stay_of_others_ms if is_held else entry.job_class.stays_ms - 1
            # Computed again: other gangs have started since.
            max_stay_ms = (
                self._reserved_max_stay_ms(entry.demand) if self._reserved else self._max_stay_ms(entry.demand)
            )
            self._max_stays[entry.demand] = min(max_stay_ms, max(0, others_ms))
        if reason in NO_PLACE_REASONS and not self._state.tree.types:
            entry.demand.failed_at = self._growth_counters(entry.demand)

    # -- the order -----------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Find all viable groups anew, and the head of each lane."""
        self._heap, self._unkeyed, self._skip_count, self._lane_heaps = [], [], 0, {}
        self._viable = self._find_viable_groups(slice(None))
        self._add_lane_heads(np.flatnonzero(self._viable))

    def _rescan(self) -> None:
        """Add groups that have become viable since the last scan. Those that no longer are get skipped later."""
        groups, rows_before = self._lanes.index, np.flatnonzero(~self._viable)
        new_rows = rows_before[self._find_viable_groups(rows_before)]
        self._viable[new_rows] = True
        for row in new_rows.tolist():
            heap = self._lane_heaps.get(groups.rows[row].lane.slot)
            if heap is not None:
                heappush(heap, (groups.rows[row].number, row))
        self._add_lane_heads(new_rows)

    def _add_lane_heads(self, rows: NDArray[np.intp]) -> None:
        """Queue the first viable group of each lane of these rows, by the lower bound of its key."""
        if len(rows) <= MIN_GROUPS_TO_BOUND:
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
            self._key_bounds[lanes[unbounded]] = self._policy.key_lower_bound(heads, self._state, self._now_ms)
            self._bounded_numbers[lanes[unbounded]] = numbers[unbounded]
        bounds = self._key_bounds[lanes]
        self._unkeyed += zip(bounds.tolist(), rows.tolist(), strict=True)
        self._unkeyed.sort(key=itemgetter(0), reverse=True)

    def _find_viable_groups(self, rows: NDArray[np.intp] | slice) -> NDArray[np.bool_]:
        """Return (rows,) True for groups of which one gang may start, or is urgent.

        A group is viable if its kind is open in its queue, and a gang of it stays short enough to delay no reservation
        or holds a reservation that it can use.
        """
        groups = self._lanes.index
        kinds, queues, stays_ms, since_ms = (groups.cells[column, rows] for column in VIABILITY_COLUMNS)
        viable: NDArray[np.bool_] = np.zeros(len(kinds), dtype=bool)
        has_unreserved = np.ones(len(groups.rows), dtype=bool)
        reserved_rows = [group.row for group in self._reserved_entries]
        has_unreserved[reserved_rows] = self._have_unreserved()
        if self._kinds:
            is_open = self._open_pairs[self._queue_numbers]
            is_open_anywhere = np.logical_or.reduce(is_open)
            viable = is_open_anywhere[kinds]
            if not (is_open == is_open_anywhere).all():
                viable &= self._open_pairs[queues, kinds]
            if self._reserved or self._max_stays:
                reserved_may_start = np.zeros(len(groups.rows), dtype=bool)
                reserved_may_start[reserved_rows] = self._can_reserved_start()
                max_stay_ms = np.full(self._open_pairs.shape[1], NEVER_MS, dtype=np.int64)
                for open_kind in self._kinds:
                    max_stay_ms[open_kind.slot] = self._max_stay_ms(open_kind)
                is_short = (stays_ms <= max_stay_ms[kinds]) | self._moving[rows]
                viable &= reserved_may_start[rows] | (is_short & has_unreserved[rows])
        urgent = self._are_urgent(queues, kinds, since_ms)
        if urgent is None:
            return viable
        if self._reserved and not self._may_use_reservation:
            urgent &= has_unreserved[rows]
        return viable | urgent

    def _are_urgent(self, queues: Ints, kinds: Ints, since_ms: Ints) -> NDArray[np.bool_] | None:
        """Return (N,) True for groups with an urgent gang, or None if no group has one."""
        queue_count, kind_count = self._open_pairs.shape
        urgent_since = np.full((2, queue_count), -1, dtype=np.int64)
        for name, members in self._lanes.queues.items():
            for large in (False, True) if self._large_kinds else (False,):
                latest_ms = self._queue_urgent_since_ms(name, large=large)
                urgent_since[int(large), members.slot] = -1 if latest_ms is None else latest_ms
        if not (urgent_since >= 0).any():
            return None
        is_large = np.zeros(kind_count, dtype=np.int64)
        is_large[[large_kind.slot for large_kind in self._large_kinds]] = 1
        urgent: NDArray[np.bool_] = since_ms <= urgent_since[is_large[kinds], queues]
        return urgent

    def _can_reserved_start(self) -> NDArray[np.bool_]:
        """Return, for each group with reservations, whether one of its reserved gangs can start."""
        groups = self._reserved_entries.values()
        return np.array([not all(map(self._is_blocked, entries)) for entries in groups], dtype=bool)

    def _have_unreserved(self) -> NDArray[np.bool_]:
        """Return, for each group with reservations, whether it has gangs without one."""
        groups = self._reserved_entries.items()
        return np.array([len(group.entries) > len(entries) for group, entries in groups], dtype=bool)

    @property
    def _may_use_reservation(self) -> bool:
        """True if a try may preempt others for a gang with a reservation, or let it use held capacity."""
        return self._policy.ORDERS_RUNNING or bool(self._holds)

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
        if entry.gang.id not in self._tried_gangs:
            self._viable[entry.job_class.row] = False
        self._push_next_of(entry.lane)

    def _push_next_of(self, lane: Lane) -> None:
        """Push the next viable gang of a lane; a group whose gang is skipped is not viable until the next scan."""
        groups, heap = self._lanes.index.rows, self._lane_heap(lane)
        while heap:
            number, row = heap[0]
            group = groups[row]
            entry = None if self._is_closed(group) else self._first_candidate(group, number - 1)
            if entry is None:
                self._viable[row] = False
                heappop(heap)
            elif entry.gang.number > number:
                self._viable[row] = False
                heapreplace(heap, (entry.gang.number, row))
            else:
                next_index = bisect_right(group.entries, number, key=_number)
                if next_index < len(group.entries):
                    heapreplace(heap, (group.entries[next_index].gang.number, row))
                else:
                    heappop(heap)
                self._push(entry)
                return

    def _lane_heap(self, lane: Lane) -> list[tuple[int, int]]:
        """Return the viable groups of a lane as a heap, made when first needed."""
        heap = self._lane_heaps.get(lane.slot)
        if heap is None:
            viable = self._viable
            heap = [(group.number, group.row) for group in lane.job_classes.values() if viable[group.row]]
            self._lane_heaps[lane.slot] = heap
            heapify(heap)
        return heap

    def _first_candidate(self, group: JobClass, after: int) -> LaneEntry | None:
        """Return the first viable gang of a group with a number above `after`."""
        possible = (entry for entry in self._possible_entries(group, after) if not self._is_excluded(entry))
        return next((entry for entry in possible if self._is_viable(entry)), None)

    def _possible_entries(self, group: JobClass, after: int) -> Iterable[LaneEntry]:
        """Return the gangs of a group with a number above `after` that may be viable.

        These are all gangs if the group is open, else the urgent ones, else those with a reservation.
        """
        since_ms = self._urgent_since_ms(group)
        is_open = self._is_within_quota(group) and not self._stays_too_long(group)
        is_urgent = since_ms is not None and group.since_ms <= since_ms
        if not (is_open or is_urgent) or (self._refused and group.class_id in self._refused):
            reserved = self._reserved_entries.get(group, ())
            return (entry for entry in reserved if entry.gang.number > after)
        begin = bisect_right(group.entries, after, key=_number) if after >= 0 else 0
        # No gang has waited for longer than since its submission.
        end = None if is_open or since_ms is None else bisect_right(group.entries, since_ms, key=_submitted_ms)
        return islice(group.entries, begin, end)

    def _push(self, entry: LaneEntry) -> None:
        heappush(self._heap, (self._key_lower_bound(entry), entry.gang.number, entry))

    # -- which gangs are viable ----------------------------------------------------------------------------------------

    def _find_moving(self) -> None:
        """Find the groups that may move one of the reservations in force."""
        self._moving = self._cycle.precedence.may_move_any(self._reserved.values())
        demands = self._lanes.index.cells[columns.DEMAND]
        self._moving_kinds = dict.fromkeys(np.unique(demands[self._moving]).tolist())

    def _may_move(self, group: JobClass) -> bool:
        return bool(self._moving[group.row])

    def _is_closed(self, group: JobClass) -> bool:
        """Return whether no gang of a group can be viable: it is not open, and none is urgent or has a reservation."""
        if self._is_within_quota(group) or group in self._reserved_entries:
            return False
        since_ms = self._urgent_since_ms(group)
        return since_ms is None or group.since_ms > since_ms

    def _has_room(self, kind: NodeDemand) -> bool:
        """Return whether the nodes have room for each part of a kind, which has not failed since room was made."""
        if self._holds and kind.shape in self._reserved_shapes:
            return True  # capacity held since the cycle began is not held against a reserved gang
        if not self._state.nodes.capacity_index.have_room(kind.parts):
            return False
        if kind.failed_at is not None and kind.failed_at == self._growth_counters(kind):
            return False
        if not self._reserved or kind.slot in self._moving_kinds or kind.shape in self._reserved_shapes:
            return True
        return min(kind.stays) <= self._max_stay_ms(kind)

    def _max_stay_ms(self, kind: NodeDemand) -> int:
        """Return the longest stay with which a gang of the kind that starts now delays no reservation."""
        if kind not in self._max_stays:
            self._max_stays[kind] = self._reserved_max_stay_ms(kind) if self._reserved else NEVER_MS
        return self._max_stays[kind]

    def _reserved_max_stay_ms(self, kind: NodeDemand) -> int:
        max_stay_ms = self._reserved_max_stays[kind] = self._reservations.table.max_stay_ms(kind.parts)
        return max_stay_ms

    def _stays_too_long(self, group: JobClass) -> bool:
        """Return whether a gang of the group would delay a reservation or run into maintenance, wherever it started."""
        if self._may_move(group) or not (self._reserved or self._max_stays):
            return False
        max_stay_ms = self._max_stays.get(group.demand)
        return group.stays_ms > (self._max_stay_ms(group.demand) if max_stay_ms is None else max_stay_ms)

    def _has_reservation(self, entry: LaneEntry) -> bool:
        return entry.job_class in self._reserved_entries and entry.gang.id in self._reserved

    def _is_blocked(self, entry: LaneEntry) -> bool:
        """Return whether a gang with a reservation would delay that of another, wherever it started.

        Its own reservation counts too as long as that has no room yet, which makes no difference.
        """
        if self._may_move(entry.job_class) or entry.gang.id in self._has_room_now:
            return False
        kind = entry.demand
        max_stay_ms = self._reserved_max_stays.get(kind)
        return entry.job_class.stays_ms > (self._reserved_max_stay_ms(kind) if max_stay_ms is None else max_stay_ms)

    def _growth_counters(self, kind: NodeDemand) -> tuple[int, ...]:
        index = self._state.nodes.capacity_index
        return tuple(index.of(choice).growth for part in kind.parts for choice in part.choices)

    def _order_key(self, entry: LaneEntry) -> Key:
        return self._policy.key(entry.gang, self._state, self._now_ms)

    def _key_lower_bound(self, entry: LaneEntry) -> Key:
        """Return the key with the account's usage as first seen in the cycle: the exact key or a smaller one."""
        owner = entry.lane.owner
        account_key = self._account_keys.get(owner)
        if account_key is None:
            account_key = self._account_keys[owner] = self._policy.account_key(self._state, *owner, self._now_ms)
        return join_key(account_key, self._policy.gang_key(entry.gang, self._state, self._now_ms))

    def _urgent_since_ms(self, group: JobClass) -> int | None:
        if group.unadmitted:
            return None  # it starts only in free capacity
        return self._queue_urgent_since_ms(group.lane.queue, large=group.demand in self._large_kinds)

    def _queue_urgent_since_ms(self, queue: str, *, large: bool) -> int | None:
        """Return the latest time since which a gang of the queue must have waited to be urgent."""
        scope = queue, large
        if scope not in self._urgent_since:
            self._urgent_since[scope] = self._find_urgent_since(*scope)
        return self._urgent_since[scope]

    def _forget_urgency(self, entry: LaneEntry, *, others: bool = False) -> bool:
        """Forget urgency that a try may have changed, of all queues if `others`.

        Return whether the rotation has reached another queue, whose gangs may be urgent now.
        """
        old_bounds, self._cycle_bounds = self._cycle_bounds, self._cycle.bounds
        if others or old_bounds != self._cycle_bounds:
            self._urgent_since.clear()
        for large in (False, True):
            self._urgent_since.pop((entry.gang.queue, large), None)
        return old_bounds[-1] != self._cycle_bounds[-1]

    def _close_kind(self, kind: NodeDemand) -> None:
        """Rule out a kind that the nodes have no room for any more."""
        del self._kinds[kind]
        self._open_pairs[:, kind.slot] = False
        if not self._kinds:
            self._scan()

    def _is_exhausted(self) -> bool:
        """Return whether no kind has room and no gang is urgent."""
        if self._kinds:
            return False
        sizes = (False, True) if self._large_kinds else (False,)
        since = (self._queue_urgent_since_ms(queue, large=large) for queue in self._lanes.queues for large in sizes)
        urgent = [since_ms for since_ms in since if since_ms is not None]
        if not urgent:
            return True
        if self._oldest_since_ms is None:
            self._oldest_since_ms = min((lane.since_ms for lane in self._lanes.by_key.values()), default=NEVER_MS)
        return self._oldest_since_ms > max(urgent)

    def _is_excluded(self, entry: LaneEntry) -> bool:
        """Return whether a gang cannot be tried: it pauses, ends, was tried, or its class was refused."""
        gang = entry.gang
        if gang.not_before_ms > self._now_ms or (self._ending and gang.id in self._ending):
            return True
        if gang.id in self._tried_gangs:
            return True
        return bool(self._refused) and entry.job_class.class_id in self._refused and not self._has_reservation(entry)

    def _is_viable(self, entry: LaneEntry) -> bool:
        """Return whether a gang may start, or is urgent."""
        group = entry.job_class
        is_open, has_reservation = self._is_within_quota(group), self._has_reservation(entry)
        if is_open and not (self._is_blocked(entry) if has_reservation else self._stays_too_long(group)):
            return True
        if has_reservation and not self._may_use_reservation:
            return False
        since_ms = self._urgent_since_ms(group)
        return since_ms is not None and entry.gang.since_ms <= since_ms

    def _is_within_quota(self, group: JobClass) -> bool:
        """Return whether the kind of a group is open in its queue."""
        return bool(self._open_pairs[group.lane.queue_lanes.slot, group.demand.slot])

    def _quota_table(self) -> NDArray[np.bool_]:
        """Return (queues, kinds) True where the kind has room and the queue has the quota for one gang of it."""
        tree, kinds = self._state.tree, list(self._kinds)
        demand = np.array([tree.wanted(kind.shape) for kind in kinds], dtype=np.int64).reshape(-1, len(tree.resources))
        kind_columns, is_free_of = [kind.slot for kind in kinds], demand == 0
        size = self._lanes.queue_numbers.limit, self._lanes.demand_numbers.limit
        table: NDArray[np.bool_] = np.zeros(size, dtype=bool)
        for queue, members in self._lanes.queues.items():
            queue_index = tree.index[queue]
            available = [min(UNLIMITED, tree.available(queue_index, r)) for r in range(len(tree.resources))]
            table[members.slot, kind_columns] = (is_free_of | (demand <= np.array(available))).all(axis=1)
        return table


def _number(entry: LaneEntry) -> int:
    return entry.gang.number


def _submitted_ms(entry: LaneEntry) -> int:
    return entry.gang.submitted_ms
