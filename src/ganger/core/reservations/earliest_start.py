"""Search for the earliest time and place at which a pending gang could start.

`find_earliest_start` finds the first start by the limits of running gangs: for a starving gang without a reservation,
and for the expected start in explanations. `candidate_slots` and `place_at_slot` find starts on the availability
profile, for reservations, which check quotas and other reservations themselves. The real start is placed by
`core.placement.place` like any other; these nodes are where it is sure to be possible.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import FREE
from ganger.core.placement.place import place
from ganger.core.placement.start_check import StartRequest, find_placement, on_probation
from ganger.core.placement.topology_packing import distribute, domain_rooms
from ganger.core.reservations.availability_profile import AvailabilityProfile
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.quota_forecast import QuotaForecast
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

_OCCUPIED: Final = 0
"""Owner of a device that is not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarliestStart:
    """A start that is possible later.

    Attributes:
        shares: Where.
        at_ms: When, or None if a gang in the way has no time limit.
        after: Gangs on these nodes that have to end first.
    """

    shares: tuple[NodeShare, ...]
    at_ms: int | None
    after: tuple[str, ...]


def find_earliest_start(state: State, request: StartRequest, now_ms: int) -> EarliestStart | None:
    """Return the first start if gangs leave in the order of their limits, those without one last; None if none is.

    Nothing else is assumed to start meanwhile. A gang that leaves makes room and takes none, so the number of
    departures that suffices is found by bisection: O(log gangs) placements for each interval in which maintenance
    leaves the gang the same nodes.
    """
    with state.trial(), state.maintenance.restoring_now():
        departures = _Departures(state, now_ms)
        begins_ms = _begins_ms(state, request, now_ms)
        for begin_ms, next_begin_ms in zip(begins_ms, (*begins_ms[1:], None), strict=True):
            state.maintenance.now_ms = begin_ms
            found = _first_in_interval(departures, request, begin_ms, next_begin_ms)
            if found is not None:
                count, shares = found
                break
        else:
            return None
    departed, nodes = departures.gangs[:count], {share.node: None for share in shares}
    after = tuple(gang.id for gang in departed if any(share.node in nodes for share in state.allocations[gang.id]))
    last_ms = departures.end_ms(count - 1) if count else now_ms
    return EarliestStart(shares=shares, at_ms=None if last_ms is None else max(begin_ms, last_ms), after=after)


def _begins_ms(state: State, request: StartRequest, now_ms: int) -> list[int]:
    """Return the times from which on maintenance leaves a gang that starts then other nodes than before, from now on.

    A window takes its nodes from gangs that would not end before it, until it is over.
    """
    windows, stays_ms = state.maintenance.values(), request.at_least.stays_ms
    times_ms = {ms: None for window in windows for ms in (window.from_ms - stays_ms + 1, window.until_ms)}
    return [now_ms, *sorted(ms for ms in times_ms if ms > now_ms)]


def _first_in_interval(
    departures: "_Departures", request: StartRequest, begin_ms: int, next_begin_ms: int | None
) -> tuple[int, Shares] | None:
    """Return the fewest departures with which a gang may start from a time on and before the next one, and where."""
    too_few, step = departures.count_until(begin_ms) - 1, 1
    enough, most = too_few + 1, None if next_begin_ms is None else departures.count_until(next_begin_ms - 1)
    while not (shares := departures.place(enough, request)):
        too_few, step = enough, 2 * step
        enough = departures.count_up_to(too_few + step // 2 if most is None else min(most, too_few + step // 2))
        if enough == too_few:
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if earlier_shares := departures.place(middle, request):
            enough, shares = middle, earlier_shares
        else:
            too_few = middle
    return enough, shares


class _Departures:
    """Gangs that leave one after the other, inside a trial; any number of departures can be made and undone.

    `gangs` are those considered so far. Where a node goes into maintenance before, its gangs leave it then.
    """

    def __init__(self, state: State, now_ms: int) -> None:
        self.gangs: list[Gang] = []
        self._state, self._now_ms, self._marks = state, now_ms, [state.undo.mark()]
        self._drained_ms = {
            gang.id: max(now_ms, window.from_ms)
            for window in sorted(state.maintenance.values(), key=lambda window: -window.from_ms)
            for gang in state.on_nodes(window.nodes)
        }
        leaving = (gang for gang, _ in state.by_end(now_ms))
        self._leaving = iter(sorted(leaving, key=self._end_order)) if self._drained_ms else leaving

    def end_ms(self, index: int) -> int | None:
        """Return when a gang that was considered leaves, or None if that is not known."""
        end_ms = self._end_order(self.gangs[index])
        return None if end_ms >= NEVER_MS else end_ms

    def count_up_to(self, count: int) -> int:
        """Return `count`, or the number of gangs if there are fewer."""
        self.gangs += islice(self._leaving, max(0, count - len(self.gangs)))
        return min(count, len(self.gangs))

    def count_until(self, at_ms: int) -> int:
        """Return how many gangs have left by a time; those that leave now still hold their nodes."""
        if at_ms <= self._now_ms:
            return 0
        count = 0
        while self.count_up_to(count + 1) > count and self._end_order(self.gangs[count]) <= at_ms:
            count += 1
        return count

    def _end_order(self, gang: Gang) -> int:
        end_ms = gang.ends_ms(self._now_ms)
        return min(NEVER_MS if end_ms is None else end_ms, self._drained_ms.get(gang.id, NEVER_MS))

    def place(self, departures: int, request: StartRequest) -> Shares | None:
        """Return where a gang may start after that many departures."""
        if departures < len(self._marks):
            self._state.undo.roll_back(self._marks[departures])
            del self._marks[departures + 1 :]
        for gang in self.gangs[len(self._marks) - 1 : departures]:
            self._state.release(gang)
            # What it used of the node time of a period stays used.
            shape, user = gang.shape, gang.job.user
            self._state.tree.charge_period(gang.queue, user, shape.all_nodes, gang.requested_stay_ms)
            self._marks.append(self._state.undo.mark())
        return find_placement(self._state, request.at_least)


# -- on the availability profile ---------------------------------------------------------------------------------------


def shares_on(shape: Shape, nodes: tuple[str, ...]) -> Shares:
    """Return the shares of a reservation: which part is on which node."""
    parts = [number for number, part in enumerate(shape.parts) for _ in range(part.nodes)]
    return tuple(
        NodeShare(node, (), tuple(range(shape.parts[part].gpus)), part) for node, part in zip(nodes, parts, strict=True)
    )


def candidate_slots(
    profile: AvailabilityProfile, request: StartRequest, for_ms: int, usable: NDArray[np.bool_], first: int
) -> Iterator[int]:
    """Yield the slots, rising, in which each part by itself could begin."""
    shape = request.shape
    if not _has_one_part(shape):
        yield from range(first, len(profile.edges))
        return
    if len(shape.choices) == 1:
        yield from profile.start_slots(shape.choices[0], (shape.nodes, for_ms), usable, first)
        return
    slots = (profile.start_slots(choice, (shape.nodes, for_ms), usable, first) for choice in shape.choices)
    yield from dict.fromkeys(merge(*slots))


def _has_one_part(shape: Shape) -> bool:
    """Return whether a shape has a single part, on nodes of its own."""
    return not shape.more and not shape.stacked


def place_at_slot(
    state: State,
    profile: AvailabilityProfile,
    request: StartRequest,
    slot_and_ms: tuple[int, int],
    usable: NDArray[np.bool_],
) -> Shares | None:
    """Return shares on which a gang could begin with the slot and stay for the time: (slot, ms)."""
    shape, nodes = request.shape, state.nodes
    if not _has_one_part(shape):
        return _place_together(state, profile, request, slot_and_ms, usable)
    for choice in shape.choices:
        room_counts = (profile.holding_nodes(choice, *slot_and_ms) & usable).astype(np.int64)
        if int(room_counts.sum()) < shape.nodes:
            continue
        layout = distribute(nodes, domain_rooms(nodes.topology, room_counts), shape.nodes, (shape.layout, shape.slices))
        if layout is not None:
            names = tuple(nodes.attributes.names[index] for index in layout[0].tolist())
            return shares_on(shape, names)
    return None


def _place_together(
    state: State,
    profile: AvailabilityProfile,
    request: StartRequest,
    slot_and_ms: tuple[int, int],
    usable: NDArray[np.bool_],
) -> Shares | None:
    """Return the same for parts that may share nodes, placed on the nodes with the least that is free in that time."""
    nodes, devices, undo = state.nodes, state.nodes.devices, state.undo
    indices = np.arange(len(nodes.nodes))
    least_free = profile.least_free(indices, slot_and_ms[0], int(profile.end_edges(slot_and_ms[1])[slot_and_ms[0]]))
    owner = np.where(devices.place < (nodes.total.gpus - least_free.gpus)[devices.node], _OCCUPIED, FREE)
    free_arrays: tuple[NDArray[Any], ...] = (*nodes.free, *nodes.extended.free.values())
    arrays = (*free_arrays, nodes.occupancy.guests, nodes.occupancy.alone, nodes.excluded, devices.owner)
    with state.trial():
        for array in (devices.sharers, devices.used_milli, devices.used_memory_bytes):
            undo.put(array, slice(None), 0)
        least = (*least_free.amounts, least_free.guests, least_free.alone)
        for array, values in zip(arrays, (*least, ~usable, owner), strict=True):
            undo.put(array, slice(None), values.astype(array.dtype))
        undo.put(nodes.journal, indices, None)
        more = tuple(map(_with_whole_devices, request.shape.more))
        placement = place(nodes, replace(_with_whole_devices(request.shape), more=more))
    return None if placement is None else shares_on(request.shape, tuple(share.node for share in placement))


def _with_whole_devices(part: Shape) -> Shape:
    """Return the part with a whole device, of that much memory, where it requests a share of one."""
    return replace(part, gpu_milli=DEVICE_MILLI) if part.has_share else part


def usable_nodes_of(state: State, request: StartRequest) -> NDArray[np.bool_]:
    """Return (N,) True for nodes in service that a request does not avoid."""
    nodes = state.nodes
    usable: NDArray[np.bool_] = nodes.ready & ~nodes.held
    avoided = (*request.avoids, *on_probation(state, request))
    usable[[nodes.index[name] for name in avoided if name in nodes.index]] = False
    return usable


def open_types(
    state: State, quota: QuotaForecast | FlatQuotaForecast, request: StartRequest, at_ms: int
) -> NDArray[np.bool_]:
    """Return (N,) True for nodes of types that the queue may have as much of at that time."""
    nodes = state.nodes
    is_open: NDArray[np.bool_] = np.ones(len(nodes.nodes), dtype=bool)
    if isinstance(quota, FlatQuotaForecast):
        return is_open  # no type has a quota
    for gpu_type in quota.tree_at(request.user, at_ms).closed_types(request.queue, request.shape):
        is_open &= ~nodes.attributes.of_type(gpu_type)
    return is_open
