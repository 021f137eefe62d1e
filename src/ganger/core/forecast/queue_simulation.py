"""Simulation of the queue: gangs in policy order on the nodes, with reservations as the scheduler makes them.

Each gang runs for as long as its limit or its user's history says. Between two events nothing is tried; at each event
the gangs are tried in order, as in a scheduling cycle. Nothing else is submitted meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from ganger.core.forecast.node_schedule import NONE, Bools, NodeSchedule, PartNeed, drawn_run_ms
from ganger.core.nodes.topology import Ints
from ganger.core.placement.start_check import exceeded_limit, start_request
from ganger.core.queue_order.policy_interface import Policy, large_reservation_age_ms, reservation_limits
from ganger.core.queues.quota import Vector
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State


@dataclass(slots=True)
class _Columns:
    """The gangs, in order.

    Attributes:
        kind, nodes: What the first part needs.
        run_ms: For how long each runs.
        stays_ms: For how long each may stay at most, NEVER_MS without a limit: what maintenance is compared with.
        since_ms: From when on each may start.
        queue: The number of its queue.
        large_ms: From when on each may have a reservation as a large gang.
        waits: True until it starts.
        is_reserved, is_large: Whether it has a reservation, and whether it has it as a large gang.
    """

    kind: Ints
    nodes: Ints
    run_ms: Ints
    stays_ms: Ints
    since_ms: Ints
    queue: Ints
    large_ms: Ints
    waits: Bools
    is_reserved: Bools
    is_large: Bools


class QueueSimulation:
    """One run of the queue.

    Attributes:
        order: The gangs, in order; the head of an array stands there for each of its elements.
        start_ms: (gangs,) When each starts; NEVER_MS for those that wait for the end of a gang of unknown run time.
        is_predicted: (gangs,) Whether the start depends on a predicted run time.
        after: (gangs,) The gang that has to end first, as `NodeSchedule.released_by`; NONE for none.
        waits_for_quota: (gangs,) Whether a quota, or a limit of its user, keeps a gang waiting at some time.
    """

    def __init__(self, state: State, policy: Policy, now_ms: int, order: Sequence[Gang]) -> None:
        """Prepare the gangs, in order."""
        self._state, self._policy, self.order = state, policy, order
        self._limits = reservation_limits(policy, state.document)
        self._nodes = NodeSchedule(state, now_ms)
        self._parts = [self._parts_of(gang) for gang in order]
        queues: dict[str, int] = {}
        size = len(order)
        self._gangs = _Columns(
            kind=np.array([parts[0].kind for parts in self._parts], dtype=np.int64),
            nodes=np.array([parts[0].nodes for parts in self._parts], dtype=np.int64),
            run_ms=np.array([self._run_ms(gang) for gang in order], dtype=np.int64),
            stays_ms=np.array([start_request(gang).at_least.stays_ms for gang in order], dtype=np.int64),
            since_ms=np.array([max(now_ms, gang.retries.not_before_ms) for gang in order], dtype=np.int64),
            queue=np.array([queues.setdefault(gang.queue, len(queues)) for gang in order], dtype=np.int64),
            large_ms=np.array([self._large_ms(gang) for gang in order], dtype=np.int64),
            waits=np.ones(size, dtype=bool),
            is_reserved=np.zeros(size, dtype=bool),
            is_large=np.zeros(size, dtype=bool),
        )
        self._reserved_counts: Ints = np.zeros((2, len(queues)), dtype=np.int64)
        """Reservations of each queue: of its first gangs, and of large ones."""
        self._has_limits = state.tree.binds_before_nodes
        self._charges = self._running_charges() if self._has_limits else []
        self.start_ms: Ints = np.full(size, NEVER_MS, dtype=np.int64)
        self.is_predicted: Bools = np.zeros(size, dtype=bool)
        self.after: Ints = np.full(size, NONE, dtype=np.int64)
        self.waits_for_quota: Bools = np.zeros(size, dtype=bool)
        self._keep_reservations()

    def run(self) -> None:
        """Let gangs start until all have, or nothing more ends."""
        nodes, gangs = self._nodes, self._gangs
        with self._state.trial():
            while gangs.waits.any():
                self._start_gangs()
                paused_ms = gangs.since_ms[gangs.waits & (gangs.since_ms > nodes.now_ms)]
                next_ms = min(nodes.next_ms(), int(paused_ms.min(initial=NEVER_MS)))
                if next_ms >= NEVER_MS:
                    return
                nodes.advance(next_ms)
                self._refund()

    def gang_of(self, code: int) -> Gang | None:
        """Return the gang that a number of `after` stands for, or None."""
        if code >= 0:
            return self.order[code]
        name = None if code == NONE else self._nodes.running_name(code)
        return None if name is None else self._state.gangs[name]

    def _parts_of(self, gang: Gang) -> list[PartNeed]:
        return [self._nodes.need_of(part, gang.avoids) for part in gang.shape.parts]

    def _run_ms(self, gang: Gang) -> int:
        return drawn_run_ms(self._state, gang, gang.ran_ms) if gang.is_predicted else gang.runs_for_ms

    def _large_ms(self, gang: Gang) -> int:
        age_ms = large_reservation_age_ms(self._policy, self._state.document, gang)
        return NEVER_MS if age_ms is None else gang.since_ms + age_ms

    # -- starts --------------------------------------------------------------------------------------------------------

    def _start_gangs(self) -> None:
        """Start what can start at this time, in order."""
        gangs, nodes = self._gangs, self._nodes
        tries = gangs.waits & (gangs.since_ms <= nodes.now_ms)
        wants = self._may_reserve() & tries
        while True:
            fits = self._policy.STRICT_ORDER | (nodes.counts[gangs.kind] >= gangs.nodes)
            is_first = tries & (fits | wants)
            index = int(is_first.argmax())
            if not is_first[index]:
                return
            tries[index] = False
            if self._is_over_limit(index):
                # Gangs of one queue and demand wait for the same quota, if not for that of another user.
                wants[index], alike = False, self._alike(index)
                users = [i for i in np.flatnonzero(alike & tries).tolist() if self._has_owner_of(i, index)]
                tries[users] = False
                self.waits_for_quota[[index, *users]] = True
            elif self._start(index):
                wants = self._may_reserve() & tries
            elif self._policy.STRICT_ORDER:
                return
            elif wants[index]:
                if self._reserve(index):
                    wants = self._may_reserve() & tries
                else:
                    wants[self._alike(index) & (gangs.stays_ms >= gangs.stays_ms[index])] = False
            elif not gangs.is_reserved[index]:
                alike = self._alike(index) & (gangs.run_ms >= gangs.run_ms[index])
                alike &= gangs.stays_ms >= gangs.stays_ms[index]
                tries[alike & ~gangs.is_reserved & ~wants] = False

    def _alike(self, index: int) -> Bools:
        """Return (gangs,) True for gangs that need the same on as many nodes, or more."""
        gangs = self._gangs
        is_alike: Bools = (gangs.kind == gangs.kind[index]) & (gangs.nodes >= gangs.nodes[index])
        return is_alike

    def _has_owner_of(self, index: int, other: int) -> bool:
        first, second = self.order[index], self.order[other]
        return first.queue == second.queue and first.job.user == second.job.user

    def _start(self, index: int) -> bool:
        """Start a gang if there is room for it; return whether it did."""
        nodes, run_ms, stays_ms = self._nodes, int(self._gangs.run_ms[index]), int(self._gangs.stays_ms[index])
        end_ms = min(NEVER_MS, nodes.now_ms + run_ms)
        allowed_until_ms = min(NEVER_MS, nodes.now_ms + stays_ms)
        placed: list[Ints] = []
        for part in self._parts[index]:
            # Parts are placed one by one: seldom do two of them compete for the last nodes.
            found = nodes.find_nodes(index, part, end_ms, allowed_until_ms)
            if found is None:
                return False
            placed.append(found)
        if self._gangs.is_reserved[index]:
            self._drop_reservation(index)
        all_nodes = np.concatenate(placed)
        self._gangs.waits[index] = False
        self.start_ms[index] = nodes.now_ms
        last = all_nodes[nodes.released_ms[all_nodes].argmax()]
        self.after[index] = nodes.released_by[last]
        self.is_predicted[index] = nodes.is_predicted[all_nodes].any()
        if self.is_predicted[index] or self.order[index].is_predicted:
            nodes.mark_predicted(all_nodes)
        for part, found in zip(self._parts[index], placed, strict=True):
            nodes.start(index, part, found, end_ms)
        self._charge(index, end_ms)
        return True

    # -- quota ---------------------------------------------------------------------------------------------------------

    def _running_charges(self) -> list[tuple[int, int, str, str, Vector, int]]:
        """Return what running gangs are charged for, as a heap by their ends."""
        state, charges = self._state, []
        for gang, _ in state.by_end(self._nodes.now_ms):
            end_ms, amounts = gang.ends_ms(self._nodes.now_ms), state.quota_charges[gang.id]
            if end_ms is not None:
                charges.append((end_ms, gang.number, gang.queue, gang.job.user, amounts, gang.node_ms))
        heapify(charges)
        return charges

    def _is_over_limit(self, index: int) -> bool:
        return self._has_limits and exceeded_limit(self._state, start_request(self.order[index])) is not None

    def _charge(self, index: int, end_ms: int) -> None:
        """Charge a gang that starts, where quotas are set."""
        if not self._has_limits:
            return
        gang, tree = self.order[index], self._state.tree
        amounts = tree.max_demand(gang.shape)
        tree.charge(gang.queue, amounts)
        tree.charge_user(gang.queue, gang.job.user, amounts[0], gang.node_ms, 1)
        if end_ms < NEVER_MS:
            heappush(self._charges, (end_ms, gang.number, gang.queue, gang.job.user, amounts, gang.node_ms))

    def _refund(self) -> None:
        """Refund what ended gangs were charged for."""
        tree = self._state.tree
        while self._charges and self._charges[0][0] <= self._nodes.now_ms:
            _, _, queue, user, amounts, node_ms = heappop(self._charges)
            tree.charge(queue, tuple(-amount for amount in amounts))
            tree.charge_user(queue, user, -amounts[0], -node_ms, -1)

    # -- reservations --------------------------------------------------------------------------------------------------

    def _keep_reservations(self) -> None:
        """Take over the reservations that there are."""
        names, nodes = self._state.nodes.index, self._nodes
        for index, gang in enumerate(self.order):
            reserved = self._state.reservations.get(gang.id)
            if reserved is None or reserved.start_ms is None or self._gangs.is_reserved[index]:
                continue
            indices = [names[name] for name in dict.fromkeys(reserved.nodes) if name in names]
            start_ms = max(nodes.now_ms, reserved.start_ms)
            nodes.keep(index, self._parts[index][0], np.array(indices, dtype=np.int64), start_ms)
            self._count_reservation(index)

    def _may_reserve(self) -> Bools:
        """Return (gangs,) True for those that may get a reservation now."""
        gangs, limits = self._gangs, self._limits
        if limits is None or (limits.total is not None and self._reserved_counts.sum() >= limits.total):
            return np.zeros(len(self.order), dtype=bool)
        without = gangs.waits & ~gangs.is_reserved
        if limits.per_queue is None:
            return without
        has_first = self._reserved_counts[0] < limits.per_queue
        may_reserve: Bools = without & (has_first[gangs.queue] | self._may_reserve_as_large())
        return may_reserve

    def _may_reserve_as_large(self) -> Bools:
        gangs, limits = self._gangs, self._limits
        is_old: Bools = gangs.large_ms <= self._nodes.now_ms
        if limits is None or limits.large.per_queue is None:
            return is_old
        has_room: Bools = self._reserved_counts[1] < limits.large.per_queue
        may_reserve: Bools = is_old & has_room[gangs.queue]
        return may_reserve

    def _reserve(self, index: int) -> bool:
        if not self._nodes.reserve(index, self._parts[index][0], int(self._gangs.stays_ms[index])):
            return False
        self._count_reservation(index)
        return True

    def _count_reservation(self, index: int) -> None:
        gangs = self._gangs
        gangs.is_reserved[index], gangs.is_large[index] = True, self._may_reserve_as_large()[index]
        self._reserved_counts[int(gangs.is_large[index]), gangs.queue[index]] += 1

    def _drop_reservation(self, index: int) -> None:
        gangs = self._gangs
        self._nodes.forget(index)
        gangs.is_reserved[index] = False
        self._reserved_counts[int(gangs.is_large[index]), gangs.queue[index]] -= 1
