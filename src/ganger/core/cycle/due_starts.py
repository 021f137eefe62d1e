"""Due times of queues: the time from which a gang may have a reservation without taking more than its queue's share.

A reservation keeps its gang's place from whatever comes before it in the order, so a queue whose first gang always has
the next place that becomes free gets as many places as any other, whatever the weights: with weights 3:1 and one
reservation for each queue, both got half of the cluster.

A queue is therefore due only once enough of its own gangs have ended that its gang would be first in the order, with
what other queues hold now: what ends there is replaced by theirs, since only queues count in which a gang could start
but for the nodes. Then a reservation delays other queues by its own size at most, and by nothing once its queue's lag
is made up for. Points for what another gang alone has, such as priority, do not make a queue wait: that gang is in the
way only until it has started. Points of the gang itself count, so one that is passed over for long is due at some time,
whatever its queue holds.

What a queue holds only falls as its gangs end, and an order key never falls while usage grows
(`core.queue_order.policy_interface`), so the time is found by bisection over the ends of the queue's gangs.
"""

from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping
from heapq import heappop, heappush, merge
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from ganger.core.placement.start_check import could_ever_start, exceeded_limit, start_request
from ganger.core.queue_order.policy_interface import Key, Policy, join_key
from ganger.core.queues.quota import Vector
from ganger.core.queues.share_bounds import ZERO_VECTOR
from ganger.core.state.gang import ClassKey, Gang
from ganger.core.state.pending_index import LaneEntry
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State

MAX_LOOKED_AT: Final = 8
"""Gangs of a queue, the oldest, of which one must be able to start for the queue to count; bounds the search where a
long backlog waits for its user's limit."""
_LEAST: Final[Vector] = (1, 1, 1)
"""A thousandth of a GPU, of a core, and a byte: with so much less, of two queues that hold alike each is due, though an
order may break the tie by name."""


class _Ended(NamedTuple):
    """The holdings of a queue's gangs that have ended by a time: of one user's gangs, and of all others."""

    at_ms: int
    of_user: Vector = ZERO_VECTOR
    of_others: Vector = ZERO_VECTOR


class DueStarts:
    """The times from which queues are due, in one cycle."""

    def __init__(self, state: State, now_ms: int, policy: Policy, gone: tuple[Container[str], ...]) -> None:
        """Begin a cycle; gangs in one of `gone` do not wait any more."""
        self._state, self._now_ms, self._policy, self._gone = state, now_ms, policy, gone
        self._ended: dict[tuple[str, str], list[_Ended]] = {}
        """By queue and user, the ends of the queue's gangs when the cycle began, rising."""
        self._possible: dict[ClassKey, bool] = {}
        """By class, whether a gang of it could start if nothing else ran; that does not change within a cycle."""

    def due_ms(self, gang: Gang, reserved: Mapping[str, Vector]) -> int:
        """Return from when a gang may have a reservation: now at the earliest, NEVER_MS where no end is known.

        `reserved` is what other gangs with a reservation will take, by queue: they count as if they ran.
        """
        state, policy, shares = self._state, self._policy, self._state.fair_shares
        queue, user, own_key = gang.queue, gang.job.user, policy.gang_key(gang, state, self._now_ms)

        with state.trial():
            for name, demand in reserved.items():
                shares.add_queue_held(name, demand, +1)
            first_key = self._first_key_of_others(queue, own_key)
            if first_key is None:
                return self._now_ms
            shares.add_queue_held(queue, _LEAST, -1)

            def is_due_after(ended: _Ended) -> bool:
                with state.trial():
                    shares.add_queue_held(queue, ended.of_others, -1)
                    shares.add_held(queue, user, ended.of_user, -1)
                    account_key = policy.account_key(state, queue, user, self._now_ms)
                return join_key(account_key, own_key) <= first_key

            ends = [_Ended(self._now_ms), *self._ends_in(queue, user)]
            position = bisect_left(ends, True, key=is_due_after)
        return ends[position].at_ms if position < len(ends) else NEVER_MS

    def _first_key_of_others(self, queue: str, own_key: Key) -> Key | None:
        """Return the smallest key of a gang of another queue that waits for nodes alone, or None if there is none.

        What such a gang has by itself counts as far as the gang with `own_key` has as much.
        """
        state, policy = self._state, self._policy
        heap: list[tuple[Key, Gang, Iterator[Gang]]] = []

        def push_next(waiting: Iterator[Gang]) -> None:
            rival = next(waiting, None)
            if rival is not None:
                account_key = policy.account_key(state, rival.queue, rival.job.user, self._now_ms)
                gang_key = max(own_key, policy.gang_key(rival, state, self._now_ms))
                heappush(heap, ((*join_key(account_key, gang_key), rival.number), rival, waiting))

        for name in state.pending.lanes(policy).queues:
            if name != queue:
                push_next(filter(self._waits_for_nodes, self._oldest(name)))
        while heap:
            key, rival, waiting = heappop(heap)
            if rival.class_key not in self._possible:
                self._possible[rival.class_key] = could_ever_start(state, start_request(rival))
            if self._possible[rival.class_key]:
                return key[:-1]
            push_next(waiting)
        return None

    def _oldest(self, queue: str) -> Iterator[Gang]:
        lanes = self._state.pending.lanes(self._policy).queues[queue].lanes
        entries = merge(*(lane.entries for lane in lanes), key=_number)
        return (entry.gang for entry in islice(entries, MAX_LOOKED_AT))

    def _waits_for_nodes(self, gang: Gang) -> bool:
        is_paused = gang.retries.unadmitted or gang.retries.not_before_ms > self._now_ms
        is_gone = any(gang.id in gangs for gangs in self._gone)
        return not is_paused and not is_gone and exceeded_limit(self._state, start_request(gang)) is None

    def _ends_in(self, queue: str, user: str) -> list[_Ended]:
        if (queue, user) not in self._ended:
            allocations, charges = self._state.allocations, self._state.quota_charges
            known = ((allocations.end_ms(gang.id), gang) for gang in allocations.oldest(queue=queue))
            ends, total = list[_Ended](), _Ended(0)
            for end_ms, gang in sorted((end for end in known if end[0] < NEVER_MS), key=itemgetter(0)):
                charge = charges[gang.id][: len(ZERO_VECTOR)]
                if gang.job.user == user:
                    total = total._replace(of_user=_add(total.of_user, charge))
                else:
                    total = total._replace(of_others=_add(total.of_others, charge))
                ends.append(total._replace(at_ms=max(self._now_ms, end_ms)))
            self._ended[queue, user] = ends
        return self._ended[queue, user]


def _add(left: Vector, right: Vector) -> Vector:
    return tuple(one + other for one, other in zip(left, right, strict=True))


def _number(entry: LaneEntry) -> int:
    return entry.gang.number
