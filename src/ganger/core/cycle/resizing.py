"""The sizes of elastic gangs: growth into nodes that nothing else needs, and what stays when a gang is to be smaller.

Gangs grow after all pending gangs of a cycle have been tried. One that starts in the cycle, for the first time or after
a resize, starts with more nodes; a running one is resized. Nodes are given out unit by unit to the gang that is
smallest for its minimum, as far as quota and limits of its user allow and no reservation is delayed, for as long as the
gang is expected to run. What is given can be taken back by any pending gang that needs it. A gang that must stay in one
domain of a topology level moves to another one if it can have more nodes there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from ganger.core.cycle.cycle_state import Cycle
from ganger.core.placement.start_check import exceeded_limit, start_request
from ganger.core.reservations.capacity_forecast import Reservation
from ganger.core.state.elastic_gangs import is_gain, ranked, unit_of
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.spares import is_usable
from ganger.core.state.state import Shares, State
from ganger.model.decision import Cause, NodeShare, Start, Stop
from ganger.model.job import GangState
from ganger.model.shape import Shape

MAX_FAILURES: Final = 4
"""Gangs with one kind of unit that may fail to grow before a cycle tries no more of them."""


@dataclass(slots=True)
class _Growth:
    """A gang that may grow, and by how many units it is to."""

    gang: Gang
    unit: Shape
    units: int = 0

    @property
    def max_units(self) -> int:
        """The units that it lacks."""
        return (self.gang.max_nodes - self.gang.size) // self.unit.nodes

    @property
    def size(self) -> tuple[float, int]:
        """Its nodes for each of its minimum, by which the gangs take turns."""
        nodes = self.gang.size + self.units * self.unit.nodes
        return nodes / self.gang.job.spec.sizes.start, self.gang.number


def grow(cycle: Cycle, starts: list[Start]) -> tuple[list[Start], list[Stop]]:
    """Return the starts of the cycle, with more nodes where there are some, and the stops of gangs that are resized."""
    state, enlarged, stops = cycle.state, dict[str, Shares](), list[Stop]()
    starting: dict[Shape, list[Gang]] = {}
    for gang in (cycle.started_gangs.get(start.gang) or state.gangs[start.gang] for start in starts):
        if gang.size < gang.max_nodes:
            starting.setdefault(unit_of(gang), []).append(gang)
    elastic = state.timers.elastic
    for unit in dict.fromkeys((*starting, *elastic.by_unit)):
        room = _room(state, unit)
        if room < unit.nodes:
            continue
        running = (state.gangs[name] for name in elastic.ready(unit, cycle.now_ms))
        gangs = [*starting.get(unit, ()), *(gang for gang in running if gang.id not in cycle.ending)]
        for gang, shares in _grow_unit(cycle, gangs, unit, room):
            if gang.state in (GangState.PENDING, GangState.RESIZING):
                enlarged[gang.id] = shares
            else:
                stops.append(_resizing_stop(gang, shares))
        if (next_ms := elastic.next_ms(unit, cycle.now_ms)) is not None:
            cycle.wakes_ms.append(next_ms)
    if enlarged and len(state.gangs) > len(state.allocations):
        cycle.is_unfinished = True  # they have surplus from now on, which a pending gang may need
    return (_enlarge(state, starts, enlarged) if enlarged else starts), stops


def _room(state: State, unit: Shape) -> int:
    """Return how many nodes of that kind there is room for, of one of its types."""
    return max(state.nodes.room(choice) for choice in unit.choices)


def _resizing_stop(gang: Gang, shares: Shares) -> Stop:
    return Stop(
        gang=gang.id,
        generation=gang.attempt.generation,
        cause=Cause.RESIZED,
        notice_ms=gang.notice_ms,
        shares=shares,
    )


def _enlarge(state: State, starts: list[Start], enlarged: dict[str, Shares]) -> list[Start]:
    """Return the starts with more shares; the later ones have other ports then."""
    result: list[Start] = []
    for start in starts:
        shares = enlarged.get(start.gang, start.shares)
        host = state.nodes.nodes[state.nodes.index[shares[0].node]].address
        port = state.rendezvous_port(shares, result[-1] if result else None)
        result.append(replace(start, shares=shares, host=host, port=port))
    return result


def _grow_unit(cycle: Cycle, gangs: list[Gang], unit: Shape, room: int) -> Iterator[tuple[Gang, Shares]]:
    """Let the gangs grow by units of that kind, and yield those that do, with all their shares."""
    failures = 0
    for growth in _shares_of_room([_Growth(gang, unit) for gang in gangs], room):
        gang, own = growth.gang, cycle.state.allocations[growth.gang.id]
        placed = _most_that_fits(growth, partial(_place_more, cycle, growth))
        moved = _most_that_fits(growth, partial(_place_elsewhere, cycle, growth), len(placed) // growth.unit.nodes)
        if placed or moved:
            yield gang, _take(cycle, gang, moved or placed, moved or (*own, *placed))
        elif (failures := failures + 1) == MAX_FAILURES:
            return


def _shares_of_room(growths: list[_Growth], room: int) -> list[_Growth]:
    """Return the growths with a part of the room, the smallest gangs first."""
    heap = [(growth.size, growth) for growth in growths if growth.max_units]
    heapify(heap)
    while heap and room >= heap[0][1].unit.nodes:
        _, growth = heappop(heap)
        growth.units, room = growth.units + 1, room - growth.unit.nodes
        if growth.units < growth.max_units:
            heappush(heap, (growth.size, growth))
    return [growth for growth in growths if growth.units]


def _most_that_fits(growth: _Growth, place: Callable[[int], Shares | None], low: int = 0) -> Shares:
    """Return the placement of most units, more than `low`, that the gang can have, by bisection; empty for none."""
    best, high, units = tuple[NodeShare, ...](), growth.units + 1, growth.units
    while units > low:
        placed = place(units)
        best, low, high = (best, low, units) if placed is None else (placed, units, high)
        units = (low + high) // 2
    return best


def _place_more(cycle: Cycle, growth: _Growth, units: int) -> Shares | None:
    """Return where a gang can have so many more units, or None if it cannot or if that does not pay."""
    gang, own = growth.gang, cycle.state.allocations[growth.gang.id]
    if not _may_have(cycle, growth, units):
        return None
    kind = same_kind(cycle.state, growth.unit, gang.elastic_shares(own))
    placed = place_near(cycle, gang, replace(kind, nodes=units * growth.unit.nodes), own)
    part = gang.job.spec.elastic_part
    return placed and tuple(replace(share, part=part) for share in placed)


def _place_elsewhere(cycle: Cycle, growth: _Growth, units: int) -> Shares | None:
    """Return where a gang that must stay in one domain can have so many more units in another one."""
    gang = growth.gang
    if not gang.shape.layout.required or not _may_have(cycle, growth, units):
        return None
    moved = replace(gang, shape=gang.sized(gang.size + units * growth.unit.nodes))
    return cycle.reservations.find_start(moved, start_request(moved), for_ms=_stays_ms(cycle, gang)).shares


def _may_have(cycle: Cycle, growth: _Growth, units: int) -> bool:
    """Return whether a gang is allowed so many more units, and gains from them."""
    state, gang, added = cycle.state, growth.gang, units * growth.unit.nodes
    if gang.state is GangState.RUNNING and not is_gain(gang, added, cycle.now_ms):
        return False
    with state.trial():
        state.release(gang)
        request = replace(start_request(gang), shape=gang.sized(gang.size + added))
        return exceeded_limit(state, request) is None


def _stays_ms(cycle: Cycle, gang: Gang) -> int:
    """Return for how long a gang is expected to run."""
    end_ms = gang.expected_end_ms(cycle.now_ms)
    return NEVER_MS if end_ms is None else max(1, end_ms - cycle.now_ms)


def _take(cycle: Cycle, gang: Gang, added: Shares, shares: Shares) -> Shares:
    """Allocate to a gang, for the rest of the cycle, the shares that it is to have; return them in order.

    added: those that it does not have yet
    """
    state, attempt, is_running = cycle.state, gang.attempt, gang.state is not GangState.PENDING
    shares = ranked(gang.shape, shares, state.nodes.index)
    if is_running:
        attempt = replace(attempt, target=shares)
    elif attempt.start is not None:
        attempt = replace(attempt, start=replace(attempt.start, shares=shares))
    grown = replace(gang, shape=gang.shape_on(attempt.shares if is_running else shares), attempt=attempt)
    state.release(gang)
    state.take(grown, grown.attempt.held if is_running else shares)
    if not is_running:
        cycle.started_gangs[gang.id] = grown
    cycle.reservations.table.add_running(replace(gang, shape=gang.shape_on(added)), added)
    return shares


def complete(cycle: Cycle, gang: Gang) -> Gang | None:
    """Place what a gang lacks beside the nodes that it keeps, for the rest of the cycle; return it with all of them.

    Those that are closed by now count as lacking. One that must be in one domain may find all that it needs in another
    one. None if there is nothing yet. It moves reservations as any gang that has run before.
    """
    state, attempt = cycle.state, gang.attempt
    kept = tuple(share for share in attempt.target if is_usable(state, share.node))
    whole = replace(gang, shape=gang.job.spec.shape)
    with state.trial():
        state.release(gang)
        if exceeded_limit(state, start_request(whole)) is not None:
            return None
    lacking = replace(same_kind(state, whole.shape, kept), nodes=whole.shape.nodes - len(kept))
    moved = cycle.reservations.movable_by(whole)
    placed = place_near(cycle, whole, lacking, kept)
    if placed is None and moved:
        placed = place_near(cycle, whole, lacking, kept, [other for other, _ in moved])
    target = (*kept, *placed) if placed else ()
    if placed is None and whole.shape.layout.required:
        placed = target = cycle.reservations.find_start(whole, start_request(whole)).shares or ()
        lacking = whole.shape
    if not placed:
        return None
    whole.attempt = replace(attempt, target=ranked(whole.shape, target, state.nodes.index))
    state.release(gang)
    state.take(whole, whole.attempt.held)
    cycle.reservations.table.add_running(replace(whole, shape=lacking), placed)
    cycle.reservations.postpone(moved)
    return whole


def place_near(
    cycle: Cycle, gang: Gang, shape: Shape, own: Shares, weaker: Iterable[Reservation] = ()
) -> Shares | None:
    """Return where more nodes of a gang fit, in the smallest domain around those that it has.

    They delay no reservation but the weaker ones.
    """
    more, around = replace(gang, shape=shape), tuple(share.node for share in own)
    taken = () if shape.stacked else tuple(share.node for share in gang.elastic_shares(own))
    for outside in _outsides(cycle.state, shape, around):
        request = replace(start_request(more), avoids=(*gang.avoids, *taken, *outside))
        placed = cycle.reservations.find_start(more, request, weaker, for_ms=_stays_ms(cycle, gang)).shares
        if placed is not None:
            return placed
    return None


def _outsides(state: State, shape: Shape, taken: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the nodes outside of each domain around a gang, the smallest first; none if any domain will do."""
    topology, layout = state.nodes.topology, shape.layout
    indices = np.array([state.nodes.index[node] for node in taken], dtype=np.intp)
    lowest = topology.depth(layout.level) if layout.required else 1
    for depth in range(len(topology.levels), lowest - 1, -1):
        domains = topology.domain[depth - 1]
        own = np.unique(domains[indices])
        if own.size == 1:
            names = state.nodes.attributes.names
            yield tuple(names[index] for index in np.flatnonzero(domains != own[0]).tolist())
    if not layout.required:
        yield ()


def same_kind(state: State, unit: Shape, own: Shares) -> Shape:
    """Return the choice of GPU type and network that a gang has made."""
    indices = [state.nodes.index[share.node] for share in own]
    choices = (choice for choice in unit.choices if state.nodes.able(choice)[indices].all())
    return next(choices, unit)


def smaller(state: State, gang: Gang, nodes: int) -> Shares:
    """Return the shares that a gang keeps when it is to have so many nodes: those of the domains with the most."""
    topology, held = state.nodes.topology, state.allocations[gang.id]
    shares, part = gang.elastic_shares(held), gang.job.spec.elastic_part
    domains = topology.domain_of(np.array([state.nodes.index[share.node] for share in shares])).tolist()
    order = sorted(range(len(shares)), key=lambda index: (-domains.count(domains[index]), domains[index], index))
    others = (share for share in held if share.part != part)
    return ranked(gang.shape, (*others, *(shares[index] for index in order[:nodes])), state.nodes.index)
