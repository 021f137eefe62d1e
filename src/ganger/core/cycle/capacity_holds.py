"""Capacity that a cycle holds for gangs that cannot start yet, until its end.

Where no start can be predicted because a gang in the way has no time limit, and for a preemptor, capacity is held
instead of reserved. A hold takes what the gang would use of every limit it is within, and all that is left of the one
that binds: the user's allowance, then quota, then nodes. So capacity that becomes free goes to this gang, and no other
gang is kept from what it cannot use yet. That the gang owns the capacity from the moment of the decision is HiveD's
idea (reference: scheduling, section 2). A reservation takes precedence over a hold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ganger.core.placement.start_check import find_placement, start_request
from ganger.core.queues.quota import Vector, need
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.pending_reason import ReasonCode

MAX_HOLDS: Final = 20
"""Gangs that capacity is held for at a time; the others follow when these have started."""
MAX_HOLDS_PER_QUEUE: Final = 5
"""Of these, gangs of one queue."""
OF_NODES: Final = (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED)
"""Reasons for which nodes are held."""


@dataclass(frozen=True, slots=True)
class CapacityHold:
    """Capacity held for a gang: its user's allowance, an amount of each resource of its queue, and nodes."""

    gang: Gang
    quota: Vector
    nodes: tuple[str, ...]


class CapacityHolds:
    """The capacity holds of one cycle.

    Attributes:
        by_gang: The holds.
        unreserved_starving: By queue, starving gangs that get a reservation when others of the queue have started.
    """

    def __init__(self, state: State) -> None:
        """Begin without holds."""
        self.by_gang: dict[str, CapacityHold] = {}
        self.unreserved_starving: dict[str, int] = {}
        self._state = state

    @property
    def may_hold_more(self) -> bool:
        """True if capacity may be held for one more gang."""
        return len(self.by_gang) < MAX_HOLDS

    def may_hold(self, queue: str) -> bool:
        """Return whether capacity may be held for one more gang of the queue."""
        count = sum(hold.gang.queue == queue for hold in self.by_gang.values())
        return self.may_hold_more and count + self.unreserved_starving.get(queue, 0) < MAX_HOLDS_PER_QUEUE

    def count_unreserved(self, queue: str) -> None:
        """Count a starving gang that gets a reservation when others of its queue have started."""
        self.unreserved_starving[queue] = self.unreserved_starving.get(queue, 0) + 1

    def hold(self, gang: Gang, reason: ReasonCode, shares: Shares) -> None:
        """Hold capacity for a gang that would start on `shares`."""
        tree, demand = self._state.tree, self._state.tree.max_demand(gang.shape)
        quota = (0,) * len(demand)
        if reason is ReasonCode.OVER_QUOTA or reason in OF_NODES:
            queue_index = tree.index[gang.queue]
            quota = tuple(min(amount, max(0, tree.available(queue_index, r))) for r, amount in enumerate(demand))
        self._add(CapacityHold(gang, quota, tuple(share.node for share in shares) if reason in OF_NODES else ()))

    def hold_all_nodes(self, gang: Gang) -> None:
        """Hold all nodes for a gang."""
        no_quota = (0,) * len(self._state.tree.max_demand(gang.shape))
        self._add(CapacityHold(gang, no_quota, tuple(self._state.nodes.index)))

    @contextmanager
    def released(self, *, only: str | None = None) -> Iterator[None]:
        """Release all holds, or `only` that of one gang, for the duration of the context."""
        released = [hold for name, hold in self.by_gang.items() if only in (None, name)]
        if not released:
            yield
            return
        with self._state.trial():
            for hold in released:
                self._charge(hold, -1)
            yield

    def holders_blocking(self, gang: Gang) -> tuple[Gang, ...]:
        """Return the gangs whose holds, each by itself, keep a gang from starting.

        There are none if it could not start without the holds either. The result is the same for all gangs of one queue
        with equal requests and limits.
        """
        other_holds = [hold for hold in self.by_gang.values() if hold.gang is not gang]
        if not other_holds:
            return ()
        holders: list[Gang] = []
        with self.released():
            if self._is_barred(gang):
                return ()
            for hold in other_holds:
                mark = self._state.undo.mark()
                self._charge(hold, +1)
                if self._is_barred(gang):
                    self._state.undo.roll_back(mark)
                    holders.append(hold.gang)
        return tuple(holders)

    def _is_barred(self, gang: Gang) -> bool:
        return not find_placement(self._state, start_request(gang).at_least)

    def _add(self, hold: CapacityHold) -> None:
        if hold.gang.id in self.by_gang:
            self._charge(self.by_gang[hold.gang.id], -1)
        self.by_gang[hold.gang.id] = hold
        self._charge(hold, +1)

    def _charge(self, hold: CapacityHold, sign: int) -> None:
        state, gang = self._state, hold.gang
        state.tree.charge_user(gang.queue, gang.job.user, sign * need(gang.shape)[0], sign * gang.node_ms, sign)
        state.tree.charge_period(gang.queue, gang.job.user, sign * gang.shape.all_nodes, gang.requested_stay_ms)
        state.tree.charge(gang.queue, tuple(sign * amount for amount in hold.quota))
        state.nodes.hold(hold.nodes, held=sign > 0)
        if sign > 0:
            state.undo.put(state.allocations.planned_changes, gang.id, +1)
        else:
            state.undo.drop(state.allocations.planned_changes, gang.id)
