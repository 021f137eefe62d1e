"""Availability profile of a large cluster on which few nodes are reserved.

On a node on which nothing begins later than now, free capacity only grows, as the gangs on it end. It is enough to know
from which slot on it satisfies a demand, which follows from its shares sorted by their ends: a row a share instead of a
cell a slot. The other nodes, mostly few, are set apart in a dense profile of their own. Answers are those of
`core.reservations.availability_profile`, which it builds for all nodes once most of them are reserved.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import extended_needs
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.reservations.availability_profile import (
    ALONE,
    GPUS,
    GUESTS,
    RESOURCES,
    AvailabilityProfile,
    HeldCapacity,
    LeastFree,
    Stay,
    demand_per_node,
    restrict_stay,
    suitable_nodes,
)
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

MAX_WIDENINGS: Final = 8
"""Number of times the dense profile is built for more nodes, before it is built for all."""


class RisingCapacity:
    """The free capacity of every node from now on, as the gangs on it end."""

    def __init__(self, nodes: NodeTable, edges: Ints, held: HeldCapacity, stays: list[Stay]) -> None:
        """Sort what is held, and by stays that have begun_stays, by node and end."""
        self._nodes, self._slots = nodes, len(edges)
        rows = np.flatnonzero(_has_demand(held))
        indices = np.concatenate([held.indices[rows], *(stay.indices for stay in stays)])
        ends_ms = np.concatenate([held.ends_ms[rows], *(np.full(len(stay.indices), stay.end_ms) for stay in stays)])
        by_stay = [
            np.repeat(np.array(demand_per_node(stay.part, nodes.extended.names))[:, None], len(stay.indices), axis=1)
            for stay in stays
        ]
        taken = np.concatenate([held.taken[:, rows], *by_stay], axis=1)
        ends = np.maximum(1, np.searchsorted(edges, ends_ms))
        # Rows of one node are adjacent, by their ends. What has been released on a node at the end of a row is the
        # running sum over all rows less that before the node's first row.
        order = np.argsort(indices * (self._slots + 1) + ends, kind="stable")
        self._at, self._ends, self._taken = indices[order], ends[order], taken[:, order]
        totals: tuple[Ints, ...] = nodes.total
        taken_now = self.taken_in(0)
        self._free_now = [
            *(amount - less for amount, less in zip(totals, taken_now[:GUESTS], strict=True)),
            *-taken_now[GUESTS:RESOURCES],
            *_extended_left(nodes, taken_now),
        ]
        """By node, what is free now, and minus the guests and exclusive guests; then what is of extended resources."""
        self._begins = np.flatnonzero(np.diff(self._at, prepend=-1))
        """The first row of each node that has any."""
        released = np.cumsum(self._taken, axis=1)
        released_before = released[:, self._begins] - self._taken[:, self._begins]
        counts = np.diff(self._begins, append=len(self._at))
        self._free_after = [
            free_now[self._at] + own
            for free_now, own in zip(self._free_now, released - released_before.repeat(counts, axis=1), strict=True)
        ]
        """The same as `_free_now` of the row's node after the row's end."""
        self._from: dict[Shape, Ints] = {}

    def free_since(self, part: Shape) -> Ints:
        """Return (N,) the first slot from which on a node satisfies the part; the number of slots if it never does."""
        per_node = part.one
        if per_node not in self._from:
            self._from[per_node] = self._compute_free_since(per_node)
        return self._from[per_node]

    def taken_in(self, slot: int) -> Ints:
        """Return (5, N) what is taken in a slot; then a row for each extended resource."""
        taken_by_node = np.zeros((len(self._taken), len(self._nodes.nodes)), dtype=np.int64)
        lasts = self._ends > slot
        for row, taken in zip(taken_by_node, self._taken, strict=True):
            np.add.at(row, self._at[lasts], taken[lasts])
        return taken_by_node

    def _compute_free_since(self, part: Shape) -> Ints:
        never = np.int64(self._slots)
        extended = self._nodes.extended.names
        since: Ints = np.where(_satisfies(part, self._free_now, extended), 0, never)
        if self._begins.size:
            ends = np.where(_satisfies(part, self._free_after, extended), self._ends, never)
            slots = np.minimum.reduceat(ends, self._begins)
            nodes = self._at[self._begins]
            since[nodes] = np.minimum(since[nodes], slots)
        since[~suitable_nodes(self._nodes, part)] = never
        return since


def _extended_left(nodes: NodeTable, taken: Ints) -> list[Ints]:
    return [amount - less for amount, less in zip(nodes.extended.total.values(), taken[RESOURCES:], strict=True)]


def _satisfies(part: Shape, free: list[Ints], extended: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return whether a node with that much left, and minus that many (exclusive) guests, satisfies the part."""
    is_enough: NDArray[np.bool_] = free[ALONE] == 0
    for amount, need in zip(free, (part.devices, part.cpu_milli, part.memory_bytes), strict=False):
        is_enough &= amount >= need
    for amount, need in zip(free[RESOURCES:], extended_needs(part, extended), strict=True):
        if need:
            is_enough &= amount >= need
    if part.selector.sharing != SHARED:
        is_enough &= free[GUESTS] == 0
    return is_enough


def _has_demand(held: HeldCapacity) -> NDArray[np.bool_]:
    """Return which rows take something: by a guest, or by foreign pods, which are none."""
    has_demand: NDArray[np.bool_] = (held.taken[GUESTS] | held.taken[GPUS]) > 0
    return has_demand


class SparseProfile(AvailabilityProfile):
    """An `AvailabilityProfile` of all nodes that is faster while few nodes are reserved."""

    def __init__(
        self, nodes: NodeTable, edges: Ints, held: HeldCapacity, stays: list[Stay], closed: list[Ints]
    ) -> None:
        """Create the profile; `closed` are nodes that will be closed. Edges are not cut."""
        self.nodes, self.edges, self.subset, self.is_exact = nodes, edges, None, False
        self.indices = np.arange(len(nodes.nodes))
        begun_stays = [stay for stay in stays if self.slot_at(stay.begin_ms) == 0]
        later_indices = [stay.indices for stay in stays if self.slot_at(stay.begin_ms) > 0]
        self._rising = RisingCapacity(nodes, edges, held, begun_stays)
        self._held, self._stays = held, stays
        self._closed: list[tuple[Ints, int, int]] = []
        self._changes: list[tuple[Stay, int]] = []
        self._beyond: list[Ints] = []
        """Nodes of changes since the dense profile was built, which it does not cover."""
        self._widened = 0
        self._apart = self._build_apart([*later_indices, *closed, np.zeros(0, dtype=np.int64)])
        """The dense profile of nodes on which something begins later."""

    def add(self, stay: Stay, sign: int = 1) -> None:
        """Add a stay, or remove it with sign -1."""
        self._changes.append((stay, sign))
        if self._beyond or not self._apart.covers(stay.indices).all():
            self._beyond.append(stay.indices)
        else:
            self._apart.add(stay, sign)

    def close_nodes(self, indices: Ints, begin_ms: int, end_ms: int) -> None:
        """Take nodes out for an interval; they must be among `closed`."""
        self._closed.append((indices, begin_ms, end_ms))
        self._apart.close_nodes(indices, begin_ms, end_ms)

    def least_free(self, indices: Ints, begin: int, end: int) -> LeastFree:
        """Return the least that is free of these nodes in slots begin : end, at least one."""
        self._widen()
        if self._apart.subset is None:
            return self._apart.least_free(indices, begin, end)
        taken, nodes = self._rising.taken_in(begin), self.nodes
        totals: tuple[Ints, ...] = nodes.total
        amounts = [*(amount - less for amount, less in zip(totals, taken, strict=False)), *_extended_left(nodes, taken)]
        amounts += [*taken[GUESTS:RESOURCES]]
        least = self._apart.least_free(self._apart.indices, begin, end)
        for amount, apart in zip(amounts, (*least.amounts, least.guests, least.alone), strict=True):
            amount[self._apart.indices] = apart
        of_nodes = [amount[indices] for amount in amounts]
        gpus, cpu_milli, memory_bytes, *extended, guests, alone = of_nodes
        return LeastFree(gpus, cpu_milli, memory_bytes, guests, alone, tuple(extended))

    def start_slots(
        self, part: Shape, nodes_and_ms: tuple[int, int], usable: NDArray[np.bool_], first: int
    ) -> Iterator[int]:
        """Yield slots from `first` on from which enough usable nodes satisfy the part for long enough: (nodes, ms)."""
        self._widen()
        if self._apart.subset is None:
            yield from self._apart.start_slots(part, nodes_and_ms, usable, first)
            return
        rising = usable.copy()
        rising[self._apart.indices] = False
        # A rising node satisfies the part from its slot on, whatever the length of the stay.
        since = np.bincount(self._rising.free_since(part)[rising], minlength=len(self.edges))[: len(self.edges)]
        counts = np.cumsum(since) + self._apart.count_holding(part, nodes_and_ms[1], usable)
        yield from (first + np.flatnonzero(counts[first:] >= nodes_and_ms[0])).tolist()

    def holding_nodes(self, part: Shape, slot: int, for_ms: int) -> NDArray[np.bool_]:
        """Return (N,) True for nodes that satisfy the part for `for_ms` from the begin of a slot on."""
        self._widen()
        if self._apart.subset is None:
            return self._apart.holding_nodes(part, slot, for_ms)
        is_held: NDArray[np.bool_] = self._rising.free_since(part) <= slot
        is_held[self._apart.indices] = self._apart.holding_nodes(part, slot, for_ms)
        return is_held

    def _widen(self) -> None:
        """Build the dense profile for all nodes with changes, before it is read."""
        if not self._beyond:
            return
        self._widened += 1
        self._apart = self._build_apart([self._apart.indices, *self._beyond])
        self._beyond.clear()

    def _build_apart(self, nodes: list[Ints]) -> AvailabilityProfile:
        """Return a dense profile of these nodes, or of all if they are most or it was widened too often."""
        held, stays, subset = self._held, self._stays, np.unique(np.concatenate(nodes))
        is_most = self._widened > MAX_WIDENINGS or 2 * len(subset) > len(self.nodes.nodes)
        if not is_most:
            is_included = np.zeros(len(self.nodes.nodes), dtype=bool)
            is_included[subset] = True
            rows = np.flatnonzero(is_included[held.indices] & _has_demand(held))
            held = HeldCapacity(held.indices[rows], held.ends_ms[rows], held.taken[:, rows])
            stays = [restrict_stay(stay, is_included) for stay in stays]
        profile = AvailabilityProfile(self.nodes, self.edges, held, stays, None if is_most else subset)
        profile.is_exact = False  # its edges are those of all
        for interval in self._closed:
            profile.close_nodes(*interval)
        for stay, sign in self._changes:
            profile.add(stay, sign)
        return profile
