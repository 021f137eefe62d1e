"""How many of a part go to which node, when it is known how many each could take: a walk down the levels.

Called by `core.placement.place`; `core.placement.start_check` asks what the best domain holds. Rule: the lowest level
that has a domain which holds it all, a single node being the lowest; among these domains the one that is left with the
least; inside it as few domains of the next level as possible, the last of them as tight as can be; and so on down to
the nodes, those first that are left with the least. Ties: the domain around it that is left with the least, then the
nodes that least speaks against, then topology order. Source of the idea: buddy cells (HiveD, OSDI 2020) and the best
fit of Kueue's topology-aware scheduling (reference: scheduling, section 2).

`spread` begins at the level asked for, or with the cluster, and gives every domain inside as nearly the same as can be,
nodes first that have the most left. `balanced` takes as few domains as packing does, and shares equally among them.

Nodes that come in slices are counted in slices down to the slices' level, and one by one below it; where slices are
made of slices, in these down to their level: so many of what the next layer counts are one of what the layer counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints, Topology, up
from ganger.model.terms import BALANCED, SPREAD, Layout, Slices

Divide = Callable[[int, int, int], Ints]
"""How many of a quota each of the domains, or nodes, first : last gets: (first, last, quota) -> (last - first,)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """highest, lowest: depths that a home may have; layers: of the slices, the largest first, each as its depth and as
    how many of the next one inside, or nodes, it has; named: depths at which a node must be in a domain with a name."""

    highest: int
    lowest: int
    layers: tuple[tuple[int, int], ...]
    named: tuple[int, ...]


def bounds(topology: Topology, layout: Layout, slices: Slices) -> Bounds | None:
    """What is asked, on the levels there are; None where a level that it needs is not among them."""
    levels, layers = topology.levels, slices.layers
    if (layout.required and layout.level not in levels) or any(each.level not in levels for each in layers):
        return None
    depth = topology.depth(layout.level) if layout.level in levels else 0
    depths, sizes = [topology.depth(each.level) for each in layers], [*(each.nodes for each in layers), 1]
    named = [at for at, size in zip(depths, sizes, strict=False) if size > 1]
    return Bounds(
        highest=depth if layout.required else 0,
        lowest=depth if layout.strategy == SPREAD else len(levels) + 1,
        layers=tuple(zip(depths, (size // of for size, of in pairwise(sizes)), strict=True)),
        named=(*([depth] if layout.required else ()), *named),
    )


def rooms(topology: Topology, times: Ints) -> list[Ints]:
    """For each depth how many each domain could take, the nodes last: (N,) `times`."""
    return [*topology.sums(times), times]


def most(nodes: NodeTable, times: Ints, asked: tuple[Layout, Slices]) -> int:
    """How many slices, or nodes where there are none, fit into the one domain of the level that is required which holds
    the most; into the whole cluster where none is."""
    within = bounds(nodes.topology, *asked)
    if within is None:
        return 0
    units = _units(nodes.topology, _only_named(nodes.topology, rooms(nodes.topology, times), within), within)
    return int(units[0][within.highest].max()) if len(times) else 0


def lay_out(
    nodes: NodeTable, room: Sequence[Ints], wanted: int, asked: tuple[Layout, Slices], first: Sequence[Ints] = ()
) -> tuple[Ints, Ints] | None:
    """Nodes, rising, and how many each takes, `wanted` in all; None when there is no room. room: for each depth how
    many each domain could take, the nodes last; a multiple of the slices' size is wanted. first: (N,) each, what is
    compared before what nodes have left, the least first."""
    within = bounds(nodes.topology, *asked)
    if within is None or int(room[0][0]) < wanted:
        return None
    room = _only_named(nodes.topology, room, within)
    units = _units(nodes.topology, room, within)
    count = wanted // (asked[1].nodes if within.layers else 1)
    for depth in range(within.lowest, within.highest - 1, -1):
        found = np.flatnonzero(units[0][depth] >= count)
        if found.size:
            return _Walk(nodes, room, units, within, asked[0].strategy, first).down(depth, found, count)
    return None


def only_named(topology: Topology, times: Ints, within: Bounds) -> Ints:
    """The same of nodes that are in a domain where they must be in one, and none of the others."""
    for depth in within.named:
        named = topology.named(depth)
        times = times if named is None else np.where(named, times, 0)
    return times


def by_what_is_left(nodes: NodeTable, among: Ints, first: Sequence[Ints], *, most: bool) -> Ints:
    """Nodes with the least left first, or the most: what is `first`, GPUs, then CPUs, then memory; then those that
    least speaks against; ties in topology order."""
    sign = -1 if most else 1
    left: list[Ints] = [nodes.free_memory_bytes, nodes.free_cpu_milli, nodes.free_gpus]
    left += reversed(first)
    return among[np.lexsort((nodes.doubt[among], *(sign * amount[among] for amount in left)))]


def _only_named(topology: Topology, room: Sequence[Ints], within: Bounds) -> Sequence[Ints]:
    named = only_named(topology, room[-1], within)
    return room if named is room[-1] else rooms(topology, named)


def _units(topology: Topology, room: Sequence[Ints], within: Bounds) -> list[Sequence[Ints]]:
    """For each layer, the largest slices first, and for the nodes, for each depth how many each domain could take."""
    found = [room]
    for depth, size in reversed(within.layers):
        found.insert(0, _grouped(topology, found[0], depth, size) if size > 1 else found[0])
    return found


def _grouped(topology: Topology, counts: Sequence[Ints], depth: int, size: int) -> Sequence[Ints]:
    """So many of what is counted as one, all of them in one domain of that depth."""
    found = [each // size for each in counts[depth:]]
    for above in reversed(range(depth)):
        found.insert(0, up(found[0], topology.first_child[above]))
    return found


@dataclass(frozen=True, slots=True)
class _Walk:
    """From a home down to the nodes. room, units: for each depth what each domain could take, and how many slices of
    each layer; first: what is compared of nodes before what they have left."""

    nodes: NodeTable
    room: Sequence[Ints]
    units: Sequence[Sequence[Ints]]
    within: Bounds
    strategy: str
    first: Sequence[Ints]

    def down(self, depth: int, homes: Ints, count: int) -> tuple[Ints, Ints]:
        """`count` slices go into the best of those domains of that depth."""
        at, quota = np.array([self._home(depth, homes)]), np.array([count])
        layers, inside = self.within.layers, 0
        for above in range(depth, len(self.room)):
            while inside < len(layers) and above >= layers[inside][0]:
                quota, inside = quota * layers[inside][1], inside + 1
            if above < len(self.room) - 1:
                at, quota = self._step(above, self.units[inside], at, quota)
        order = np.argsort(at, kind="stable")
        return at[order], quota[order]

    def _home(self, depth: int, found: Ints) -> int:
        """Of the domains of a depth that hold it all the one that is left with the least; nodes are the deepest."""
        nodes, topology = self.nodes, self.nodes.topology
        above, around = depth, found
        if depth == len(self.room) - 1:
            amounts: tuple[Ints, ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
            for amount in (*self.first, *amounts):
                found = _least(found, amount[found])
            above, around = depth - 1, topology.domain_of(found)
        while above and found.size > 1:
            left = self.room[above][around]
            found, around = _least(found, left), topology.inside[above][_least(around, left)]
            above -= 1
        if nodes.doubts and found.size > 1:
            found = _least(found, self._doubts(depth)[found])
        return int(found[0])

    def _doubts(self, depth: int) -> Ints:
        """What speaks against each domain of a depth: the sum over the nodes that it could take."""
        doubts = self.nodes.doubt * (self.room[-1] > 0)
        return doubts if depth == len(self.room) - 1 else self.nodes.topology.sums(doubts)[depth]

    def _step(self, above: int, has: Sequence[Ints], at: Ints, quota: Ints) -> tuple[Ints, Ints]:
        """From domains and the quota of each to what is one depth below. One that is to be filled hands all that it has
        to those below it."""
        first, filled = self.nodes.topology.first_child[above], quota == has[above][at]
        below = [_ranges(first, at[filled])]
        quotas = [has[above + 1][below[0]]]
        divide = self._among_nodes if above == len(self.room) - 2 else self._among_domains(has[above + 1])
        for domain, its in zip(at[~filled].tolist(), quota[~filled].tolist(), strict=True):
            begin, end = int(first[domain]), int(first[domain + 1])
            below.append(np.arange(begin, end))
            quotas.append(divide(begin, end, its))
        every, each = np.concatenate(below), np.concatenate(quotas)
        return every[each > 0], each[each > 0]

    def _among_domains(self, rooms: Ints) -> Divide:
        share = {SPREAD: evenly, BALANCED: evenly_on_few}.get(self.strategy, into_few)
        return lambda begin, end, quota: share(rooms[begin:end], quota)

    def _among_nodes(self, begin: int, end: int, quota: int) -> Ints:
        """Nodes with the least left first, each as much as it holds; spread: those with the most left, all alike."""
        times = self.room[-1][begin:end]
        able, most = np.arange(begin, end)[times > 0], self.strategy == SPREAD
        order = by_what_is_left(self.nodes, able, self.first, most=most) - begin
        given = np.zeros(end - begin, dtype=np.int64)
        if self.strategy == SPREAD:
            given[order] = evenly(times[order], quota, keep_order=True)
        else:
            given[order] = np.clip(quota - np.cumsum(times[order]) + times[order], 0, times[order])
        return given


def into_few(rooms: Ints, quota: int) -> Ints:
    """As few as possible: the fullest are filled, the rest goes to the tightest that holds all of it."""
    order = np.argsort(-rooms, kind="stable")
    total = np.cumsum(rooms[order])
    full = int(np.searchsorted(total, quota))
    rest = quota - int(total[full - 1]) if full else quota
    holds = order[full:][rooms[order[full:]] >= rest]
    given = np.zeros_like(rooms)
    given[order[:full]] = rooms[order[:full]]
    given[_least(holds, rooms[holds]).min()] = rest
    return given


def evenly(rooms: Ints, quota: int, *, keep_order: bool = False) -> Ints:
    """All alike as far as they hold that much; what is left over goes to those with the most room, or to the first."""
    rising = np.sort(rooms)
    total = np.cumsum(rising)
    # With the level at the room of the i-th, that much is given out in all.
    given_out = total + rising * np.arange(len(rooms) - 1, -1, -1)
    full = int(np.searchsorted(given_out, quota, side="right"))
    if full == len(rooms):
        return rooms
    level = (quota - (int(total[full - 1]) if full else 0)) // (len(rooms) - full)
    given = np.minimum(rooms, level)
    more = np.flatnonzero(rooms > level)
    more = more if keep_order else more[np.argsort(-rooms[more], kind="stable")]
    given[more[: quota - int(given.sum())]] += 1
    return given


def evenly_on_few(rooms: Ints, quota: int) -> Ints:
    """As few as possible, and these alike: the tightest that can be, or else the fullest."""
    order = np.argsort(-rooms, kind="stable")
    count = int(np.searchsorted(np.cumsum(rooms[order]), quota)) + 1
    able = np.flatnonzero(rooms >= -(-quota // count))
    chosen = able[np.argsort(rooms[able], kind="stable")][:count] if able.size >= count else order[:count]
    given = np.zeros_like(rooms)
    given[chosen] = evenly(rooms[chosen], quota)
    return given


def _least(found: Ints, values: Ints) -> Ints:
    return found[values == values.min()] if found.size > 1 else found


def _ranges(first: Ints, at: Ints) -> Ints:
    """All of first[d] : first[d + 1], for each d in `at`."""
    sizes = first[at + 1] - first[at]
    ends = np.cumsum(sizes)
    found: Ints = np.arange(ends[-1] if ends.size else 0) + np.repeat(first[at] - ends + sizes, sizes)
    return found
