"""The state of one scheduling cycle, and the pending reasons at any point of it.

A gang that starves, or is the first of its queue, gets a reservation (`core.reservations.reservations`), or capacity is
held for it until the end of the cycle (`core.cycle.capacity_holds`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ganger.core.cycle.capacity_holds import CapacityHolds
from ganger.core.cycle.due_starts import DueStarts
from ganger.core.cycle.precedence import Precedence
from ganger.core.cycle.reservation_limits import ReservationLimits
from ganger.core.nodes.fragmentation import demand_kinds
from ganger.core.placement.start_check import fit, start_request
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.reservations.reservations import CycleReservations
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.decision import PreemptionRule, Stop
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


class Victim(NamedTuple):
    """A gang that is preempted: for which other one, by which rule, and the work that it has not saved, in ms.

    Of an elastic gang that gives up its surplus, `kept` is what it keeps.
    """

    gang: Gang
    preemptor: str
    rule: PreemptionRule
    unsaved_ms: int
    kept: Shares = ()


@dataclass(slots=True)
class Cycle:
    """One scheduling cycle.

    Attributes:
        state: The state that is planned on, inside a trial.
        now_ms: The time of the cycle.
        policy: The queue order.
        ending: Gangs that the cycle stops, for whatever cause, and the notice that each gets, in ms.
        victims: Those of them that are preempted.
        started_gangs: Gangs that the cycle starts.
        started_elements: By array, the number of elements that it starts.
        has_no_victims: No running gang comes after the last gang that was tried, or after later ones, and none is
            leaving.
        is_unfinished: A gang that would have been preempted at once does not start after all, gangs were left out that
            others may be preempted for, or a gang has surplus that it did not have: another cycle is due at once.
        wakes_ms: Times from which gangs may be preempted that have started lately.
        stops: Stops of gangs that move to other nodes so that a larger gang fits, or that give up nodes they keep.
        holds: Capacity held for gangs.
        precedence: The precedence among its gangs.
        reservations: The reservations.
        limits: The limits of reservations.
    """

    state: State
    now_ms: int
    policy: Policy
    ending: dict[str, int] = field(default_factory=dict)
    victims: list[Victim] = field(default_factory=list)
    started_gangs: dict[str, Gang] = field(default_factory=dict)
    started_elements: dict[str, int] = field(default_factory=dict)
    has_no_victims: bool = False
    is_unfinished: bool = False
    wakes_ms: list[int] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    holds: CapacityHolds = field(init=False)
    precedence: Precedence = field(init=False)
    reservations: CycleReservations = field(init=False)
    limits: ReservationLimits = field(init=False)

    def __post_init__(self) -> None:
        state, now_ms, policy = self.state, self.now_ms, self.policy
        if state.document.gpu_shares.score == FRAGMENTATION:
            state.nodes.set_demand_kinds(demand_kinds(_live_shapes(state)))
        self.holds, self.precedence = CapacityHolds(state), Precedence(state, now_ms, policy)
        gone = self.ending, self.started_gangs
        due_starts = DueStarts(state, now_ms, policy, gone)
        find_movable, find_due_ms = self.precedence.movable_by, due_starts.due_ms
        self.reservations = CycleReservations(state, now_ms, self.ending, find_movable, find_due_ms)
        self.limits = ReservationLimits(policy, self.reservations, self.precedence, gone)

    # -- strict order --------------------------------------------------------------------------------------------------

    def is_queue_blocked(self, queue: str) -> bool:
        """Return whether a gang of the queue, under strict order, keeps all later ones of the queue from starting."""
        return self.is_cluster_blocked or (
            self.policy.STRICT_ORDER and any(hold.gang.queue == queue for hold in self.holds.by_gang.values())
        )

    @property
    def is_cluster_blocked(self) -> bool:
        """True if a gang that waits for nodes, under strict order, keeps all later gangs from starting."""
        return self.policy.STRICT_ORDER and any(hold.nodes for hold in self.holds.by_gang.values())

    def waits(self, gang: Gang) -> bool:
        """Return whether a pending gang neither starts nor ends in this cycle, and is not in a backoff pause."""
        if gang.id in self.ending or gang.id in self.started_gangs or gang.retries.not_before_ms > self.now_ms:
            return False
        return not gang.is_head or self.started_elements.get(gang.id, 0) < len(self.state.arrays[gang.id].rest)

    # -- pending reasons -----------------------------------------------------------------------------------------------

    def fit(self, gang: Gang) -> Shares | PendingReason:
        """Return where a gang may start at this point of the cycle, in spite of its own hold, or its pending reason."""
        with self.holds.released(only=None if gang.id in self.reservations.by_gang else gang.id):
            result = fit(self.state, start_request(gang), self.now_ms)
            return result if isinstance(result, PendingReason) else self.blocked_by_reservations(gang, result) or result

    def blocked_by_reservations(self, gang: Gang, shares: Shares) -> PendingReason | None:
        """Return the pending reason of a gang that would delay a reservation on `shares`, or None if it would not."""
        for_ms = None if gang.time_ms is None else gang.min_run_ms
        if not self.reservations.by_gang:
            return None
        if not self.reservations.excludes(gang):
            start = self.reservations.find_start(gang, start_request(gang), for_ms=for_ms)
            if start.shares is not None:
                return None
        holders = self.reservations.gangs_in_the_way(gang, shares)
        return PendingReason(code=ReasonCode.RESERVED, holders=tuple(holder.id for holder in holders))

    def blocked_by_holds(self, gang: Gang, holders: tuple[Gang, ...]) -> PendingReason:
        """Return the pending reason of a gang blocked by the holds of others, naming those that precede it."""
        order_key = self.precedence.order_key
        own_key = order_key(gang)
        before = [other for other in holders if order_key(other) < own_key] or holders
        return PendingReason(code=ReasonCode.RESERVED, holders=tuple(other.id for other in before))


def _live_shapes(state: State) -> Iterator[tuple[Shape, int]]:
    """Yield the shapes that live gangs request, with counts. O(pending classes + running gangs)."""
    yield from ((members[0].shape, len(members)) for members in state.pending.classes.values())
    yield from ((state.gangs[name].shape, 1) for name in state.allocations)
