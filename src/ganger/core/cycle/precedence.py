"""Precedence among gangs that wait: which reservations do not keep a gang from starting, nor from reserving.

A reservation protects its gang from those after it in the order. A gang moves the reservation of another one

1. if its queue stays within its guarantee with it, and the other gang's queue exceeds its own (`guarantee`);
2. if it precedes the other in the order and has a higher priority (`higher_priority`), unless 1. protects the other;
3. if it precedes the other and has run before, but only for its own start (`restarted`).

Since a gang protected by 1. is never moved for 2., no two gangs can move each other's reservation in turn.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.queue_order.policy_interface import Policy
from ganger.core.reservations.capacity_forecast import Moved, Reservation
from ganger.core.state.gang import Gang
from ganger.core.state.pending_index import DEMAND, PASSES, PRIORITY, QUEUE, NodeDemand
from ganger.core.state.state import State
from ganger.model.decision import ReservationCause


class MovableReservations(NamedTuple):
    """Which reservations the gangs of each job class may move at most, by the fields of a class alone.

    Attributes:
        parts: Lists of reservations; the first one is empty.
        of_class: (job classes,) the index in `parts` of those that a gang of the class may move.
    """

    parts: list[list[Reservation]]
    of_class: NDArray[np.intp]


class Precedence:
    """The precedence of gangs in one cycle."""

    def __init__(self, state: State, now_ms: int, policy: Policy) -> None:
        """Create the precedence for a cycle."""
        self._state, self._now_ms, self._policy = state, now_ms, policy
        self._highest: dict[str, int] | None = None
        """By queue, the highest priority of its pending gangs."""
        self._guaranteed: dict[int, NDArray[np.bool_]] = {}
        """By queue, and the slot of a demand, whether the queue stayed within its guarantee with one gang of it."""

    def order_key(self, gang: Gang) -> tuple[Any, ...]:
        """Return the gang's place in the order."""
        return self._policy.key(gang, self._state, self._now_ms)

    def movable_by(self, gang: Gang, reserved: Iterable[Reservation]) -> Moved:
        """Return those of some reservations that a gang may move, and why."""
        if gang.retries.unadmitted:
            return ()
        causes = ((r, self._cause_to_move(gang, r.gang)) for r in reserved if not r.owned)
        return [(reservation, cause) for reservation, cause in causes if cause is not None]

    def _cause_to_move(self, gang: Gang, other: Gang) -> ReservationCause | None:
        if gang.id == other.id:
            return None
        if self._is_guaranteed_before(gang, other):
            return ReservationCause.GUARANTEE
        has_priority = priority_of(gang) > priority_of(other) and not self._is_guaranteed_before(other, gang)
        if not (has_priority or gang.passes_reservations) or self.order_key(other) < self.order_key(gang):
            return None
        return ReservationCause.HIGHER_PRIORITY if has_priority else ReservationCause.RESTARTED

    def may_queue_move(self, queue: str, other: Gang) -> bool:
        """Return False if no gang of a queue may move the reservation of another one for its own."""
        return self._highest_priority(queue) > priority_of(other) or self._may_guarantee(queue, other.queue)

    def _highest_priority(self, queue: str) -> int:
        """Return the highest priority of the gangs that were pending in a queue when the cycle began."""
        if self._highest is None:
            lanes = self._state.pending.lanes(self._policy)
            highest = np.full(lanes.queue_numbers.limit, np.iinfo(np.int64).min)
            np.maximum.at(highest, lanes.index.cells[QUEUE], lanes.index.cells[PRIORITY])
            self._highest = {name: int(highest[members.slot]) for name, members in lanes.queues.items()}
        return self._highest.get(queue, 0)

    def begin(self, demands: Iterable[NodeDemand]) -> None:
        """Compute which queues stay within their guarantee with a gang of each of these demands.

        Others cannot start. Usage only grows in a cycle, so that a queue that does not never will.
        """
        tree, lanes = self._state.tree, self._state.pending.lanes(self._policy)
        if not tree.has_guarantees:
            return
        slots = {demand.slot: tree.wanted(demand.shape) for demand in demands}
        amounts = np.array(list(slots.values()), dtype=np.int64).reshape(-1, len(tree.resources))
        for index in {index: None for name in lanes.queues for index in tree.path_below_root[tree.index[name]]}:
            limited = tree.limited_resources(index)
            needed, left = amounts[:, limited], [tree.guarantee_left(index, r) for r in limited]
            is_guaranteed = np.zeros(lanes.demand_numbers.limit, dtype=np.bool_)
            is_guaranteed[list(slots)] = needed.any(axis=1) & ((needed == 0) | (needed <= left)).all(axis=1)
            self._guaranteed[index] = is_guaranteed

    def exceeding(self, reserved: Iterable[Reservation]) -> dict[tuple[str, int], None]:
        """Return the reservations that may be moved, and the queues on the path of each that exceed their guarantee."""
        tree, movable = self._state.tree, [reservation.gang for reservation in reserved if not reservation.owned]
        return {
            (other.queue, index): None
            for other in movable
            for index in tree.path_below_root[tree.index[other.queue]]
            if tree.has_guarantees and not tree.is_guaranteed(index, tree.wanted(other.shape))
        }

    def movable(self, reserved: Iterable[Reservation]) -> MovableReservations:
        """Return which of these reservations the gangs of each job class may move."""
        lanes, tree = self._state.pending.lanes(self._policy), self._state.tree
        cells = lanes.index.cells
        movable = sorted((other for other in reserved if not other.owned), key=lambda other: priority_of(other.gang))
        counts = np.searchsorted([priority_of(reservation.gang) for reservation in movable], cells[PRIORITY])
        counts[cells[PASSES] > 0] = len(movable)
        exceeding = self.exceeding(movable)
        is_guaranteed = np.zeros((lanes.queue_numbers.limit, lanes.demand_numbers.limit), dtype=np.bool_)
        for name, members in lanes.queues.items() if exceeding else ():
            parting = ((tree.branches(name, other), index) for other, index in exceeding)
            for index in {branches[0]: None for branches, index in parting if branches and branches[1] == index}:
                is_guaranteed[members.slot] |= self._guaranteed[index]
        # A class may move the first ones, of lower priority, and if it is guaranteed those that exceed a guarantee.
        codes = 2 * counts + is_guaranteed[cells[QUEUE], cells[DEMAND]]
        queues = {queue: None for queue, _ in exceeding}
        over = [other for other in movable if other.gang.queue in queues]
        distinct, of_class = np.unique(np.append(0, codes), return_inverse=True)
        parts = [movable[: code // 2] + (over if code % 2 else []) for code in distinct.tolist()]
        return MovableReservations(parts, of_class[1:])

    def _may_guarantee(self, queue: str, other: str) -> bool:
        tree = self._state.tree
        branches = tree.branches(queue, other) if tree.has_guarantees else None
        return branches is not None and any(tree.guaranteed[branches[0]])

    def _is_guaranteed_before(self, gang: Gang, other: Gang) -> bool:
        """Return whether a gang's queue stays within its guarantee and the other's exceeds its own, where they part."""
        tree = self._state.tree
        branches = tree.branches(gang.queue, other.queue) if tree.has_guarantees else None
        if branches is None:
            return False
        return tree.is_guaranteed(branches[0], tree.wanted(gang.shape)) and not tree.is_guaranteed(
            branches[1], tree.wanted(other.shape)
        )


def priority_of(gang: Gang) -> int:
    """Return a gang's priority."""
    return gang.job.spec.priority
