"""Where a gang goes: which nodes, and which devices on each. All of its nodes, or none.

Called by `core.cycle.plan`, `core.reservations.earliest_start` and `core.explain.explain`, on the arrays as they stand.
How many go where is decided by `core.placement.topology_packing`; here they become shares of nodes and devices, with
ranks in topology order.

A part that may be of several types, or on several networks, is of the first that has room for it. A gang of several
parts is placed part by part, those with the largest need first, each on what the others leave; where that leads
nowhere, in the other orders. All of it goes into one domain if it can: of the lowest level on which that succeeds.
Processes of a stacked part go where the gang is already, before they go elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations
from typing import Final, NamedTuple, TypeVar

import numpy as np

from ganger.core.nodes.devices import Order
from ganger.core.nodes.node_pools import Usable
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.placement.topology_packing import bounds, lay_out, only_named, rooms
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, SPREAD, Layout, Slices

Shares = tuple[NodeShare, ...]
Place = TypeVar("Place")

ORDERS_OF_PARTS: Final = 24
"""How many orders of the parts are tried: all of four."""
DOMAINS_TRIED: Final = 4
"""How many domains of a level are tried for a gang of several parts."""
_TRIED: Final = 0
"""Owner of what a trial placement takes; no gang has this number."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part to place: its shape, its index among the gang's, its first rank."""

    shape: Shape
    index: int
    first_rank: int

    def shares(self, nodes: NodeTable, at: Ints, many: Ints, order: Order | None) -> Shares:
        """So many of it on each of these nodes, which rise, on the devices that they have for it."""
        ranks = self.shape.ranks
        names, devices = nodes.names, nodes.choose(self.shape, at, many, order)
        places = np.repeat(at, many).tolist() if self.shape.stacked else at.tolist()
        return tuple(
            NodeShare(names[place], tuple(range(first, first + ranks)), its, self.index)
            for place, its, first in zip(places, devices, count(self.first_rank, ranks), strict=False)
        )


def place(nodes: NodeTable, shape: Shape) -> Shares | None:
    """Shares in rank order for every node of the gang, or None when it cannot be placed whole. O(nodes) for a part."""
    if shape.more:
        parts = list(_parts(shape))
        together = (_place_together(nodes, shape, parts, usable) for usable in nodes.pools.in_turn(shape))
        return next(filter(None, together), None)
    found = (
        _place_part(nodes, _Part(choice, 0, 0), times) for choice in shape.choices for times in _times(nodes, choice)
    )
    return next(filter(None, found), None)


def _times(nodes: NodeTable, choice: Shape) -> Iterator[Ints]:
    """(N,) how many each node could take, pool by pool, then of several pools."""
    times = nodes.times(choice)
    for usable in nodes.pools.in_turn(choice):
        there = times if usable is None else np.where(usable, times, 0)
        if usable is None or int(there.sum()) >= choice.nodes:
            yield there


class _First(NamedTuple):
    """What is compared before all else that is left, the least first: (N,) each of nodes; order: of the devices of a
    node, None: by what would be left of them."""

    nodes: tuple[Ints, ...] = ()
    order: Order | None = None


def preferred(nodes: NodeTable, choice: Shape, strategy: str) -> _First:
    """By the score of the policy; of a gang that is to be spread, for a share what is left of the device that takes
    it."""
    if strategy == SPREAD:
        every = np.arange(len(nodes.nodes))
        return _First((nodes.devices.left(choice, every),)) if choice.has_share else _First()
    return _First(nodes.scores.first(choice), nodes.scores.order)


def _parts(shape: Shape) -> Iterator[_Part]:
    first_rank = 0
    for index, part in enumerate(shape.parts):
        yield _Part(part, index, first_rank)
        first_rank += part.nodes * part.ranks


def _place_part(nodes: NodeTable, part: _Part, times: Ints) -> Shares | None:
    """Shares for one part; times: (N,) how many of it each node could take."""
    shape, layout = part.shape, part.shape.layout
    first = preferred(nodes, shape, layout.strategy)
    points = nodes.traits.points(shape.selector)
    if points is None:
        found = _on_one(nodes, shape, times, first) or _laid_out(nodes, shape, times, first.nodes)
    else:
        before = (points if layout.strategy == SPREAD else -points, *first.nodes)

        def attempt(layout: Layout, usable: Usable) -> tuple[Ints, Ints] | None:
            there = times if usable is None else np.where(usable, times, 0)
            return _laid_out(nodes, replace(shape, layout=layout), there, before)

        found = _most_preferred(attempt, layout, points)
    return None if found is None else part.shares(nodes, *found, first.order)


def _on_one(nodes: NodeTable, shape: Shape, times: Ints, first: _First) -> tuple[Ints, Ints] | None:
    """The node where `core.placement.topology_packing` begins, if it is to be one, of any domain, and nodes are not
    alike in what is left: most gangs are placed so."""
    if shape.nodes > 1 or shape.layout.required or shape.layout.strategy == SPREAD or shape.slices.level:
        return None
    able = np.flatnonzero(times)
    for amounts in (*first.nodes, nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes):
        if able.size < 2:
            break
        its = amounts[able]
        able = able[its == its.min()]
    return (able, np.ones(1, dtype=np.int64)) if able.size == 1 else None


def _laid_out(nodes: NodeTable, shape: Shape, times: Ints, first: Sequence[Ints]) -> tuple[Ints, Ints] | None:
    room = rooms(nodes.topology, times)
    return lay_out(nodes, room, shape.nodes, (shape.layout, shape.slices), first)


def _place_together(nodes: NodeTable, shape: Shape, parts: list[_Part], usable: Usable) -> Shares | None:
    """Shares for a gang of several parts, all of which prefer the same."""
    points = nodes.traits.points(shape.selector)
    if points is None:
        return _Together(nodes, shape, parts, usable).place()

    def attempt(layout: Layout, better: Usable) -> Shares | None:
        there = usable if better is None else better if usable is None else usable & better
        return _Together(nodes, replace(shape, layout=layout), parts, there).place()

    return _most_preferred(attempt, shape.layout, points)


def _most_preferred(attempt: Callable[[Layout, Usable], Place | None], layout: Layout, points: Ints) -> Place | None:
    """Return what `attempt` finds on the nodes with the most points, by halving; None when it finds nothing on all.

    points: (N,). What fits on some nodes fits where there are more of them. A gang is as fast as its slowest node: what
    counts is the node with the fewest points. That goes before packing, which no user asked for by name; the level of
    the network that the gang names, types in their order, and pools go before it.
    """
    best = attempt(layout, None)
    if best is None:
        return None
    if layout.level and not layout.required:
        inside = replace(layout, required=True)
        inner = attempt(inside, None)
        best, layout = (best, layout) if inner is None else (inner, inside)
    grades = np.unique(points)
    low, high = 0, len(grades) - 1
    while low < high:
        middle = (low + high + 1) // 2
        better = attempt(layout, points >= grades[middle])
        if better is None:
            high = middle - 1
        else:
            best, low = better, middle
    return best


class _Together:
    """A gang of several parts. While it is tried, its own parts are in nobody's way but by what they take."""

    def __init__(self, nodes: NodeTable, shape: Shape, parts: list[_Part], usable: Usable) -> None:
        self._nodes, self._layout = nodes, shape.layout
        alone = shape.selector.sharing != SHARED
        self._usable = nodes.empty() if alone else np.ones(len(nodes.nodes), dtype=bool)
        if alone and nodes.kept is not None:
            self._usable[nodes.kept.at[nodes.kept.guests]] = False
        self._usable &= True if usable is None else usable
        self._parts = [replace(part, shape=_sharing(part.shape)) for part in parts]
        self._shape = _sharing(replace(shape, more=tuple(_sharing(part) for part in shape.more)))

    def place(self) -> Shares | None:
        """Shares in rank order, on the lowest level on which a domain is found that takes every part."""
        return next(filter(None, map(self._place_in, self._homes())), None)

    def _homes(self) -> Iterator[slice]:
        """Nodes, then domains from the lowest level up, each of which has room for every part, if not for all at once:
        those with the least room first, so many of each level; the whole cluster last."""
        topology = self._nodes.topology
        within = bounds(topology, self._layout, Slices())
        if within is None:
            return
        choices = [[self._times(choice) for choice in part.shape.choices] for part in self._parts]
        every = [only_named(topology, np.maximum.reduce(times), within) for times in choices]
        all_rooms = [rooms(topology, times) for times in every]
        first = [*topology.first_node, np.arange(len(self._nodes.nodes) + 1)]
        for depth in range(within.lowest, within.highest - 1, -1):
            enough = [room[depth] >= part.shape.nodes for part, room in zip(self._parts, all_rooms, strict=True)]
            found = np.flatnonzero(np.logical_and.reduce(enough))
            order = np.argsort(np.add.reduce([room[depth][found] for room in all_rooms]), kind="stable")
            for at in found[order][:DOMAINS_TRIED].tolist():
                yield slice(int(first[depth][at]), int(first[depth][at + 1]))

    def _place_in(self, home: slice) -> Shares | None:
        """Shares on nodes of `home`, in the first order of the parts that leads to any."""
        for order, _ in zip(permutations(sorted(self._parts, key=_demand)), range(ORDERS_OF_PARTS), strict=False):
            placed: dict[int, Shares] = {}
            with self._nodes.trial():
                for part in order:
                    found = self._place_one(part, home, placed)
                    if found is None:
                        break
                    self._nodes.take(_TRIED, self._shape, found)
                    placed[part.index] = found
            if len(placed) == len(self._parts):
                return tuple(share for part in self._parts for share in placed[part.index])
        return None

    def _place_one(self, part: _Part, home: slice, placed: dict[int, Shares]) -> Shares | None:
        nodes, wanted = self._nodes, part.shape.nodes
        there = {nodes.index[share.node]: None for shares in placed.values() for share in shares}
        asked = Layout(strategy=self._layout.strategy), part.shape.slices
        for choice in part.shape.choices:
            times, many = np.zeros((2, len(nodes.nodes)), dtype=np.int64)
            times[home] = self._times(choice)[home]
            for near in there if part.shape.stacked else ():
                many[near] = min(int(times[near]), wanted - int(many.sum()))
                times[near] = 0
            rest = wanted - int(many.sum())
            first = preferred(nodes, choice, asked[0].strategy)
            found = lay_out(nodes, rooms(nodes.topology, times), rest, asked, first.nodes) if rest else None
            if found is not None:
                many[found[0]] += found[1]
            if found is not None or not rest:
                taken = np.flatnonzero(many)
                return part.shares(nodes, taken, many[taken], first.order)
        return None

    def _times(self, part: Shape) -> Ints:
        times: Ints = np.where(self._usable, self._nodes.times(part), 0)
        return times


def _sharing(part: Shape) -> Shape:
    return replace(part, selector=replace(part.selector, sharing=SHARED))


def _demand(part: _Part) -> tuple[bool, int, int, int, int]:
    """Different nodes before processes that share them, the largest need first."""
    shape = part.shape
    return shape.stacked, -shape.gpu_milli_of(0), -shape.gpu_memory_bytes, -shape.memory_bytes, -shape.cpu_milli
