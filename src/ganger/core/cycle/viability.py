"""Viability: which pending gangs may start in a cycle, or are urgent, so that they are tried.

The columns of `core.state.pending_index` tell for all groups of equal gangs at once which are viable: the nodes have
room for their kind, the quota of their queue allows one of it, and they do not stay too long for the reservations of
others. A class that was refused is not tried again in the cycle, nor a kind that lacks quota in its queue: nodes and
quota only become fewer within a cycle.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.cycle.attempt import Blocked, Preempts, Reserved, Started
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.cycle.urgency import Urgency
from ganger.core.queues.quota import UNLIMITED
from ganger.core.state import pending_index as columns
from ganger.core.state.pending_index import JobClass, LaneEntry, NodeDemand
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.pending_reason import ReasonCode

NO_PLACE_REASONS: Final = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE, ReasonCode.EXCLUDED)
VIABILITY_COLUMNS: Final = (columns.DEMAND, columns.QUEUE, columns.STAYS, columns.SINCE)


class Viability:
    """The viability of pending gangs in one cycle; gangs with a reservation stay viable when their class was refused.

    Attributes:
        urgency: The urgency of pending gangs.
    """

    def __init__(self, cycle: Cycle) -> None:
        """Begin with a cycle in which no gang was tried yet."""
        self._cycle, self._state, self._reservations = cycle, cycle.state, cycle.reservations
        self._reserved, self._lanes = cycle.reservations.by_gang, cycle.state.pending.lanes(cycle.policy)
        self._max_stays: dict[NodeDemand, int] = {}
        """By kind, the longest stay with which a gang that starts now delays no reservation."""
        self._reserved_max_stays: dict[NodeDemand, int] = {}
        """The same by reservations alone, whatever refused gangs have shown since."""
        self._reserved_shapes = {reservation.gang.shape: None for reservation in self._reserved.values()}
        entries = [entry for reservation in self._reserved.values() if (entry := self._lanes.entry(reservation.gang))]
        self._reserved_entries: dict[JobClass, list[LaneEntry]] = {}
        for entry in sorted(entries, key=gang_number):
            self._reserved_entries.setdefault(entry.job_class, []).append(entry)
        self._moving: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """By row of a group, whether reservations may not keep one of its gangs from starting."""
        self._moving_kinds: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """By slot of a kind, whether one of these groups is of it."""
        self._basis: tuple[object, ...] | None = None
        """The reservations that may be moved, and the queues that exceed their guarantee with one of them."""
        has_room = cycle.state.nodes.capacity_index.have_room
        cycle.precedence.begin(kind for kind in self._lanes.demands.values() if has_room(kind.parts))
        self._find_moving()
        self._has_room_now = {name: None for name in self._reserved if self._reservations.table.has_room_now(name)}
        self._kinds = {kind: None for kind in self._lanes.demands.values() if self._has_room(kind)}
        self._open_pairs = self._quota_table()
        """(queues, kinds) True where the kind may have room and the queue has quota for one gang of it."""
        self._refused: dict[tuple[object, ...], None] = {}
        self._tried_gangs: dict[str, None] = {}
        self.urgency = Urgency(cycle)

    # -- what tries have shown -----------------------------------------------------------------------------------------

    @property
    def has_open_kind(self) -> bool:
        """True if the nodes have room for a kind."""
        return bool(self._kinds)

    @property
    def is_exhausted(self) -> bool:
        """True if no kind has room and no gang is urgent."""
        return not self._kinds and not self.urgency.is_any()

    def close_if_full(self, kind: NodeDemand) -> bool:
        """Rule out a kind that the nodes have no room for any more; return whether it was open and is ruled out."""
        if kind not in self._kinds or self._has_room(kind):
            return False
        del self._kinds[kind]
        self._open_pairs[:, kind.slot] = False
        return True

    def was_tried(self, entry: LaneEntry) -> bool:
        """Return whether a gang was tried in this cycle."""
        return entry.gang.id in self._tried_gangs

    def record_start(self, entry: LaneEntry, outcome: Started) -> bool:
        """Record that a gang of an entry has started; return whether others may have become viable."""
        if outcome.is_last:
            self._tried_gangs[entry.gang.id] = None
        has_changed = self._find_moving()
        is_reserved = outcome.is_last and entry.job_class in self._reserved_entries
        if not (is_reserved or outcome.moves or (outcome.is_last and self._cycle.policy.ORDERS_RUNNING)):
            return has_changed
        # Capacity that was held for it is free for gangs with a reservation, and the next gang of its queue may get a
        # reservation before others take that capacity. Where running gangs are ordered, some of this owner's may be
        # victims now.
        self._reserved_max_stays.clear()
        self.urgency.forget(entry, others=outcome.moves)
        return True

    def record_refusal(self, entry: LaneEntry, outcome: Preempts | Reserved | Blocked) -> bool:
        """Rule out the gangs that cannot start since this one could not; return whether others may be viable now.

        These are others of its class; if it lacks quota, others of its kind in its queue; and if the nodes have no
        place in spite of free capacity, all others of its kind.
        """
        self._tried_gangs[entry.gang.id] = None
        if isinstance(outcome, Reserved):
            self._find_moving()  # others of its class may get a reservation too
        else:
            self._refused[entry.job_class.class_id] = None
        # Capacity may be held for it, and for one fewer of the others.
        has_rotated = self.urgency.forget(entry)
        if isinstance(outcome, Preempts):
            return has_rotated
        if outcome.reason is ReasonCode.OVER_QUOTA:
            self._open_pairs[entry.lane.queue_lanes.slot, entry.demand.slot] = False
        self._limit_stays(entry, outcome)
        if outcome.reason in NO_PLACE_REASONS and not self._state.tree.types:
            entry.demand.failed_at = self._growth_counters(entry.demand)
        return has_rotated

    def _limit_stays(self, entry: LaneEntry, outcome: Reserved | Blocked) -> None:
        """Rule out gangs of a kind that stay as long as one that reservations or maintenance have refused."""
        is_held = outcome.reason is ReasonCode.RESERVED
        is_maintained = outcome.reason is ReasonCode.MAINTENANCE and not self._state.tree.types
        if not (is_held or is_maintained) or self._may_move(entry.job_class) or entry.gang.expected is not None:
            return
        others_ms = outcome.max_stay_of_others_ms if is_held else entry.job_class.stays_ms - 1
        # Computed again: other gangs have started since.
        kind = entry.demand
        max_stay_ms = self._reserved_max_stay_ms(kind) if self._reserved else self._max_stay_ms(kind)
        self._max_stays[kind] = min(max_stay_ms, max(0, others_ms))

    # -- groups --------------------------------------------------------------------------------------------------------

    def of_groups(self, rows: NDArray[np.intp] | slice) -> NDArray[np.bool_]:
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
            is_open = self._open_pairs[[members.slot for members in self._lanes.queues.values()]]
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
        if viable.all():
            return viable  # urgent or not, all of them are tried
        urgent = self.urgency.of_groups(queues, kinds, since_ms)
        if urgent is None:
            return viable
        if self._reserved and not self._may_use_reservation:
            urgent &= has_unreserved[rows]
        return viable | urgent

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
        return self._cycle.policy.ORDERS_RUNNING or bool(self._cycle.holds.by_gang)

    def _find_moving(self) -> bool:
        """Find the groups that may move one of the reservations in force; return whether they may have changed."""
        movable = {name: None for name, reservation in self._reserved.items() if not reservation.owned}
        basis = movable, self._cycle.precedence.exceeding(self._reserved.values())
        if basis == self._basis:
            return False
        self._basis = basis
        self._moving = self._cycle.precedence.may_move_any(self._reserved.values())
        self._moving_kinds = np.zeros(self._lanes.demand_numbers.limit, dtype=np.bool_)
        self._moving_kinds[self._lanes.index.cells[columns.DEMAND][self._moving]] = True
        return True

    def _may_move(self, group: JobClass) -> bool:
        return bool(self._moving[group.row])

    def is_closed(self, group: JobClass) -> bool:
        """Return whether no gang of a group can be viable: it is not open, and none is urgent or has a reservation."""
        if self._is_within_quota(group) or group in self._reserved_entries:
            return False
        since_ms = self.urgency.since_ms(group)
        return since_ms is None or group.since_ms > since_ms

    # -- gangs ---------------------------------------------------------------------------------------------------------

    def first_entry(self, group: JobClass, after: int) -> LaneEntry | None:
        """Return the first viable gang of a group with a number above `after`."""
        return next((entry for entry in self._possible_entries(group, after) if self.is_candidate(entry)), None)

    def is_candidate(self, entry: LaneEntry) -> bool:
        """Return whether a gang is to be tried: it may start, or is urgent."""
        return not self._is_excluded(entry) and self._is_viable(entry)

    def _possible_entries(self, group: JobClass, after: int) -> Iterable[LaneEntry]:
        """Return the gangs of a group with a number above `after` that may be viable.

        These are all gangs if the group is open, else the urgent ones, else those with a reservation.
        """
        is_open = self._is_within_quota(group) and not self._stays_too_long(group)
        since_ms = NEVER_MS if is_open else self.urgency.since_ms(group)
        if since_ms is None or group.since_ms > since_ms or (self._refused and group.class_id in self._refused):
            reserved = self._reserved_entries.get(group, ())
            return (entry for entry in reserved if entry.gang.number > after)
        begin = bisect_right(group.entries, after, key=gang_number) if after >= 0 else 0
        # No gang has waited for longer than since its submission.
        end = None if is_open else bisect_right(group.entries, since_ms, key=_submitted_ms)
        return islice(group.entries, begin, end)

    def _is_excluded(self, entry: LaneEntry) -> bool:
        """Return whether a gang cannot be tried: it pauses, ends, was tried, or its class was refused."""
        gang = entry.gang
        if gang.retries.not_before_ms > self._cycle.now_ms or (self._cycle.ending and gang.id in self._cycle.ending):
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
        since_ms = self.urgency.since_ms(group)
        return since_ms is not None and entry.gang.since_ms <= since_ms

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

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def _has_room(self, kind: NodeDemand) -> bool:
        """Return whether the nodes have room for each part of a kind, which has not failed since room was made."""
        if self._cycle.holds.by_gang and kind.shape in self._reserved_shapes:
            return True  # capacity held since the cycle began is not held against a reserved gang
        if not self._state.nodes.capacity_index.have_room(kind.parts):
            return False
        if kind.failed_at is not None and kind.failed_at == self._growth_counters(kind):
            return False
        if not self._reserved or self._moving_kinds[kind.slot] or kind.shape in self._reserved_shapes:
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

    def _growth_counters(self, kind: NodeDemand) -> tuple[int, ...]:
        index = self._state.nodes.capacity_index
        return tuple(index.of(choice).growth for part in kind.parts for choice in part.choices)

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


def gang_number(entry: LaneEntry) -> int:
    """Return the number of an entry's gang."""
    return entry.gang.number


def _submitted_ms(entry: LaneEntry) -> int:
    return entry.gang.submitted_ms
