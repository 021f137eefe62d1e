"""Where and when a pending gang could start later than now.

`earliest` finds the first start by the limits of what holds the nodes: for a gang that starves and can have no reserved
start, and for "until when" in explanations. `slots` and `placed_from` find starts on the availability profile, for
reservations, which ask what quotas and other reservations say of them. The real start is placed by
`core.placement.place` like any other: what is found here is on which nodes it is sure to be possible.
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
from ganger.core.placement.start_check import StartRequest, where
from ganger.core.placement.topology_packing import lay_out, rooms
from ganger.core.reservations.availability_profile import AvailabilityProfile
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

_SOMEBODY: Final = 0
"""Owner of a device that is not free then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarliestStart:
    """Where it could start, when (None: somebody in the way has no time limit), and who is in the way there."""

    shares: tuple[NodeShare, ...]
    at_ms: int | None
    after: tuple[str, ...]


def earliest(state: State, wanted: StartRequest, now_ms: int) -> EarliestStart | None:
    """The first opening when gangs leave in the order of their limits, those without one last; None if there is none.

    Nothing else is assumed to start meanwhile: who leaves makes room and takes none, so that the first opening is found
    by halving. O(log gangs) placements.
    """
    with state.trial(), state.windows.later():
        exodus = _Exodus(state, (gang for gang, _ in state.by_end(now_ms)), now_ms)
        too_few, enough, step = -1, 0, 1
        while not (found := exodus.place(enough, wanted)):
            too_few, enough, step = enough, exodus.most(enough + step), 2 * step
            if enough == too_few:
                return None
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if here := exodus.place(middle, wanted):
                enough, found = middle, here
            else:
                too_few = middle
    gone, there = exodus.gangs[:enough], {share.node: None for share in found}
    after = tuple(gang.id for gang in gone if any(share.node in there for share in state.shares[gang.id]))
    return EarliestStart(shares=found, at_ms=gone[-1].ends_ms(now_ms) if gone else now_ms, after=after)


class _Exodus:
    """Gangs that leave one after the other, inside a trial; any number of them may be let go and called back. gangs:
    those that were looked at so far."""

    def __init__(self, state: State, leaving: Iterator[Gang], now_ms: int) -> None:
        self.gangs: list[Gang] = []
        self._leaving, self._now_ms = leaving, now_ms
        self._state, self._marks = state, [state.undo.mark()]

    def most(self, many: int) -> int:
        """So many, or all there are."""
        self.gangs += islice(self._leaving, max(0, many - len(self.gangs)))
        return min(many, len(self.gangs))

    def place(self, gone: int, wanted: StartRequest) -> Shares | None:
        """Where a gang may start once so many have left."""
        if gone < len(self._marks):
            self._state.undo.back_to(self._marks[gone])
            del self._marks[gone + 1 :]
        for gang in self.gangs[len(self._marks) - 1 : gone]:
            self._state.release(gang)
            self._marks.append(self._state.undo.mark())
        if self._state.windows and gone:
            end_ms = self.gangs[gone - 1].ends_ms(self._now_ms)
            self._state.windows.now_ms = self._now_ms if end_ms is None else end_ms
        return where(self._state, wanted.at_least)


# -- on the availability profile ---------------------------------------------------------------------------------------


def shares_on(shape: Shape, nodes: tuple[str, ...]) -> Shares:
    """Shares of a promise: which part is on which node."""
    parts = [number for number, part in enumerate(shape.parts) for _ in range(part.nodes)]
    return tuple(
        NodeShare(node, (), tuple(range(shape.parts[part].gpus)), part) for node, part in zip(nodes, parts, strict=True)
    )


def slots(
    profile: AvailabilityProfile, wanted: StartRequest, for_ms: int, usable: NDArray[np.bool_], first: int
) -> Iterator[int]:
    """Slots, rising, in which each part of it alone could begin."""
    shape = wanted.shape
    if not _is_plain(shape):
        yield from range(first, len(profile.edges))
        return
    if len(shape.choices) == 1:
        yield from profile.starts(shape.choices[0], (shape.nodes, for_ms), usable, first)
        return
    found = (profile.starts(choice, (shape.nodes, for_ms), usable, first) for choice in shape.choices)
    yield from dict.fromkeys(merge(*found))


def _is_plain(shape: Shape) -> bool:
    """Whether it has one part, on nodes of its own."""
    return not shape.more and not shape.stacked


def placed_from(
    state: State, profile: AvailabilityProfile, wanted: StartRequest, when: tuple[int, int], usable: NDArray[np.bool_]
) -> Shares | None:
    """Shares on which it could begin with that slot and stay for so long."""
    shape, nodes = wanted.shape, state.nodes
    if not _is_plain(shape):
        return _placed_together(state, profile, wanted, when, usable)
    for choice in shape.choices:
        times = (profile.holding(choice, *when) & usable).astype(np.int64)
        if int(times.sum()) < shape.nodes:
            continue
        found = lay_out(nodes, rooms(nodes.topology, times), shape.nodes, (shape.layout, shape.slices))
        if found is not None:
            names = tuple(nodes.names[at] for at in found[0].tolist())
            return shares_on(shape, names)
    return None


def _placed_together(
    state: State, profile: AvailabilityProfile, wanted: StartRequest, when: tuple[int, int], usable: NDArray[np.bool_]
) -> Shares | None:
    """The same for parts that may share nodes: placed on the nodes as they will be at their fullest."""
    nodes, devices, undo = state.nodes, state.nodes.devices, state.undo
    every = np.arange(len(nodes.nodes))
    there = profile.window(every, when[0], int(profile.ends(when[1])[when[0]]))
    owner = np.where(devices.place < (nodes.gpus - there.gpus)[devices.node], _SOMEBODY, FREE)
    free: tuple[NDArray[Any], ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    arrays = (*free, nodes.guests, nodes.alone, nodes.barred, devices.owner)
    with state.trial():
        for array in (devices.sharers, devices.used_milli, devices.used_memory_bytes):
            undo.put(array, slice(None), 0)
        for array, then in zip(arrays, (*there, ~usable, owner), strict=True):
            undo.put(array, slice(None), then.astype(array.dtype))
        undo.put(nodes.journal, every, None)
        found = place(nodes, replace(_whole(wanted.shape), more=tuple(map(_whole, wanted.shape.more))))
    return None if found is None else shares_on(wanted.shape, tuple(share.node for share in found))


def _whole(part: Shape) -> Shape:
    """With all of a device where it asks for a share: of one that has as much memory."""
    return replace(part, gpu_milli=DEVICE_MILLI) if part.has_share else part
