"""Placement of a gang: which nodes it gets, and which devices on each. All of its nodes, or none.

How many nodes of a part go where is decided by `core.placement.topology_packing`; here these become shares of nodes and
devices, with ranks in topology order.

A part that accepts several GPU types or networks gets the first that has room for it; where the policy names a score, a
part of one node gets the best node of any of the types. A gang of several parts is placed part by part, those with the
largest demand first, each on what the others leave; if that fails, in other orders. The whole gang goes into one domain
if it can, of the lowest level on which that succeeds. Processes of a stacked part go to nodes that the gang already
uses before others.

Two properties of a placement are used elsewhere, and hold here by construction. It is *monotonic*: what fits on some
nodes fits on more of them, and beside less that is taken; so callers search by bisection over times, nodes and sizes.
For a gang of one part it is also *complete*: if there is a place, one is found. For one of several parts it is not, as
only some orders of the parts and some domains are tried: such a gang may wait although it would fit in another order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations
from typing import Final, NamedTuple, TypeVar

import numpy as np

from ganger.core.nodes.devices import DeviceOrder
from ganger.core.nodes.node_attributes import Usable
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.scores import pack
from ganger.core.nodes.topology import Ints
from ganger.core.placement.topology_packing import distribute, domain_rooms, in_named_domains, layout_bounds
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, SPREAD, Layout, Slices

Shares = tuple[NodeShare, ...]
Placed = TypeVar("Placed")

MAX_PART_ORDERS: Final = 24
"""The number of part orders tried: all of four parts."""
MAX_DOMAINS_TRIED: Final = 4
"""The number of domains of a level tried for a gang of several parts, which cost a placement for each order."""
_TRIAL_NUMBER: Final = 0
"""Owner of what a trial placement takes; no gang has this number."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a gang to place: the nodes it asks for, its index in the gang, its first rank."""

    shape: Shape
    index: int
    first_rank: int

    def shares(self, nodes: NodeTable, indices: Ints, counts: Ints, order: DeviceOrder | None) -> Shares:
        """Return shares for `counts` of the part's nodes on each of these nodes, in rising order, with devices."""
        ranks = self.shape.ranks
        names, devices = nodes.attributes.names, nodes.choose(self.shape, indices, counts, order)
        node_indices = np.repeat(indices, counts).tolist() if self.shape.stacked else indices.tolist()
        return tuple(
            NodeShare(names[node], tuple(range(first, first + ranks)), part_devices, self.index)
            for node, part_devices, first in zip(node_indices, devices, count(self.first_rank, ranks), strict=False)
        )


def place(nodes: NodeTable, shape: Shape) -> Shares | None:
    """Return shares in rank order for every node of the gang, or None when it cannot be placed whole.

    O(nodes) for a part.
    """
    if shape.more:
        together = (
            _place_together(nodes, uniform, list(_parts(uniform)), usable)
            for uniform in shape.uniform
            for usable in nodes.attributes.pools.candidates(uniform)
        )
        return next(filter(None, together), None)
    placements = (
        _place_part(nodes, _Part(choice, 0, 0), counts)
        for choice in _choices(nodes, shape, shape.layout.strategy)
        for counts in _counts_by_pool(nodes, choice)
    )
    return next(filter(None, placements), None)


def _choices(nodes: NodeTable, part: Shape, strategy: str) -> Sequence[Shape]:
    """Return the choices of a part to try one after the other; a choice may accept several GPU types.

    A score that the policy names decides between nodes of different types, for a part of one node. The default `pack`
    does not compare nodes, so types are tried in the order of the request; so they are under the strategy `spread`,
    which leaves scores out.
    """
    score = nodes.listing.rules.gpu_shares.score
    if not part.other_types or part.nodes > 1 or strategy == SPREAD or score == pack.NAME:
        return part.choices
    networks = dict.fromkeys(choice.selector for choice in part.choices)
    return tuple(replace(part, selector=selector) for selector in networks)


def _counts_by_pool(nodes: NodeTable, choice: Shape) -> Iterator[Ints]:
    """Iterate over (N,) how many each node can take, pool by pool, then for unions of pools."""
    counts = nodes.counts(choice)
    for usable in nodes.attributes.pools.candidates(choice):
        in_pools = counts if usable is None else np.where(usable, counts, 0)
        if usable is None or int(in_pools.sum()) >= choice.nodes:
            yield in_pools


class _Preference(NamedTuple):
    """Keys compared before the capacity that would be left, least first.

    nodes: (N,) arrays to compare nodes by.
    order: the order of a node's devices, None for that of what would be left of them.
    """

    nodes: tuple[Ints, ...] = ()
    order: DeviceOrder | None = None


def preference(nodes: NodeTable, choice: Shape, strategy: str) -> _Preference:
    """Return the policy's preference; with strategy `spread`, for a share, what is left of the device that takes it."""
    if strategy == SPREAD:
        all_nodes = np.arange(len(nodes.nodes))
        return _Preference((nodes.devices.least_left(choice, all_nodes),)) if choice.has_share else _Preference()
    return _Preference(nodes.score_cache.sort_keys(choice), nodes.score_cache.order)


def _parts(shape: Shape) -> Iterator[_Part]:
    first_rank = 0
    for index, part in enumerate(shape.parts):
        yield _Part(part, index, first_rank)
        first_rank += part.nodes * part.ranks


def _place_part(nodes: NodeTable, part: _Part, counts: Ints) -> Shares | None:
    """Return shares for one part; counts: (N,) how many of it each node can take."""
    shape, layout = part.shape, part.shape.layout
    preferred = preference(nodes, shape, layout.strategy)
    points = nodes.attributes.points(shape.selector)
    if points is None:
        distribution = _on_one_node(nodes, shape, counts, preferred) or _distribute(
            nodes, shape, counts, preferred.nodes
        )
    else:
        sort_keys = (points if layout.strategy == SPREAD else -points, *preferred.nodes)

        def attempt(layout: Layout, usable: Usable) -> tuple[Ints, Ints] | None:
            usable_counts = counts if usable is None else np.where(usable, counts, 0)
            return _distribute(nodes, replace(shape, layout=layout), usable_counts, sort_keys)

        distribution = _most_preferred(attempt, layout, points)
    return None if distribution is None else part.shares(nodes, *distribution, preferred.order)


def _on_one_node(nodes: NodeTable, shape: Shape, counts: Ints, preferred: _Preference) -> tuple[Ints, Ints] | None:
    """Return the best single node if it is unique: a shortcut for the common case.

    It applies where `core.placement.topology_packing` would begin with one node of any domain.
    """
    if shape.nodes > 1 or shape.layout.required or shape.layout.strategy == SPREAD or shape.slices.level:
        return None
    able = np.flatnonzero(counts)
    for amounts in (*preferred.nodes, *nodes.free):
        if able.size < 2:
            break
        values = amounts[able]
        able = able[values == values.min()]
    return (able, np.ones(1, dtype=np.int64)) if able.size == 1 else None


def _distribute(nodes: NodeTable, shape: Shape, counts: Ints, first: Sequence[Ints]) -> tuple[Ints, Ints] | None:
    room = domain_rooms(nodes.topology, counts)
    return distribute(nodes, room, shape.nodes, (shape.layout, shape.slices), first)


def _place_together(nodes: NodeTable, shape: Shape, parts: list[_Part], usable: Usable) -> Shares | None:
    """Return shares for a gang of several parts, which share their preferences."""
    points = nodes.attributes.points(shape.selector)
    if points is None:
        return _Together(nodes, shape, parts, usable).place()

    def attempt(layout: Layout, preferred: Usable) -> Shares | None:
        allowed = usable if preferred is None else preferred if usable is None else usable & preferred
        return _Together(nodes, replace(shape, layout=layout), parts, allowed).place()

    return _most_preferred(attempt, shape.layout, points)


def _most_preferred(attempt: Callable[[Layout, Usable], Placed | None], layout: Layout, points: Ints) -> Placed | None:
    """Return what `attempt` finds on the nodes with the most points, by bisection; None when it finds nothing on all.

    What fits on some nodes fits on more of them, so that feasibility is monotonic in the required points (N,) and
    bisection applies. A gang is as fast as its slowest node: the node with the fewest points counts. That goes before
    packing, which no user requests by name; the level of the network that the gang names, the order of types, and pools
    go before it.
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
        placed = attempt(layout, points >= grades[middle])
        if placed is None:
            high = middle - 1
        else:
            best, low = placed, middle
    return best


class _Together:
    """A gang of several parts. While it is tried, its parts restrict each other only by what they take."""

    def __init__(self, nodes: NodeTable, shape: Shape, parts: list[_Part], usable: Usable) -> None:
        self._nodes, self._layout = nodes, shape.layout
        exclusive = shape.selector.sharing != SHARED
        self._usable = nodes.occupancy.empty() if exclusive else np.ones(len(nodes.nodes), dtype=bool)
        if exclusive and nodes.reserved is not None:
            self._usable[nodes.reserved.at[nodes.reserved.guests]] = False
        self._usable &= True if usable is None else usable
        self._parts = [replace(part, shape=_as_shared(part.shape)) for part in parts]
        self._shape = _as_shared(replace(shape, more=tuple(_as_shared(part) for part in shape.more)))

    def place(self) -> Shares | None:
        """Return shares in rank order on the lowest level on which a domain takes every part."""
        return next(filter(None, map(self._place_in, self._homes())), None)

    def _homes(self) -> Iterator[slice]:
        """Iterate over node slices to try, from nodes over the domains of each level up to the cluster.

        Each has room for every part alone, if not for all at once; those with the least room come first, limited in
        number for each level.
        """
        topology = self._nodes.topology
        within = layout_bounds(topology, self._layout, Slices())
        if within is None:
            return
        choices = [[self._counts_by_pool(choice) for choice in part.shape.choices] for part in self._parts]
        counts = [in_named_domains(topology, np.maximum.reduce(part_counts), within) for part_counts in choices]
        all_rooms = [domain_rooms(topology, part_counts) for part_counts in counts]
        first = [*topology.first_node, np.arange(len(self._nodes.nodes) + 1)]
        for depth in range(within.lowest, within.highest - 1, -1):
            enough = [room[depth] >= part.shape.nodes for part, room in zip(self._parts, all_rooms, strict=True)]
            domains = np.flatnonzero(np.logical_and.reduce(enough))
            order = np.argsort(np.add.reduce([room[depth][domains] for room in all_rooms]), kind="stable")
            for domain in domains[order][:MAX_DOMAINS_TRIED].tolist():
                yield slice(int(first[depth][domain]), int(first[depth][domain + 1]))

    def _place_in(self, home: slice) -> Shares | None:
        """Return shares on nodes of `home`, in the first order of the parts that succeeds."""
        for order, _ in zip(permutations(sorted(self._parts, key=_demand)), range(MAX_PART_ORDERS), strict=False):
            placed: dict[int, Shares] = {}
            with self._nodes.trial():
                for part in order:
                    shares = self._place_one(part, home, placed)
                    if shares is None:
                        break
                    self._nodes.take(_TRIAL_NUMBER, self._shape, shares)
                    placed[part.index] = shares
            if len(placed) == len(self._parts):
                return tuple(share for part in self._parts for share in placed[part.index])
        return None

    def _place_one(self, part: _Part, home: slice, placed: dict[int, Shares]) -> Shares | None:
        nodes, needed = self._nodes, part.shape.nodes
        used = {nodes.index[share.node]: None for shares in placed.values() for share in shares}
        layout = Layout(strategy=self._layout.strategy), part.shape.slices
        for choice in _choices(nodes, part.shape, self._layout.strategy):
            room, counts = np.zeros((2, len(nodes.nodes)), dtype=np.int64)
            room[home] = self._counts_by_pool(choice)[home]
            for node in used if part.shape.stacked else ():
                counts[node] = min(int(room[node]), needed - int(counts.sum()))
                room[node] = 0
            rest = needed - int(counts.sum())
            preferred = preference(nodes, choice, layout[0].strategy)
            distribution = (
                distribute(nodes, domain_rooms(nodes.topology, room), rest, layout, preferred.nodes) if rest else None
            )
            if distribution is not None:
                counts[distribution[0]] += distribution[1]
            if distribution is not None or not rest:
                taken = np.flatnonzero(counts)
                return part.shares(nodes, taken, counts[taken], preferred.order)
        return None

    def _counts_by_pool(self, part: Shape) -> Ints:
        times: Ints = np.where(self._usable, self._nodes.counts(part), 0)
        return times


def _as_shared(part: Shape) -> Shape:
    return replace(part, selector=replace(part.selector, sharing=SHARED))


def _demand(part: _Part) -> tuple[bool, int, int, int, int]:
    """Return a sort key: parts on different nodes before stacked ones, then the largest demand first."""
    shape = part.shape
    return shape.stacked, -shape.gpu_milli_of(0), -shape.gpu_memory_bytes, -shape.memory_bytes, -shape.cpu_milli
