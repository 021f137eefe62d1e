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
from ganger.core.placement.start_check import StartRequest, find_placement
from ganger.core.placement.topology_packing import distribute, domain_rooms
from ganger.core.reservations.availability_profile import AvailabilityProfile
from ganger.core.state.gang import Gang
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
    departures that suffices is found by bisection: O(log gangs) placements.
    """
    with state.trial(), state.maintenance.restoring_now():
        departures = _Departures(state, (gang for gang, _ in state.by_end(now_ms)), now_ms)
        too_few, enough, step = -1, 0, 1
        while not (shares := departures.place(enough, request)):
            too_few, enough, step = enough, departures.count_up_to(enough + step), 2 * step
            if enough == too_few:
                return None
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if earlier_shares := departures.place(middle, request):
                enough, shares = middle, earlier_shares
            else:
                too_few = middle
    departed, nodes = departures.gangs[:enough], {share.node: None for share in shares}
    after = tuple(gang.id for gang in departed if any(share.node in nodes for share in state.allocations[gang.id]))
    return EarliestStart(shares=shares, at_ms=departed[-1].ends_ms(now_ms) if departed else now_ms, after=after)


class _Departures:
    """Gangs that leave one after the other, inside a trial; any number of departures can be made and undone.

    `gangs` are those considered so far.
    """

    def __init__(self, state: State, leaving: Iterator[Gang], now_ms: int) -> None:
        self.gangs: list[Gang] = []
        self._leaving, self._now_ms = leaving, now_ms
        self._state, self._marks = state, [state.undo.mark()]

    def count_up_to(self, count: int) -> int:
        """Return `count`, or the number of gangs if there are fewer."""
        self.gangs += islice(self._leaving, max(0, count - len(self.gangs)))
        return min(count, len(self.gangs))

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
        if self._state.maintenance and departures:
            end_ms = self.gangs[departures - 1].ends_ms(self._now_ms)
            self._state.maintenance.now_ms = self._now_ms if end_ms is None else end_ms
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
            names = tuple(nodes.names[index] for index in layout[0].tolist())
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
    owner = np.where(devices.place < (nodes.gpus - least_free.gpus)[devices.node], _OCCUPIED, FREE)
    free_arrays: tuple[NDArray[Any], ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    arrays = (*free_arrays, nodes.guests, nodes.alone, nodes.excluded, devices.owner)
    with state.trial():
        for array in (devices.sharers, devices.used_milli, devices.used_memory_bytes):
            undo.put(array, slice(None), 0)
        for array, values in zip(arrays, (*least_free, ~usable, owner), strict=True):
            undo.put(array, slice(None), values.astype(array.dtype))
        undo.put(nodes.journal, indices, None)
        more = tuple(map(_with_whole_devices, request.shape.more))
        placement = place(nodes, replace(_with_whole_devices(request.shape), more=more))
    return None if placement is None else shares_on(request.shape, tuple(share.node for share in placement))


def _with_whole_devices(part: Shape) -> Shape:
    """Return the part with a whole device, of that much memory, where it requests a share of one."""
    return replace(part, gpu_milli=DEVICE_MILLI) if part.has_share else part
