"""Urgency: gangs that a cycle tries though the nodes have no room for them.

Such a gang may preempt others, get a reservation or have capacity held. They are those that have waited since a time,
which depends on the queue and on whether a gang is large.
"""

import numpy as np
from numpy.typing import NDArray

from ganger.core.cycle.cycle_state import Cycle
from ganger.core.nodes.topology import Ints
from ganger.core.state.pending_index import JobClass, LaneEntry
from ganger.core.state.runtime_estimate import NEVER_MS


class Urgency:
    """The urgency of pending gangs in one cycle, computed once by queue and size until a try may have changed it."""

    def __init__(self, cycle: Cycle) -> None:
        """Begin with a cycle in which no gang was tried yet."""
        self._cycle, self._lanes = cycle, cycle.state.pending.lanes(cycle.policy)
        self._since: dict[tuple[str, bool], int | None] = {}
        self._bounds = self._find_bounds()
        large = cycle.state.document.reservations.large
        min_nodes = large.nodes if large.per_queue != 0 else NEVER_MS
        demands = self._lanes.demands.values()
        self._large_demands = {demand: None for demand in demands if demand.shape.all_nodes >= min_nodes}
        self._oldest_since_ms: int | None = None
        self._never: NDArray[np.bool_] | None = None
        """By slot of a demand, `_never_fit`. Computed when first needed; right for the cycle, which adds no nodes."""

    def since_ms(self, job_class: JobClass) -> int | None:
        """Return the latest time since which a gang of a job class has to wait to be urgent, None if none may be."""
        if job_class.unadmitted:
            return None  # it starts only in free capacity
        if self._never_fit()[job_class.demand.slot]:
            return None
        return self._queue_since_ms(job_class.lane.queue, large=job_class.demand in self._large_demands)

    def of_job_classes(self, queues: Ints, demands: Ints, since_ms: Ints) -> NDArray[np.bool_] | None:
        """Return (N,) True for job classes with an urgent gang, or None if no job class has one."""
        urgent_since = np.full((2, self._lanes.queue_numbers.limit), -1, dtype=np.int64)
        for name, members in self._lanes.queues.items():
            for large in (False, True) if self._large_demands else (False,):
                latest_ms = self._queue_since_ms(name, large=large)
                urgent_since[int(large), members.slot] = -1 if latest_ms is None else latest_ms
        if not (urgent_since >= 0).any():
            return None
        is_large = np.zeros(self._lanes.demand_numbers.limit, dtype=np.int64)
        is_large[[demand.slot for demand in self._large_demands]] = 1
        urgent: NDArray[np.bool_] = since_ms <= urgent_since[is_large[demands], queues]
        return urgent & ~self._never_fit()[demands]

    def _never_fit(self) -> NDArray[np.bool_]:
        """Return, by slot of a demand, whether the nodes in service have too little room for it even if idle.

        Any number of jobs may wait for nodes that are still to come. To try them would find that out for each class of
        them in every cycle; the sums over idle nodes change only with the nodes, and are looked up once a demand.
        """
        if self._never is None:
            has_room = self._cycle.state.nodes.bare().capacity_index.have_room
            self._never = np.zeros(self._lanes.demand_numbers.limit, dtype=np.bool_)
            self._never[[demand.slot for demand in self._lanes.demands.values() if not has_room(demand.parts)]] = True
        return self._never

    def is_any(self) -> bool:
        """Return whether a gang of any queue is urgent."""
        sizes = (False, True) if self._large_demands else (False,)
        since = (self._queue_since_ms(queue, large=large) for queue in self._lanes.queues for large in sizes)
        urgent = [since_ms for since_ms in since if since_ms is not None]
        if not urgent:
            return False
        if self._oldest_since_ms is None:
            self._oldest_since_ms = min((lane.since_ms for lane in self._lanes.by_key.values()), default=NEVER_MS)
        return self._oldest_since_ms <= max(urgent)

    def forget(self, entry: LaneEntry, *, others: bool = False) -> bool:
        """Forget urgency that a try may have changed, of all queues if `others`.

        Return whether the rotation has reached another queue, whose gangs may be urgent now.
        """
        old_bounds, self._bounds = self._bounds, self._find_bounds()
        if others or old_bounds != self._bounds:
            self._since.clear()
        for large in (False, True):
            self._since.pop((entry.gang.queue, large), None)
        return old_bounds[-1] != self._bounds[-1]

    def forget_all(self) -> None:
        """Forget the urgency of all queues: the rotation has reached another one."""
        self._since.clear()

    def _find_bounds(self) -> tuple[bool, bool, bool, int]:
        """Return the facts about all queues that decide which gangs are urgent."""
        limits = self._cycle.limits
        return limits.may_reserve_more, self._cycle.holds.may_hold_more, self._cycle.has_no_victims, limits.moves

    def _queue_since_ms(self, queue: str, *, large: bool) -> int | None:
        scope = queue, large
        if scope not in self._since:
            self._since[scope] = self._find_since_ms(*scope)
        return self._since[scope]

    def _find_since_ms(self, queue: str, large: bool) -> int | None:  # noqa: FBT001 - a part of the question
        cycle, limits = self._cycle, self._cycle.limits
        if cycle.policy.STRICT_ORDER:
            return None if cycle.is_queue_blocked(queue) else cycle.now_ms
        if (cycle.policy.ORDERS_RUNNING and not cycle.has_no_victims) or limits.may_try(queue):
            return cycle.now_ms
        rules = cycle.state.document
        starvation_ms = rules.starvation.soonest_ms(cycle.policy.STARVATION_AGE_MS)
        ages_ms = [starvation_ms] if self._may_help_starving(queue, large=large) else []
        if large and limits.may_try(queue, large=True):
            after_ms = rules.reservations.large.after_ms
            ages_ms.append(starvation_ms if after_ms is None else after_ms)
        return max((cycle.now_ms - age_ms for age_ms in ages_ms if age_ms is not None), default=None)

    def _may_help_starving(self, queue: str, *, large: bool) -> bool:
        """Return whether a starving gang of the queue may get a reservation or, without a predictable start, a hold."""
        if not self._cycle.holds.may_hold(queue):
            return False
        if self._lanes.queues[queue].unforecastable > 0:
            return True
        # Where queues take turns, the place that a reserved start of this cycle leaves is for the first in the order,
        # which is sought in the next cycle. Starving gangs would hand it on to one another before any newcomer.
        limits = self._cycle.limits
        return limits.may_queue_reserve(queue, large=large) and (large or not limits.began_with_reservation(queue))
