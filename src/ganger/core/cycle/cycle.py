"""The state of one scheduling cycle: what it plans, and the capacity it holds for gangs that cannot start yet.

A gang that starves, or is the first of its queue, gets a reservation (`core.reservations.reservations`). Where no start
can be predicted because a gang in the way has no time limit, and for a preemptor, capacity is held until the end of the
cycle instead. A capacity hold takes what the gang would use of every limit it is within, and all that is left of the
one that binds: the user's allowance, then quota, then nodes. So capacity that becomes free goes to this gang, and no
other gang is kept from what it cannot use yet. That the gang owns the capacity from the moment of the decision is
HiveD's idea (reference: scheduling, section 2). A reservation takes precedence over a capacity hold.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from ganger.core.cycle.precedence import Precedence
from ganger.core.nodes.fragmentation import demand_kinds
from ganger.core.placement.start_check import (
    StartRequest,
    exceeded_limit,
    find_placement,
    fit,
    is_blocked_by_maintenance,
    start_request,
)
from ganger.core.queue_order.policy_interface import (
    Policy,
    large_reservation_age_ms,
    reservation_limits,
    starvation_age_ms,
)
from ganger.core.queues.quota import Vector, need
from ganger.core.reservations.capacity_forecast import Reservation
from ganger.core.reservations.earliest_start import find_earliest_start
from ganger.core.reservations.queue_rotation import QueueRotation, is_large_cluster
from ganger.core.reservations.reservations import CycleReservations, Moved
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.decision import ReservationCause
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.policy import FRAGMENTATION
from ganger.model.shape import Shape

CURABLE: Final = (
    ReasonCode.USER_GPUS,
    ReasonCode.USER_JOBS,
    ReasonCode.USER_NODE_TIME,
    ReasonCode.OVER_QUOTA,
    ReasonCode.NO_CAPACITY,
    ReasonCode.MAINTENANCE,
    ReasonCode.RESERVED,
)
"""Reasons that end when other gangs or maintenance do."""
MAX_HOLDS: Final = 20
"""Gangs that capacity is held for at a time; the others follow when these have started."""
MAX_HOLDS_PER_QUEUE: Final = 5
"""Of these, gangs of one queue."""
MAX_TRIES: Final = 3
"""Gangs of a queue without a reservation for which a cycle tries to make one; the same number of large ones."""


@dataclass(frozen=True, slots=True)
class CapacityHold:
    """Capacity held for a gang: its user's allowance, an amount of each resource of its queue, and nodes."""

    gang: Gang
    quota: Vector
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Cycle:
    """One scheduling cycle.

    Attributes:
        state: The state that is planned on, inside a trial.
        now_ms: The time of the cycle.
        policy: The queue order.
        ending: Gangs that the cycle stops, for whatever cause.
        victims: Those of them that are preempted.
        started_gangs: Gangs that the cycle starts.
        started_elements: By array, the number of elements that it starts.
        granted_ms: Time limits of gangs that start with less than they request, by candidate.
        capacity_holds: Capacity held, by gang.
        precedence: The precedence among its gangs.
        reservations: The reservations.
        reservation_tries: By queue, and large gangs or others, the gangs that no reservation could be made for.
        postponed: By a gang that may start, the reservations of others that do not keep it from starting, and why.
        unreserved_starving: By queue, starving gangs that get a reservation when others of the queue have started.
        has_no_victims: No running gang comes after the last gang that was tried, or after later ones, and none is
            leaving.
        rotation: On a large cluster, the queue whose first gang may get a reservation.
    """

    state: State
    now_ms: int
    policy: Policy
    ending: dict[str, None] = field(default_factory=dict)
    victims: list[Gang] = field(default_factory=list)
    started_gangs: dict[str, Gang] = field(default_factory=dict)
    started_elements: dict[str, int] = field(default_factory=dict)
    granted_ms: dict[str, int] = field(default_factory=dict)
    capacity_holds: dict[str, CapacityHold] = field(default_factory=dict)
    reservation_tries: dict[tuple[str, bool], int] = field(default_factory=dict)
    postponed: dict[str, Moved] = field(default_factory=dict)
    unreserved_starving: dict[str, int] = field(default_factory=dict)
    has_no_victims: bool = False
    precedence: Precedence = field(init=False)
    reservations: CycleReservations = field(init=False)
    rotation: QueueRotation | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.state.rules.gpu_shares.score == FRAGMENTATION:
            self.state.nodes.set_demand_kinds(demand_kinds(_live_shapes(self.state)))
        limits = reservation_limits(self.policy, self.state.rules)
        self.precedence = Precedence(self.state, self.now_ms, self.policy)
        self.reservations = CycleReservations(self.state, self.now_ms, self.ending, self.precedence.cause_to_move)
        if limits is None or limits.total == 0:
            self.reservations.end_all()
        if is_large_cluster(self.state) and limits is not None:
            lanes = self.state.lanes(self.policy)
            self.rotation = QueueRotation(self.state, lanes, self._awaits_reservation, self._may_reserve_next)

    # -- starts --------------------------------------------------------------------------------------------------------

    def find_start(self, gang: Gang) -> Shares | ReasonCode:
        """Return the shares that a gang may start on, or the reason why it may not.

        `granted_ms` has its time limit where it may start with less than it requests.
        """
        self.granted_ms.pop(gang.id, None)
        self.postponed.pop(gang.id, None)
        if gang.id in self.reservations.by_gang:
            with self._without_holds(list(self.capacity_holds.values())):
                return self._find_start_beside_holds(gang)
        return self._find_start_beside_holds(gang)

    def _find_start_beside_holds(self, gang: Gang) -> Shares | ReasonCode:
        request = start_request(gang)
        reason = exceeded_limit(self.state, request)
        if reason is not None:
            return reason
        shares = self.reservations.find_start(gang, request)
        if shares:
            # If possible not on nodes where it has failed repeatedly.
            cautious = replace(request, avoids=(*request.avoids, *gang.failing_nodes))
            return (self.reservations.find_start(gang, cautious) if gang.failing_nodes else None) or shares
        if not (self.reservations.by_gang or self.state.maintenance) or not find_placement(
            self.state, request.at_least
        ):
            return (
                ReasonCode.MAINTENANCE
                if is_blocked_by_maintenance(self.state, request.at_least)
                else ReasonCode.NO_CAPACITY
            )
        weaker = self.reservations.movable_by(gang)
        others = [other for other, _ in weaker]
        shares = self.reservations.find_start(gang, request, others) if weaker else None
        if shares:
            # Recorded now: once it has started, its usage may put it behind them in the order.
            self.postponed[gang.id] = weaker
        return shares or self._find_shortened_start(gang, request) or ReasonCode.RESERVED

    def _find_shortened_start(self, gang: Gang, request: StartRequest) -> Shares | None:
        """Return shares for a start with less time than requested, recording the time in `granted_ms`."""
        start = self.reservations.find_shortened_start(gang, request)
        if start is None:
            return None
        self.granted_ms[gang.id] = gang.ran_ms + start[1]
        return start[0]

    def record_start(self, gang: Gang, candidate: str, shares: Shares) -> None:
        """Record the start of a gang, and postpone weaker reservations in its way.

        Args:
            gang: The gang that starts.
            candidate: The id under which it was pending: that of its array for an element.
            shares: What it starts on.
        """
        self.has_no_victims = False  # its user's usage may now put other gangs of the user behind pending ones
        self.reservations.record_start(candidate, gang, shares)
        self.reservations.postpone(self.postponed.pop(candidate, ()))

    # -- reservations and capacity holds -------------------------------------------------------------------------------

    def reserve(self, gang: Gang, reason: ReasonCode) -> None:
        """Make a reservation for a gang that cannot start, or hold capacity for it, as far as the limits allow."""
        if gang.id in self.reservations.by_gang:
            return
        if self.policy.STRICT_ORDER:
            self._block_later_gangs(gang, reason)
            return
        may_reserve = self._may_reserve(gang)
        replaced = None if may_reserve else self._replaceable_by(gang)
        if (may_reserve or replaced) and self.reservations.reserve(gang, replaced):
            if self.rotation is not None and gang.queue == self.rotation.current:
                self.rotation.has_reserved = True
            return
        scope = gang.queue, self.is_large(gang)
        tries = self.reservation_tries[scope] = self.reservation_tries.get(scope, 0) + 1
        if self.rotation is not None and scope == (self.rotation.current, False) and tries >= MAX_TRIES:
            self.rotate()
        if reason is ReasonCode.MAINTENANCE or not self.starves(gang) or not self.may_hold(gang.queue):
            return
        if may_reserve or not gang.is_forecastable:
            is_placeable = reason in (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED)
            start = find_earliest_start(self.state, start_request(gang), self.now_ms) if is_placeable else None
            self.hold_capacity(gang, reason, start.shares if start else ())
        else:
            self.unreserved_starving[gang.queue] = self.unreserved_starving.get(gang.queue, 0) + 1

    def _block_later_gangs(self, gang: Gang, reason: ReasonCode) -> None:
        """Hold all nodes or, if its quota binds, what is left of the queue's quota, so that no later gang starts.

        A gang that waits for its user's allowance blocks no other.
        """
        if reason is ReasonCode.OVER_QUOTA and not self.is_blocked(gang.queue):
            self.hold_capacity(gang, reason, ())
        elif reason in (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED, ReasonCode.MAINTENANCE):
            no_quota = (0,) * len(self.state.tree.max_demand(gang.shape))
            self._hold(CapacityHold(gang, no_quota, tuple(self.state.nodes.index)))

    def is_blocked(self, queue: str) -> bool:
        """Return whether a gang of the queue, under strict order, keeps all later ones of the queue from starting."""
        return self.is_cluster_blocked or (
            self.policy.STRICT_ORDER and any(hold.gang.queue == queue for hold in self.capacity_holds.values())
        )

    @property
    def is_cluster_blocked(self) -> bool:
        """True if a gang that waits for nodes, under strict order, keeps all later gangs from starting."""
        return self.policy.STRICT_ORDER and any(hold.nodes for hold in self.capacity_holds.values())

    def starves(self, gang: Gang) -> bool:
        """Return whether a gang has waited beyond the starvation threshold."""
        age_ms = starvation_age_ms(self.policy, self.state.rules, gang.job.spec.priority)
        return age_ms is not None and self.now_ms - gang.since_ms >= age_ms

    def is_large(self, gang: Gang) -> bool:
        """Return whether a gang has enough nodes and age for a reservation beside that of the first of its queue."""
        age_ms = large_reservation_age_ms(self.policy, self.state.rules, gang)
        return age_ms is not None and self.now_ms - gang.since_ms >= age_ms

    def _replaceable_by(self, gang: Gang) -> Reservation | None:
        """Return the reservation, of those that a gang may move, the end of which allows its own; the last in order."""
        if not gang.is_forecastable:
            return None
        movable = [
            other
            for other, cause in self.reservations.movable_by(gang)
            if cause is not ReservationCause.RESTARTED
            and self.may_reserve(gang.queue, large=self.is_large(gang), without=other)
        ]
        return max(movable, key=lambda other: self.precedence.order_key(other.gang), default=None)

    def may_reserve(self, queue: str, *, large: bool, without: Reservation | None = None) -> bool:
        """Return whether one more gang of the queue may get a reservation.

        `large` if `is_large` is true of it, `without` a reservation that would end for it.
        """
        limits = reservation_limits(self.policy, self.state.rules)
        if limits is None or not _is_below(len(self.reservations.by_gang) - (without is not None), limits.total):
            return False
        if limits.per_queue is None or (large and limits.large.per_queue is None):
            return True
        reserved = self.reservations.table.of_queue.get(queue, {})
        if without is not None:
            reserved = {name: gang for name, gang in reserved.items() if name != without.gang.id}
        large_count = sum(map(self.is_large, reserved.values()))
        if large and _is_below(large_count, limits.large.per_queue):
            return True
        excess = 0 if limits.large.per_queue is None else max(0, large_count - limits.large.per_queue)
        return len(reserved) - large_count + excess < limits.per_queue

    @property
    def bounds(self) -> tuple[bool, bool, bool, int]:
        """The facts about all queues that decide which gangs are urgent.

        Whether one more gang may get a reservation, or a capacity hold, whether no gang can be a victim, and the moves
        of the rotation.
        """
        limits = reservation_limits(self.policy, self.state.rules)
        may_reserve = limits is not None and _is_below(len(self.reservations.by_gang), limits.total)
        moves = 0 if self.rotation is None else self.rotation.moves
        return may_reserve, len(self.capacity_holds) < MAX_HOLDS, self.has_no_victims, moves

    def may_try_reservation(self, queue: str, *, large: bool = False) -> bool:
        """Return whether the next gang of the queue may get a reservation without starving; `large` for a large one."""
        if self.reservation_tries.get((queue, large), 0) >= MAX_TRIES or not self._may_gain(queue, large=large):
            return False
        return large or self.rotation is None or self.rotation.queue == queue

    def rotate(self) -> bool:
        """Move the rotation to the next queue if the current one got no reservation; return whether there is one."""
        return self.rotation is not None and self.bounds[0] and self.rotation.move_on()

    @property
    def is_unfinished(self) -> bool:
        """True if the first gang of another queue may get a reservation in the next cycle."""
        return self.rotation is not None and self.bounds[0] and self.rotation.is_unfinished()

    def _awaits_reservation(self, gang: Gang) -> bool:
        is_excluded = gang.id in self.ending or gang.id in self.started_gangs or gang.id in self.reservations.by_gang
        return gang.is_forecastable and not gang.unadmitted and not is_excluded and gang.not_before_ms <= self.now_ms

    def _may_reserve_next(self, queue: str) -> bool:
        return self._may_gain(queue, large=False)

    def _may_gain(self, queue: str, *, large: bool) -> bool:
        """Return whether one more gang of the queue may get a reservation, perhaps in place of another one."""
        return self.may_reserve(queue, large=large) or any(
            self.precedence.may_queue_move(queue, other) and self.may_reserve(queue, large=large, without=other)
            for other in self.reservations.by_gang.values()
        )

    def _may_reserve(self, gang: Gang) -> bool:
        return gang.is_forecastable and self.may_reserve(gang.queue, large=self.is_large(gang))

    def hold_capacity(self, gang: Gang, reason: ReasonCode, shares: Shares) -> None:
        """Hold capacity until the end of the cycle for a gang that would start on `shares`."""
        tree, demand = self.state.tree, self.state.tree.max_demand(gang.shape)
        quota, nodes = (0,) * len(demand), tuple(share.node for share in shares)
        if reason in (ReasonCode.OVER_QUOTA, ReasonCode.NO_CAPACITY, ReasonCode.RESERVED):
            queue_index = tree.index[gang.queue]
            quota = tuple(min(amount, max(0, tree.available(queue_index, r))) for r, amount in enumerate(demand))
        self._hold(CapacityHold(gang, quota, nodes if reason in (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED) else ()))

    def _hold(self, hold: CapacityHold) -> None:
        self.capacity_holds[hold.gang.id] = hold
        self._charge_hold(hold, +1)

    def may_help_starving(self, queue: str, *, large: bool) -> bool:
        """Return whether a starving gang of the queue may get a reservation or, without a predictable start, a hold."""
        if not self.may_hold(queue):
            return False
        return self.may_reserve(queue, large=large) or self.state.lanes(self.policy).queues[queue].unforecastable > 0

    def may_hold(self, queue: str) -> bool:
        """Return whether capacity may be held for one more gang of the queue."""
        count = sum(hold.gang.queue == queue for hold in self.capacity_holds.values())
        count += self.unreserved_starving.get(queue, 0)
        return len(self.capacity_holds) < MAX_HOLDS and count < MAX_HOLDS_PER_QUEUE

    # -- pending reasons -----------------------------------------------------------------------------------------------

    def fit(self, gang: Gang) -> Shares | PendingReason:
        """Return where a gang may start at this point of the cycle, in spite of its own hold, or its pending reason."""
        with self.state.trial():
            if gang.id in self.reservations.by_gang:
                self._release_holds(self.capacity_holds.values())
            elif gang.id in self.capacity_holds:
                self._charge_hold(self.capacity_holds[gang.id], -1)
            result = fit(self.state, start_request(gang), self.now_ms)
            return result if isinstance(result, PendingReason) else self.blocked_by_reservations(gang, result) or result

    def blocked_by_reservations(self, gang: Gang, shares: Shares) -> PendingReason | None:
        """Return the pending reason of a gang that would delay a reservation on `shares`, or None if it would not."""
        for_ms = None if gang.time_ms is None else gang.min_run_ms
        if not self.reservations.by_gang:
            return None
        if not self.reservations.excludes(gang) and self.reservations.find_start(
            gang, start_request(gang), for_ms=for_ms
        ):
            return None
        holders = self.reservations.gangs_in_the_way(gang, shares)
        return PendingReason(code=ReasonCode.RESERVED, holders=tuple(holder.id for holder in holders))

    def holders_blocking(self, gang: Gang) -> tuple[Gang, ...]:
        """Return the gangs whose capacity holds, each by itself, keep a gang from starting.

        There are none if it could not start without the holds either. The result is the same for all gangs of one queue
        with equal requests and limits.
        """
        other_holds = [hold for hold in self.capacity_holds.values() if hold.gang is not gang]
        if not other_holds:
            return ()
        holders: list[Gang] = []
        with self.state.trial():
            self._release_holds(self.capacity_holds.values())
            if self._is_barred(gang):
                return ()
            for hold in other_holds:
                mark = self.state.undo.mark()
                self._charge_hold(hold, +1)
                if self._is_barred(gang):
                    self.state.undo.roll_back(mark)
                    holders.append(hold.gang)
        return tuple(holders)

    def blocked_reason(self, gang: Gang, holders: tuple[Gang, ...]) -> PendingReason | None:
        """Return the pending reason of a gang blocked by capacity holds, naming the holders that precede it."""
        order_key = self.precedence.order_key
        own_key = order_key(gang)
        before = [other for other in holders if order_key(other) < own_key] or holders
        return PendingReason(code=ReasonCode.RESERVED, holders=tuple(other.id for other in before)) if before else None

    def _is_barred(self, gang: Gang) -> bool:
        return not find_placement(self.state, start_request(gang).at_least)

    @contextmanager
    def _without_holds(self, capacity_holds: list[CapacityHold]) -> Iterator[None]:
        if not capacity_holds:
            yield
            return
        with self.state.trial():
            self._release_holds(capacity_holds)
            yield

    def _release_holds(self, capacity_holds: Iterable[CapacityHold]) -> None:
        for hold in capacity_holds:
            self._charge_hold(hold, -1)

    def _charge_hold(self, hold: CapacityHold, sign: int) -> None:
        gang, tree = hold.gang, self.state.tree
        tree.charge_user(gang.queue, gang.job.user, sign * need(gang.shape)[0], sign * gang.node_ms, sign)
        tree.charge(gang.queue, tuple(sign * amount for amount in hold.quota))
        self.state.nodes.hold(hold.nodes, held=sign > 0)
        if sign > 0:
            self.state.undo.put(self.state.planned_changes, gang.id, +1)
        else:
            self.state.undo.drop(self.state.planned_changes, gang.id)


def _live_shapes(state: State) -> Iterator[tuple[Shape, int]]:
    """Yield the shapes that live gangs request, with counts. O(pending classes + running gangs)."""
    yield from ((members[0].shape, len(members)) for members in state.classes.values())
    yield from ((state.gangs[name].shape, 1) for name in state.allocations)


def _is_below(count: int, limit: int | None) -> bool:
    return limit is None or count < limit
