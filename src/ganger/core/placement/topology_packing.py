"""Assignment of a part's nodes to nodes, from the counts that each node can take: a walk down the levels.

Idea: packing minimizes the number of domains that a gang spans, lowest level first. So the home of the gang is a domain
    of the lowest level on which one holds it all, a single node being the lowest; of these domains the one that is left
    with the least (best fit). Inside the home, the gang uses as few child domains as possible, the last of them as
    tight as possible; the same rule applies in each of these, down to the nodes, where those come first that are left
    with the least. Ties go to the parent domain that is left with the least, then to the nodes with the smallest
    penalty, then to those that have the gang's image, then to topology order. All domains of a level are handled at
    once as arrays: the room of a domain is the sum over its slice of nodes. Source: buddy cells (HiveD, OSDI 2020) and
    the best fit of Kueue's topology-aware scheduling (reference: scheduling, section 2).

`spread` starts at the requested level, or at the cluster, and gives all child domains as nearly equal counts as
possible, on the nodes that have the most left. `balanced` takes as few domains as packing does and divides equally
among them.

A part that comes in slices is counted in slices down to the slices' level, and in nodes below it. Slices can consist of
smaller slices, each layer at its own level; a unit of one layer is a fixed number of units of the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints, Topology, slice_sums
from ganger.model.terms import BALANCED, SPREAD, Layout, Slices

Divide = Callable[[int, int, int], Ints]
"""Division of a quota among children first : last: (first, last, quota) -> (last - first,)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Depths that the layout and the slices permit.

    highest, lowest: of the home domain.
    layers: of slices, the largest first, each as its depth and its number of units of the next layer, or nodes.
    named: at which a node must be in a domain with a name.
    """

    highest: int
    lowest: int
    layers: tuple[tuple[int, int], ...]
    named: tuple[int, ...]


def layout_bounds(topology: Topology, layout: Layout, slices: Slices) -> Bounds | None:
    """Translate layout and slices to depths; return None where a required level does not exist."""
    levels, layers = topology.levels, slices.layers
    if (layout.required and layout.level not in levels) or any(layer.level not in levels for layer in layers):
        return None
    depth = topology.depth(layout.level) if layout.level in levels else 0
    depths, sizes = [topology.depth(layer.level) for layer in layers], [*(layer.nodes for layer in layers), 1]
    named = [depth_of_layer for depth_of_layer, size in zip(depths, sizes, strict=False) if size > 1]
    return Bounds(
        highest=depth if layout.required else 0,
        lowest=depth if layout.strategy == SPREAD else len(levels) + 1,
        layers=tuple(zip(depths, (size // of for size, of in pairwise(sizes)), strict=True)),
        named=(*([depth] if layout.required else ()), *named),
    )


def domain_rooms(topology: Topology, times: Ints) -> list[Ints]:
    """Return for each depth how many each domain can take, the nodes (N,) `times` last."""
    return [*topology.sums(times), times]


def largest_domain_room(nodes: NodeTable, times: Ints, layout: tuple[Layout, Slices]) -> int:
    """Return the room of the best domain of the required level, or of the cluster, in slices or else nodes."""
    within = layout_bounds(nodes.topology, *layout)
    if within is None:
        return 0
    units = _units_by_layer(
        nodes.topology, _room_in_named_domains(nodes.topology, domain_rooms(nodes.topology, times), within), within
    )
    return int(units[0][within.highest].max()) if len(times) else 0


def distribute(
    nodes: NodeTable, room: Sequence[Ints], needed: int, layout: tuple[Layout, Slices], first: Sequence[Ints] = ()
) -> tuple[Ints, Ints] | None:
    """Return the nodes, in rising order, and how many each takes, `needed` in all; None when there is no room.

    room: for each depth, how many each domain can take, the nodes last.
    needed: a multiple of the slices' size.
    first: (N,) each, compared before what nodes have left, least first.
    """
    within = layout_bounds(nodes.topology, *layout)
    if within is None or int(room[0][0]) < needed:
        return None
    room = _room_in_named_domains(nodes.topology, room, within)
    units = _units_by_layer(nodes.topology, room, within)
    units_needed = needed // (layout[1].nodes if within.layers else 1)
    for depth in range(within.lowest, within.highest - 1, -1):
        homes = np.flatnonzero(units[0][depth] >= units_needed)
        if homes.size:
            return _Walk(nodes, room, units, within, layout[0].strategy, first).down(depth, homes, units_needed)
    return None


def in_named_domains(topology: Topology, times: Ints, within: Bounds) -> Ints:
    """Return the counts with zeros for nodes outside the named domains in which they must be."""
    for depth in within.named:
        named = topology.named(depth)
        times = times if named is None else np.where(named, times, 0)
    return times


def order_by_remainder(nodes: NodeTable, among: Ints, first: Sequence[Ints], *, most: bool) -> Ints:
    """Return nodes by what they have left of `first`, GPUs, CPUs and memory, least (or most) first.

    Ties go to the smaller penalty, then to nodes that have the gang's image, then to topology order.
    """
    sign = -1 if most else 1
    sort_keys: list[Ints] = [nodes.free.memory_bytes, nodes.free.cpu_milli, nodes.free.gpus]
    sort_keys += reversed(first)
    ties: list[Ints] = [nodes.penalty[among]]
    if nodes.without_image is not None:
        ties.insert(0, nodes.without_image[among])
    return among[np.lexsort((*ties, *(sign * amount[among] for amount in sort_keys)))]


def _room_in_named_domains(topology: Topology, room: Sequence[Ints], within: Bounds) -> Sequence[Ints]:
    named = in_named_domains(topology, room[-1], within)
    return room if named is room[-1] else domain_rooms(topology, named)


def _units_by_layer(topology: Topology, room: Sequence[Ints], within: Bounds) -> list[Sequence[Ints]]:
    """Return, for each layer of slices and for nodes, and for each depth, how many each domain can take."""
    units, depth_of_units = [room], len(room) - 1
    for depth, size in reversed(within.layers):
        # A unit that is one unit of the next layer is that itself, unless it must be within a smaller domain.
        is_same = size == 1 and depth <= depth_of_units
        units.insert(0, units[0] if is_same else _in_units(topology, units[0], depth, size))
        depth_of_units = depth_of_units if is_same else depth
    return units


def _in_units(topology: Topology, counts: Sequence[Ints], depth: int, size: int) -> Sequence[Ints]:
    """Convert counts to units of `size`, each within one domain of that depth."""
    units = [counts_at_depth // size for counts_at_depth in counts[depth:]]
    for level in reversed(range(depth)):
        units.insert(0, slice_sums(units[0], topology.first_child[level]))
    return units


@dataclass(frozen=True, slots=True)
class _Walk:
    """The walk from a home domain down to the nodes.

    room: for each depth, what each domain can take.
    units: the same in slices of each layer.
    first: compared for nodes before what they have left.
    """

    nodes: NodeTable
    room: Sequence[Ints]
    units: Sequence[Sequence[Ints]]
    within: Bounds
    strategy: str
    first: Sequence[Ints]

    def down(self, depth: int, homes: Ints, count: int) -> tuple[Ints, Ints]:
        """Distribute `count` slices into the best of these domains of that depth.

        `quota` is counted in units of the current layer and converted where the walk passes the layer's depth.
        """
        domains, quota = np.array([self._home(depth, homes, count)]), np.array([count])
        layers, layer = self.within.layers, 0
        for level in range(depth, len(self.room)):
            while layer < len(layers) and level >= layers[layer][0]:
                quota, layer = quota * layers[layer][1], layer + 1
            if level < len(self.room) - 1:
                domains, quota = self._step(level, self.units[layer], domains, quota)
        order = np.argsort(domains, kind="stable")
        return domains[order], quota[order]

    def _home(self, depth: int, homes: Ints, count: int) -> int:
        """Return the domain of a depth that holds everything and is left with the least; nodes are the deepest.

        For ties among domains the walk goes up: it compares what their parents are left with, then the grandparents.
        """
        nodes, topology = self.nodes, self.nodes.topology
        level, parents = depth, homes
        if depth == len(self.room) - 1:
            amounts: tuple[Ints, ...] = nodes.free
            for amount in (*self.first, *amounts):
                homes = _with_least(homes, amount[homes])
            level, parents = depth - 1, topology.domain_of(homes)
        while level and homes.size > 1:
            left = self.room[level][parents]
            homes, parents = _with_least(homes, left), topology.parent[level][_with_least(parents, left)]
            level -= 1
        if nodes.attributes.has_penalties and homes.size > 1:
            homes = _with_least(homes, self._penalties(depth)[homes])
        if nodes.without_image is not None and homes.size > 1:
            homes = _with_least(homes, self._pulls(depth, count)[homes])
        return int(homes[0])

    def _pulls(self, depth: int, count: int) -> Ints:
        """Return how many of `count` nodes must pull the gang's image, at least, in each domain of a depth."""
        assert self.nodes.without_image is not None  # checked by the caller
        having = (1 - self.nodes.without_image) * (self.room[-1] > 0)
        in_domains = having if depth == len(self.room) - 1 else self.nodes.topology.sums(having)[depth]
        pulls: Ints = count - np.minimum(count, in_domains)
        return pulls

    def _penalties(self, depth: int) -> Ints:
        """Return the penalty of each domain of a depth: the sum over the nodes that it could take."""
        penalties = self.nodes.penalty * (self.room[-1] > 0)
        return penalties if depth == len(self.room) - 1 else self.nodes.topology.sums(penalties)[depth]

    def _step(self, level: int, units: Sequence[Ints], domains: Ints, quota: Ints) -> tuple[Ints, Ints]:
        """Pass the quotas of domains on to their children.

        A domain that is filled needs no division: each child gets all that it can take.
        """
        first, is_full = self.nodes.topology.first_child[level], quota == units[level][domains]
        children = [_ranges(first, domains[is_full])]
        quotas = [units[level + 1][children[0]]]
        divide = self._among_nodes if level == len(self.room) - 2 else self._among_domains(units[level + 1])
        for domain, domain_quota in zip(domains[~is_full].tolist(), quota[~is_full].tolist(), strict=True):
            begin, end = int(first[domain]), int(first[domain + 1])
            children.append(np.arange(begin, end))
            quotas.append(divide(begin, end, domain_quota))
        all_children, all_quotas = np.concatenate(children), np.concatenate(quotas)
        return all_children[all_quotas > 0], all_quotas[all_quotas > 0]

    def _among_domains(self, rooms: Ints) -> Divide:
        divide = {SPREAD: spread_evenly, BALANCED: balance_on_few}.get(self.strategy, pack_into_few)
        return lambda begin, end, quota: divide(rooms[begin:end], quota)

    def _among_nodes(self, begin: int, end: int, quota: int) -> Ints:
        """Fill nodes with the least left first; with `spread`, give equal counts, those with the most left first."""
        room = self.room[-1][begin:end]
        able, most = np.arange(begin, end)[room > 0], self.strategy == SPREAD
        order = order_by_remainder(self.nodes, able, self.first, most=most) - begin
        counts = np.zeros(end - begin, dtype=np.int64)
        if self.strategy == SPREAD:
            counts[order] = spread_evenly(room[order], quota, keep_order=True)
        else:
            counts[order] = np.clip(quota - np.cumsum(room[order]) + room[order], 0, room[order])
        return counts


def pack_into_few(rooms: Ints, quota: int) -> Ints:
    """Use as few domains as possible: fill those with the most room; the rest goes to the tightest that holds it."""
    order = np.argsort(-rooms, kind="stable")
    total = np.cumsum(rooms[order])
    full = int(np.searchsorted(total, quota))
    rest = quota - int(total[full - 1]) if full else quota
    holds = order[full:][rooms[order[full:]] >= rest]
    counts = np.zeros_like(rooms)
    counts[order[:full]] = rooms[order[:full]]
    counts[_with_least(holds, rooms[holds]).min()] = rest
    return counts


def spread_evenly(rooms: Ints, quota: int, *, keep_order: bool = False) -> Ints:
    """Divide equally, up to the room of each; the remainder goes to those with the most room, or to the first.

    This is water filling: all get the same level except where their room is smaller. The level lies between two
    consecutive values of the sorted rooms, found by comparing the quota with the total at each.
    """
    rising = np.sort(rooms)
    total = np.cumsum(rising)
    # total_at_level[i]: what is given out in all when the level equals the i-th smallest room.
    total_at_level = total + rising * np.arange(len(rooms) - 1, -1, -1)
    full = int(np.searchsorted(total_at_level, quota, side="right"))
    if full == len(rooms):
        return rooms
    level = (quota - (int(total[full - 1]) if full else 0)) // (len(rooms) - full)
    counts = np.minimum(rooms, level)
    more = np.flatnonzero(rooms > level)
    more = more if keep_order else more[np.argsort(-rooms[more], kind="stable")]
    counts[more[: quota - int(counts.sum())]] += 1
    return counts


def balance_on_few(rooms: Ints, quota: int) -> Ints:
    """Use as few domains as possible with equal counts: the tightest with the room, or else those with the most."""
    order = np.argsort(-rooms, kind="stable")
    count = int(np.searchsorted(np.cumsum(rooms[order]), quota)) + 1
    able = np.flatnonzero(rooms >= -(-quota // count))
    domains = able[np.argsort(rooms[able], kind="stable")][:count] if able.size >= count else order[:count]
    counts = np.zeros_like(rooms)
    counts[domains] = spread_evenly(rooms[domains], quota)
    return counts


def _with_least(indices: Ints, values: Ints) -> Ints:
    return indices[values == values.min()] if indices.size > 1 else indices


def _ranges(first: Ints, selected: Ints) -> Ints:
    """Concatenate the ranges first[d] : first[d + 1] for each selected d."""
    sizes = first[selected + 1] - first[selected]
    ends = np.cumsum(sizes)
    ranges: Ints = np.arange(ends[-1] if ends.size else 0) + np.repeat(first[selected] - ends + sizes, sizes)
    return ranges
