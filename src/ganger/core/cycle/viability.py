"""Viability: which pending gangs may start in a cycle, or are urgent, so that they are tried.

The idea: most of the pending gangs cannot start, and most of them for the same few reasons. The columns of
`core.state.pending_index` tell for all job classes at once which may start; what a try shows of one gang rules out all
that it holds for. What is ruled out is never found again by looking at each gang.

All of it rests on one invariant: **within a cycle nodes and quota only become fewer, and usage only grows**, until
nothing is tried any more (step 6 of `core.cycle.cycle`). So a no is a no until the end of the cycle, unless the table
says what takes it back. A yes is none: it is looked at again before a gang is tried (`is_candidate`), and the try
decides. A gang that is tried in vain costs time; one that is left out by mistake would starve, so each test here is a
necessary condition of what a try asks. `tests/laws/oracles/simple_candidates.py` is the reference: it tries all.

| a gang is ruled out | since | until |
|---|---|---|
| its demand is *closed*: too little room | the start of the cycle, `close_if_full` | the end |
| or its queue lacks quota for one of it | the start of the cycle, a try that lacked quota | the end |
| it *stays too long* (`_stays_too_long`) | reservations, or a try that they or maintenance refused | others move |
| its class was *refused* | a try that got no reservation | the end; not if it has one |
| it was *tried* itself | a try | the end |
| it ends with the cycle, or pauses | the state | the end |
| its reservation is blocked by others | reservations | a start has moved some |

A gang that is ruled out for its demand, quota or stay is tried all the same while it is *urgent*
(`core.cycle.urgency`): then a try may preempt others for it, reserve a start, or hold capacity.
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
from ganger.core.nodes.topology import Ints
from ganger.core.queues.quota import UNLIMITED
from ganger.core.reservations.reservation_table import ReservationTable
from ganger.core.state import pending_index as columns
from ganger.core.state.pending_index import JobClass, LaneEntry, NodeDemand
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.pending_reason import ReasonCode

NO_PLACE_REASONS: Final = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE, ReasonCode.EXCLUDED)
"""Refusals that say of a demand that the nodes have no place for it, whoever asks, although each part has room."""
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
        """By demand, the longest stay with which a gang that starts now delays no reservation.

        Filled when first asked, lowered by refusals. It stays right though others start: they leave less, not more.
        """
        self._reserved_max_stays: dict[NodeDemand, int] = {}
        """The same by reservations alone, whatever refused gangs have shown since; dropped when reservations move."""
        self._reserved_shapes = {reservation.gang.shape: None for reservation in self._reserved.values()}
        entries = [entry for reservation in self._reserved.values() if (entry := self._lanes.entry(reservation.gang))]
        self._reserved_entries: dict[JobClass, list[LaneEntry]] = {}
        for entry in sorted(entries, key=gang_number):
            self._reserved_entries.setdefault(entry.job_class, []).append(entry)
        self._moving_demands: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """By slot of a demand, whether there are reservations that may not keep a gang of it from starting."""
        self._tables: dict[int, ReservationTable] = {}
        """By index of a part of the reservations, that a gang may move, the others; made when first asked for."""
        self._max_stays_beside: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """(parts, demands) the longest stay with which a gang delays none of the others, -1 where not yet computed."""
        # These are right while the same reservations may be moved and the same queues exceed their guarantee.
        self._basis: tuple[object, ...] | None = None
        """The reservations that may be moved, where they are, and the queues that exceed their guarantee with one."""
        has_room = cycle.state.nodes.capacity_index.have_room
        cycle.precedence.begin(demand for demand in self._lanes.demands.values() if has_room(demand.parts))
        self._find_moving()
        # By reserved gang: not asked again, as room only becomes less, and the try looks anyway.
        self._has_room_now = {name: None for name in self._reserved if self._reservations.table.has_room_now(name)}
        self._open_demands = {demand: None for demand in self._lanes.demands.values() if self._has_room(demand)}
        self._open_pairs = self._quota_table()
        """(queues, demands) True where the demand may have room and the queue has quota for one gang of it."""
        self._refused: dict[tuple[object, ...], None] = {}
        self._tried_gangs: dict[str, None] = {}
        self.urgency = Urgency(cycle)

    # -- what tries have shown -----------------------------------------------------------------------------------------

    @property
    def has_open_demand(self) -> bool:
        """True if the nodes have room for a demand."""
        return bool(self._open_demands)

    @property
    def is_exhausted(self) -> bool:
        """True if no demand has room and no gang is urgent."""
        return not self._open_demands and not self.urgency.is_any()

    def close_if_full(self, demand: NodeDemand) -> bool:
        """Rule out a demand that the nodes have no room for any more; return whether it was open and is ruled out."""
        if demand not in self._open_demands or self._has_room(demand):
            return False
        del self._open_demands[demand]
        self._open_pairs[:, demand.slot] = False
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

        These are others of its class; if it lacks quota, others of its demand in its queue; and if the nodes have no
        place in spite of free capacity, all others of its demand.
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
        """Rule out gangs of a demand that stay as long as one that reservations or maintenance have refused."""
        is_held = outcome.reason is ReasonCode.RESERVED
        is_maintained = outcome.reason is ReasonCode.MAINTENANCE and not self._state.tree.types
        if self._may_move(entry.job_class):
            # Others have started since: what they leave is looked at again.
            self._max_stays_beside[self._movable.of_class[entry.job_class.row], entry.demand.slot] = -1
            return
        if not (is_held or is_maintained) or entry.gang.expected is not None:
            return
        others_ms = outcome.max_stay_of_others_ms if is_held else entry.job_class.stays_ms - 1
        # Computed again: other gangs have started since.
        demand = entry.demand
        max_stay_ms = self._reserved_max_stay_ms(demand) if self._reserved else self._max_stay_ms(demand)
        self._max_stays[demand] = min(max_stay_ms, max(0, others_ms))

    # -- job classes ---------------------------------------------------------------------------------------------------

    def of_job_classes(self, rows: NDArray[np.intp] | slice) -> NDArray[np.bool_]:
        """Return (rows,) True for job classes of which one gang may start, or is urgent.

        A job class is viable if its demand is open in its queue, and a gang of it stays short enough to delay no
        reservation or holds a reservation that it can use.
        """
        index = self._lanes.index
        demands, queues, stays_ms, since_ms = (index.cells[column, rows] for column in VIABILITY_COLUMNS)
        viable: NDArray[np.bool_] = np.zeros(len(demands), dtype=bool)
        has_unreserved = np.ones(len(index.rows), dtype=bool)
        reserved_rows = [job_class.row for job_class in self._reserved_entries]
        has_unreserved[reserved_rows] = self._have_unreserved()
        if self._open_demands:
            is_open = self._open_pairs[[members.slot for members in self._lanes.queues.values()]]
            is_open_anywhere = np.logical_or.reduce(is_open)
            viable = is_open_anywhere[demands]
            if not (is_open == is_open_anywhere).all():
                viable &= self._open_pairs[queues, demands]
            if self._reserved or self._max_stays:
                reserved_may_start = np.zeros(len(index.rows), dtype=bool)
                reserved_may_start[reserved_rows] = self._can_reserved_start()
                is_short = self._are_short(rows, viable, demands, stays_ms)
                viable &= reserved_may_start[rows] | (is_short & has_unreserved[rows])
        if viable.all():
            return viable  # urgent or not, all of them are tried
        urgent = self.urgency.of_job_classes(queues, demands, since_ms)
        if urgent is None:
            return viable
        if self._reserved and not self._may_use_reservation:
            urgent &= has_unreserved[rows]
        return viable | urgent

    def _are_short(
        self, rows: NDArray[np.intp] | slice, viable: NDArray[np.bool_], demands: Ints, stays_ms: Ints
    ) -> NDArray[np.bool_]:
        """Return, of job classes of which `viable` have an open demand, False where `_stays_too_long` is true."""
        max_stays_ms, parts = self._max_stays_beside, self._movable.of_class[rows]
        by_slot = {demand.slot: demand for demand in self._open_demands}
        for slot, demand in by_slot.items():
            max_stays_ms[0, slot] = self._max_stay_ms(demand)
        moving = np.unique((parts * max_stays_ms.shape[1] + demands)[viable & (parts > 0)])
        for part, slot in zip(*np.divmod(moving, max_stays_ms.shape[1]), strict=True):
            self._max_stay_beside_unmovable_ms(int(part), by_slot[int(slot)])
        is_short: NDArray[np.bool_] = stays_ms <= max_stays_ms[parts, demands]
        return is_short

    def _can_reserved_start(self) -> NDArray[np.bool_]:
        """Return, for each job class with reservations, whether one of its reserved gangs can start."""
        reserved = self._reserved_entries.values()
        return np.array([not all(map(self._is_blocked, entries)) for entries in reserved], dtype=bool)

    def _have_unreserved(self) -> NDArray[np.bool_]:
        """Return, for each job class with reservations, whether it has gangs without one."""
        reserved = self._reserved_entries.items()
        return np.array([len(job_class.entries) > len(entries) for job_class, entries in reserved], dtype=bool)

    @property
    def _may_use_reservation(self) -> bool:
        """True if a try may preempt others for a gang with a reservation, or let it use held capacity."""
        return self._cycle.policy.ORDERS_RUNNING or bool(self._cycle.holds.by_gang)

    def _find_moving(self) -> bool:
        """Find the job classes that may move one of the reservations in force; return whether they may have changed."""
        movable = {name: (r.start_ms, r.nodes) for name, r in self._reserved.items() if not r.owned}
        basis = movable, self._cycle.precedence.exceeding(self._reserved.values())
        if basis == self._basis:
            return False
        self._basis = basis
        self._movable, self._tables = self._cycle.precedence.movable(self._reserved.values()), {}
        size = len(self._movable.parts), self._lanes.demand_numbers.limit
        self._max_stays_beside = np.full(size, -1, dtype=np.int64)
        self._moving_demands = np.zeros(self._lanes.demand_numbers.limit, dtype=np.bool_)
        self._moving_demands[self._lanes.index.cells[columns.DEMAND][self._movable.of_class > 0]] = True
        return True

    def _may_move(self, job_class: JobClass) -> bool:
        return bool(self._movable.of_class[job_class.row])

    def is_closed(self, job_class: JobClass) -> bool:
        """Return whether no gang of a job class is viable: it is not open, and none is urgent or has a reservation."""
        if self._is_within_quota(job_class) or job_class in self._reserved_entries:
            return False
        since_ms = self.urgency.since_ms(job_class)
        return since_ms is None or job_class.since_ms > since_ms

    # -- gangs ---------------------------------------------------------------------------------------------------------

    def first_entry(self, job_class: JobClass, after: int) -> LaneEntry | None:
        """Return the first viable gang of a job class with a number above `after`."""
        return next((entry for entry in self._possible_entries(job_class, after) if self.is_candidate(entry)), None)

    def is_candidate(self, entry: LaneEntry) -> bool:
        """Return whether a gang is to be tried: it may start, or is urgent."""
        return not self._is_excluded(entry) and self._is_viable(entry)

    def _possible_entries(self, job_class: JobClass, after: int) -> Iterable[LaneEntry]:
        """Return the gangs of a job class with a number above `after` that may be viable.

        These are all gangs if the job class is open, else the urgent ones, else those with a reservation.
        """
        is_open = self._is_within_quota(job_class) and not self._stays_too_long(job_class)
        since_ms = NEVER_MS if is_open else self.urgency.since_ms(job_class)
        if since_ms is None or job_class.since_ms > since_ms or (self._refused and job_class.class_id in self._refused):
            reserved = self._reserved_entries.get(job_class, ())
            return (entry for entry in reserved if entry.gang.number > after)
        begin = bisect_right(job_class.entries, after, key=gang_number) if after >= 0 else 0
        # No gang has waited for longer than since its submission.
        end = None if is_open else bisect_right(job_class.entries, since_ms, key=_submitted_ms)
        return islice(job_class.entries, begin, end)

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
        job_class = entry.job_class
        is_open, has_reservation = self._is_within_quota(job_class), self._has_reservation(entry)
        if is_open and not (self._is_blocked(entry) if has_reservation else self._stays_too_long(job_class)):
            return True
        if has_reservation and not self._may_use_reservation:
            return False
        since_ms = self.urgency.since_ms(job_class)
        return since_ms is not None and entry.gang.since_ms <= since_ms

    def _has_reservation(self, entry: LaneEntry) -> bool:
        return entry.job_class in self._reserved_entries and entry.gang.id in self._reserved

    def _is_blocked(self, entry: LaneEntry) -> bool:
        """Return whether a gang with a reservation would delay that of another, wherever it started.

        Its own reservation counts too as long as that has no room yet, which makes no difference.
        """
        if self._may_move(entry.job_class) or entry.gang.id in self._has_room_now:
            return False
        demand = entry.demand
        max_stay_ms = self._reserved_max_stays.get(demand)
        return entry.job_class.stays_ms > (self._reserved_max_stay_ms(demand) if max_stay_ms is None else max_stay_ms)

    # -- demands -------------------------------------------------------------------------------------------------------

    def _has_room(self, demand: NodeDemand) -> bool:
        """Return whether the nodes have room for each part of a demand, which has not failed since room was made."""
        if self._cycle.holds.by_gang and demand.shape in self._reserved_shapes:
            return True  # capacity held since the cycle began is not held against a reserved gang
        if not self._state.nodes.capacity_index.have_room(demand.parts):
            return False
        if demand.failed_at is not None and demand.failed_at == self._growth_counters(demand):
            return False
        if not self._reserved or self._moving_demands[demand.slot] or demand.shape in self._reserved_shapes:
            return True
        return min(demand.stays) <= self._max_stay_ms(demand)

    def _max_stay_ms(self, demand: NodeDemand) -> int:
        """Return the longest stay with which a gang of the demand that starts now delays no reservation."""
        if demand not in self._max_stays:
            self._max_stays[demand] = self._reserved_max_stay_ms(demand) if self._reserved else NEVER_MS
        return self._max_stays[demand]

    def _reserved_max_stay_ms(self, demand: NodeDemand) -> int:
        max_stay_ms = self._reserved_max_stays[demand] = self._reservations.table.max_stay_ms(demand.parts)
        return max_stay_ms

    def _stays_too_long(self, job_class: JobClass) -> bool:
        """Return whether a gang of the job class would delay a reservation or meet maintenance, wherever it started."""
        if not (self._reserved or self._max_stays):
            return False
        if self._may_move(job_class):
            part = int(self._movable.of_class[job_class.row])
            return job_class.stays_ms > self._max_stay_beside_unmovable_ms(part, job_class.demand)
        max_stay_ms = self._max_stays.get(job_class.demand)
        return job_class.stays_ms > (self._max_stay_ms(job_class.demand) if max_stay_ms is None else max_stay_ms)

    def _max_stay_beside_unmovable_ms(self, part: int, demand: NodeDemand) -> int:
        """Return the longest stay with which a gang that may move a part of the reservations delays none of the others.

        Without this bound each pending gang that may move a single reservation would be tried in each cycle.
        """
        max_stay_ms = int(self._max_stays_beside[part, demand.slot])
        if max_stay_ms < 0:
            if part not in self._tables:
                self._tables[part] = self._reservations.table.reduced(self._movable.parts[part])
            max_stay_ms = self._max_stays_beside[part, demand.slot] = self._tables[part].max_stay_ms(demand.parts)
        return max_stay_ms

    def _growth_counters(self, demand: NodeDemand) -> tuple[int, ...]:
        index = self._state.nodes.capacity_index
        return tuple(index.of(choice).growth for part in demand.parts for choice in part.choices)

    def _is_within_quota(self, job_class: JobClass) -> bool:
        """Return whether the demand of a job class is open in its queue."""
        return bool(self._open_pairs[job_class.lane.queue_lanes.slot, job_class.demand.slot])

    def _quota_table(self) -> NDArray[np.bool_]:
        """Return (queues, demands) True where the demand has room and the queue has the quota for one gang of it."""
        tree, demands = self._state.tree, list(self._open_demands)
        amounts = np.array([tree.wanted(demand.shape) for demand in demands], dtype=np.int64).reshape(
            -1, len(tree.resources)
        )
        slots, is_free_of = [demand.slot for demand in demands], amounts == 0
        size = self._lanes.queue_numbers.limit, self._lanes.demand_numbers.limit
        table: NDArray[np.bool_] = np.zeros(size, dtype=bool)
        for queue, members in self._lanes.queues.items():
            queue_index = tree.index[queue]
            available = [min(UNLIMITED, tree.available(queue_index, r)) for r in range(len(tree.resources))]
            table[members.slot, slots] = (is_free_of | (amounts <= np.array(available))).all(axis=1)
        return table


def gang_number(entry: LaneEntry) -> int:
    """Return the number of an entry's gang."""
    return entry.gang.number


def _submitted_ms(entry: LaneEntry) -> int:
    return entry.gang.submitted_ms
