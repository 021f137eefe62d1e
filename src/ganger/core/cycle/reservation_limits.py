"""Limits of reservations: for which pending gangs a cycle tries to make one.

A gang that starves, a large one of some age, and the first of each queue may get a reservation, as far as the policy's
limits allow one more, or a reservation ends that the gang may move. On a large cluster the queues take turns.
"""

from collections.abc import Container
from typing import Final

from ganger.core.cycle.precedence import Precedence
from ganger.core.queue_order.policy_interface import (
    Policy,
    large_reservation_age_ms,
    reservation_limits,
    starvation_age_ms,
)
from ganger.core.reservations.capacity_forecast import Reservation, movable_for_good
from ganger.core.reservations.queue_rotation import QueueRotation, is_large_cluster
from ganger.core.reservations.reservations import CycleReservations
from ganger.core.state.gang import Gang
from ganger.model.policy import Reservations

MAX_TRIES: Final = 3
"""Gangs of a queue without a reservation for which a cycle tries to make one; the same number of large ones."""


class ReservationLimits:
    """The limits of reservations in one cycle."""

    def __init__(
        self,
        policy: Policy,
        reservations: CycleReservations,
        precedence: Precedence,
        gone: tuple[Container[str], ...],
    ) -> None:
        """Apply the limits of the policy to the reservations of a cycle; gangs in one of `gone` are not pending."""
        self._reservations, self._precedence, self._gone, self._policy = reservations, precedence, gone, policy
        state = self._state = reservations.state
        self._now_ms = reservations.now_ms
        self._limits = reservation_limits(policy, state.document)
        self._tries: dict[tuple[str, bool], int] = {}
        """By queue, and large gangs or others, the gangs that no reservation could be made for."""
        self._rotation: QueueRotation | None = None
        """On a large cluster, the queue whose first gang may get a reservation."""
        self._reserved_at_begin: dict[str, None] = {}
        """On a large cluster, the queues that had a reservation when the cycle began."""
        if self._limits is None or self._limits.total == 0:
            reservations.end_all()
        elif is_large_cluster(state):
            lanes = state.pending.lanes(policy)
            self._rotation = QueueRotation(state, lanes, self._awaits_reservation, self._may_gain_next)
            self._reserved_at_begin = {reservation.gang.queue: None for reservation in reservations.by_gang.values()}

    # -- of one gang ---------------------------------------------------------------------------------------------------

    def starves(self, gang: Gang) -> bool:
        """Return whether a gang has waited beyond the starvation threshold."""
        age_ms = starvation_age_ms(self._policy, self._state.document, gang.job.spec.priority)
        return age_ms is not None and self._now_ms - gang.since_ms >= age_ms

    def is_large(self, gang: Gang) -> bool:
        """Return whether a gang has enough nodes and age for a reservation beside that of the first of its queue."""
        age_ms = large_reservation_age_ms(self._policy, self._state.document, gang)
        return age_ms is not None and self._now_ms - gang.since_ms >= age_ms

    def may_reserve(self, gang: Gang) -> bool:
        """Return whether a gang may get a reservation beside all others."""
        return gang.is_forecastable and self.may_queue_reserve(gang.queue, large=self.is_large(gang))

    def reserve(self, gang: Gang) -> bool:
        """Make a reservation for a gang, in place of another one if need be; return whether there is one."""
        may_reserve = self.may_reserve(gang)
        replaced = None if may_reserve else self._replaceable_by(gang)
        reservations = self._reservations
        if (may_reserve or replaced) and reservations.reserve(
            gang, replaced, from_ms=reservations.due_ms(gang, replaced)
        ):
            if self._rotation is not None and gang.queue == self._rotation.current:
                self._rotation.has_reserved = True
            return True
        scope = gang.queue, self.is_large(gang)
        tries = self._tries[scope] = self._tries.get(scope, 0) + 1
        if self._rotation is not None and scope == (self._rotation.current, False) and tries >= MAX_TRIES:
            self.rotate()
        return False

    def _replaceable_by(self, gang: Gang) -> Reservation | None:
        """Return the reservation, of those that a gang may move, the end of which allows its own; the last in order."""
        if not gang.is_forecastable:
            return None
        is_large = self.is_large(gang)
        movable = [
            other
            for other, _ in movable_for_good(self._reservations.movable_by(gang))
            if self.may_queue_reserve(gang.queue, large=is_large, without=other.gang)
        ]
        return max(movable, key=lambda other: self._precedence.order_key(other.gang), default=None)

    # -- of a queue ----------------------------------------------------------------------------------------------------

    @property
    def may_reserve_more(self) -> bool:
        """True if one more gang of any queue may get a reservation."""
        return self._limits is not None and _is_below(self._count, self._limits.total)

    @property
    def _count(self) -> int:
        """The number of reservations, except those of gangs for which others were stopped."""
        table = self._reservations.table
        return len(table.by_gang) - sum(name in table.by_gang for name in table.owners)

    def may_queue_reserve(self, queue: str, *, large: bool, without: Gang | None = None) -> bool:
        """Return whether one more gang of the queue may get a reservation.

        `large` if `is_large` is true of it, `without` a gang whose reservation would end for it.
        """
        count = self._count - (without is not None)
        if self._limits is None or not _is_below(count, self._limits.total):
            return False
        return self._is_below_queue_limit(self._limits, queue, large=large, without=without)

    def _is_below_queue_limit(
        self, limits: Reservations, queue: str, *, large: bool, without: Gang | None = None
    ) -> bool:
        if limits.per_queue is None or (large and limits.large.per_queue is None):
            return True
        reserved = self._reservations.table.of_queue.get(queue, {})
        owners = self._reservations.table.owners
        gangs = [gang for name, gang in reserved.items() if name not in owners and gang is not without]
        large_count = sum(map(self.is_large, gangs))
        if large and _is_below(large_count, limits.large.per_queue):
            return True
        excess = 0 if limits.large.per_queue is None else max(0, large_count - limits.large.per_queue)
        return len(gangs) - large_count + excess < limits.per_queue

    def may_try(self, queue: str, *, large: bool = False) -> bool:
        """Return whether the next gang of the queue may get a reservation without starving; `large` for a large one."""
        if self._tries.get((queue, large), 0) >= MAX_TRIES:
            return False
        is_current = large or self._rotation is None or self._rotation.queue == queue
        return is_current and self._may_gain(queue, large=large)

    def _may_gain(self, queue: str, *, large: bool) -> bool:
        """Return whether one more gang of the queue may get a reservation, perhaps in place of another one."""
        limits, may_move = self._limits, self._precedence.may_queue_move
        if limits is None:
            return False
        if self._is_below_queue_limit(limits, queue, large=large):
            others = (reservation.gang for reservation in self._reservations.by_gang.values())
            return self.may_reserve_more or any(may_move(queue, other) for other in others)
        own = self._reservations.table.of_queue.get(queue, {}).values()
        return any(
            may_move(queue, other) and self._is_below_queue_limit(limits, queue, large=large, without=other)
            for other in own
        )

    # -- the rotation of queues ----------------------------------------------------------------------------------------

    def began_with_reservation(self, queue: str) -> bool:
        """Return whether, on a large cluster, a queue had a reservation when the cycle began."""
        return queue in self._reserved_at_begin

    @property
    def moves(self) -> int:
        """Number of times that the rotation has moved to another queue."""
        return 0 if self._rotation is None else self._rotation.moves

    def rotate(self) -> bool:
        """Move the rotation to the next queue if the current one got no reservation; return whether there is one."""
        return self._rotation is not None and self.may_reserve_more and self._rotation.move_on()

    @property
    def is_unfinished(self) -> bool:
        """True if the first gang of another queue may get a reservation in the next cycle."""
        return self._rotation is not None and self.may_reserve_more and self._rotation.is_unfinished()

    def _awaits_reservation(self, gang: Gang) -> bool:
        is_gone = gang.id in self._reservations.by_gang or any(gang.id in gangs for gangs in self._gone)
        is_ready = not gang.retries.unadmitted and gang.retries.not_before_ms <= self._now_ms
        return gang.is_forecastable and is_ready and not is_gone

    def _may_gain_next(self, queue: str) -> bool:
        return self._may_gain(queue, large=False)


def _is_below(count: int, limit: int | None) -> bool:
    return limit is None or count < limit
