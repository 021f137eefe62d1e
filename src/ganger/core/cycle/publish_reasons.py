"""Publishing the pending reason of each job class whose reason changed.

To find the reasons of all classes would cost as much as all that wait. A cycle considers the newest gangs, and a few
others in rotation. Which ones depends on the state alone, not on what the cycle found; `core.explain.explain` computes
current reasons on demand. What many classes have in common, such as the exhausted quota of a queue or the lack of nodes
for a kind, is computed once.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from ganger.core.cycle.cycle_state import CURABLE, Cycle
from ganger.core.placement.start_check import (
    StartRequest,
    check_quota,
    find_room,
    no_room_reason,
    over_limits,
    start_request,
)
from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.state import Shares
from ganger.model.decision import Wait
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.queue import UserLimits

MAX_REASONS: Final = 16
"""Reasons that one cycle considers."""
MAX_NEWEST: Final = 8
"""Of these, reasons of the newest gangs, so that the rotation reaches the others."""
STRIDE: Final = 7_919
"""Step of the rotation in a lane with each event: a prime, so that it reaches every gang of a lane of any length."""
MAX_GANGS_SCANNED: Final = 8 * MAX_REASONS
"""Gangs considered to find that many classes: many gangs may be of few classes."""


def changed_reasons(cycle: Cycle, known: dict[ClassKey, PendingReason]) -> list[Wait]:
    """Return the changed pending reasons in policy order.

    `known` are the reasons that the cycle found while it tried gangs.
    """
    reasons = reasons_of_classes(cycle, _classes_to_publish(cycle, known), known)
    texts = ((class_text(key), reason) for key, reason in reasons.items())
    return [
        Wait(gang_class=text, reason=reason)
        for text, reason in texts
        if cycle.state.pending.reasons.get(text) != reason
    ]


def reasons_of_classes(
    cycle: Cycle, keys: Iterable[ClassKey], known: dict[ClassKey, PendingReason]
) -> dict[ClassKey, PendingReason]:
    """Return the reasons of these classes, if they are still pending at the end of the cycle, in policy order."""
    waiting = [(key, gang) for key in keys if (gang := _first_waiting(cycle, key))]
    waiting.sort(key=lambda key_and_gang: cycle.policy.key(key_and_gang[1], cycle.state, cycle.now_ms))
    reasons = _find_reasons(cycle, waiting, known)
    return {key: reasons[key] for key, _ in waiting}


def reasons_of_all_classes(cycle: Cycle, known: dict[ClassKey, PendingReason]) -> dict[ClassKey, PendingReason]:
    """Return the reasons of all pending classes, in no particular order."""
    classes = cycle.state.pending.classes.items()
    return _find_reasons(
        cycle, [(key, gang) for key, members in classes if (gang := _first_waiting_of(cycle, members))], known
    )


WaitingClasses = list[tuple[ClassKey, Gang]]


def _find_reasons(
    cycle: Cycle, waiting: WaitingClasses, known: dict[ClassKey, PendingReason]
) -> dict[ClassKey, PendingReason]:
    cache, by_key = _ReasonCache(cycle), dict[ReasonKey, WaitingClasses]()
    for key, gang in waiting:
        by_key.setdefault(cache.reason_key(key, gang), []).append((key, gang))
    reasons: dict[ClassKey, PendingReason] = {}
    for members in by_key.values():
        first_gang = members[0][1]
        reason = cache.reason(first_gang)
        holders = cache.holders_blocking(first_gang) if cycle.holds.by_gang and reason.code in CURABLE else ()
        for key, gang in members:
            reasons[key] = cycle.blocked_by_holds(gang, holders) if holders else reason
    return reasons | {key: reason for key, reason in known.items() if key in reasons}


ReasonKey = tuple[Any, ...]
"""The facts that decide a reason: gangs with equal keys have the same, but for the holders that precede them."""


class _ReasonCache:
    """Reasons after a finished cycle, each computed once per `reason_key`."""

    def __init__(self, cycle: Cycle) -> None:
        """Create an empty cache for a cycle in which everything is placed."""
        self._cycle = cycle
        tree = cycle.state.tree
        has_limits = [queue.user_limits != UserLimits() for queue in tree.queues]
        self._has_user_limits = {
            name: any(has_limits[above] for above in tree.path(index)) for name, index in tree.index.items()
        }
        self._rooms: dict[ReasonKey, Shares | PendingReason] = {}
        self._holders: dict[ReasonKey, tuple[Gang, ...]] = {}

    def reason_key(self, key: ClassKey, gang: Gang) -> ReasonKey:
        """Return what the reason of a gang follows from."""
        queue, user, _, shape, times, array, avoids = key
        has_reserved = self._cycle.holds.by_gang or self._cycle.reservations.by_gang or self._cycle.state.maintenance
        own = (user, times) if self._has_user_limits[queue] else ("", times) if has_reserved else ("", ())
        own = (*own, gang.expected) if has_reserved else own
        return queue, shape, avoids, *own, array, gang.id if self._has_own_capacity(gang) else ""

    def reason(self, gang: Gang) -> PendingReason:
        """Return the reason why a gang is pending at the end of the cycle."""
        state = self._cycle.state
        if state.arrays.is_full(gang):
            return PendingReason(code=ReasonCode.ARRAY_LIMIT, need=gang.array_limit or 0)
        request = start_request(gang)
        if self._cycle.holds.by_gang and self._has_own_capacity(gang):
            result: Shares | PendingReason = self._cycle.fit(gang)
        else:
            result = over_limits(state, request) or check_quota(state, request, self._find_room(request))
        if isinstance(result, tuple) and self._cycle.reservations.by_gang:
            # Whether it delays a reservation depends on how long it stays.
            result = self._cycle.blocked_by_reservations(gang, result) or result
        return result if isinstance(result, PendingReason) else no_room_reason(state, request, self._cycle.now_ms)

    def holders_blocking(self, gang: Gang) -> tuple[Gang, ...]:
        """Return the gangs whose capacity holds keep this one from starting."""
        own = gang.class_key if self._has_user_limits[gang.queue] or self._cycle.state.maintenance else gang.avoids
        key = gang.queue, gang.shape, own, gang.id if gang.id in self._cycle.holds.by_gang else ""
        if key not in self._holders:
            self._holders[key] = self._cycle.holds.holders_blocking(gang)
        return self._holders[key]

    def _has_own_capacity(self, gang: Gang) -> bool:
        """Return whether a gang has a capacity hold or a reservation."""
        return gang.id in self._cycle.holds.by_gang or gang.id in self._cycle.reservations.by_gang

    def _find_room(self, request: StartRequest) -> Shares | PendingReason:
        """Return where the nodes have room for the request, or why they have none."""
        state = self._cycle.state
        closed = state.tree.closed_types(request.queue, request.shape)
        stays_ms = request.at_least.stays_ms if state.maintenance else 0
        key = request.shape, request.avoids, closed, request.queue if closed else "", stays_ms
        if key not in self._rooms:
            result = find_room(state, request, self._cycle.now_ms)
            self._rooms[key] = result
        return self._rooms[key]


def _classes_to_publish(cycle: Cycle, known: dict[ClassKey, PendingReason]) -> Iterator[ClassKey]:
    """Yield classes to consider, each once.

    All if they are few; otherwise those with a known reason, those of the newest gangs, then others in rotation with
    the log.
    """
    if len(cycle.state.pending.classes) <= MAX_REASONS:
        yield from cycle.state.pending.classes
        return
    newest = (gang for gang in islice(reversed(cycle.state.gangs.values()), MAX_NEWEST) if _waits(gang))
    pending = (gang.class_key for gang in islice(chain(newest, _pending_in_rotation(cycle)), MAX_GANGS_SCANNED))
    classes: dict[ClassKey, None] = {}
    for key in chain(known, pending):
        if len(classes) == MAX_REASONS:
            return
        if key not in classes:
            classes[key] = None
            yield key


def _pending_in_rotation(cycle: Cycle) -> Iterator[Gang]:
    """Yield all pending gangs, beginning with another lane in each cycle and in each lane at another position."""
    lanes, position = cycle.state.pending.lanes(cycle.policy).by_key, cycle.state.seq
    first_lane = position % max(1, len(lanes))
    for lane in chain(islice(lanes.values(), first_lane, None), islice(lanes.values(), first_lane)):
        begin = position * STRIDE % len(lane.entries)
        for entry in chain(lane.entries[begin : begin + MAX_REASONS], lane.entries[:begin]):
            yield entry.gang


def _waits(gang: Gang) -> bool:
    return gang.state is GangState.PENDING and not gang.awaits


def _first_waiting(cycle: Cycle, key: ClassKey) -> Gang | None:
    """Return the first gang of a class that is still pending and not in a backoff pause."""
    return _first_waiting_of(cycle, cycle.state.pending.classes[key])


def _first_waiting_of(cycle: Cycle, members: Iterable[Gang]) -> Gang | None:
    return next(filter(cycle.waits, members), None)
