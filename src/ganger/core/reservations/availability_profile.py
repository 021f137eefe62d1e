"""Availability profile: the free capacity of every node over time, by the ends of gangs and by reservations.

Time is cut into slots at edges; within a slot nothing begins or ends. The profile is a matrix (slots, nodes) for each
resource. It is the running sum, slot by slot, of what gangs and stays take when they begin and return when they end.
Guests count as taken, so that what is left of them is a negative number.

While slots times nodes are few, edges are exact: every end and every reserved start. Otherwise they lie on an absolute
grid of 1, 5, 30 minutes, 2 hours and a day, each finer one containing the coarser, so that an edge of the coarse grid
remains one when time brings it into the fine one. Ends are rounded up to an edge, so that the profile never overstates
what is free. A reserved share of a device counts as the whole device.

For each kind of demand the profile keeps, from every slot on, the first slot in which a node does not satisfy it
(`held_until`). The earliest start of a gang is then the first row in which enough nodes satisfy it until the edge where
the gang ends. Source of the slots: Slurm's backfill (reference: scheduling, section 2); of the finer ones first:
section 5.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import ALL, NodeIndices
from ganger.core.nodes.node_arrays import extended_needs, has_extended, picks_devices
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, WHOLE
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS

MAX_EXACT_CELLS: Final = 1 << 18
"""Slots times nodes up to which every edge is exact."""
GRID_STEPS: Final = (
    (MINUTE_MS, 10 * MINUTE_MS),
    (5 * MINUTE_MS, HOUR_MS),
    (30 * MINUTE_MS, 8 * HOUR_MS),
    (2 * HOUR_MS, 2 * DAY_MS),
    (DAY_MS, 16 * DAY_MS),
)
"""Steps of the grid, and how far from now each goes."""
GPUS, CPU_MILLI, MEMORY_BYTES, GUESTS, ALONE, RESOURCES = range(6)
"""Resources of a profile; the last two are guests and exclusive guests, as in `NodeTable`."""
BLOCK_SLOTS: Final = 64
"""Slots that are compared at a time, with at most WIDE_NODES nodes."""
WIDE_NODES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stay:
    """Nodes that one part of a gang takes for a time, by index, repeated if several of the part are on a node."""

    part: Shape
    indices: Ints
    begin_ms: int
    end_ms: int


class HeldCapacity(NamedTuple):
    """Capacity held from now on, a row for each share.

    Attributes:
        indices: (P,) nodes.
        ends_ms: (P,) when each share is released.
        taken: (5, P) GPUs, CPUs, memory, guests and exclusive guests; then a row for each extended resource.
    """

    indices: Ints
    ends_ms: Ints
    taken: Ints


class LeastFree(NamedTuple):
    """The least that nodes have free over some slots, and the most guests and exclusive guests."""

    gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    guests: Ints
    alone: Ints
    extended: tuple[Ints, ...] = ()

    @property
    def amounts(self) -> tuple[Ints, ...]:
        """Amounts of resources, without guests."""
        return self.gpus, self.cpu_milli, self.memory_bytes, *self.extended


@dataclass(slots=True)
class _HoldTable:
    """For one demand, until when each node satisfies it.

    Attributes:
        suitable: (N,) True for nodes that can satisfy it at some time.
        held_until: (S, N) the first slot, from each on, in which a node does not satisfy it.
        log_position: How far in the log of changes the table is up to date.
        cut_count: The number of cuts at that time.
    """

    suitable: NDArray[np.bool_]
    held_until: NDArray[np.int16] | None = None
    log_position: int = 0
    cut_count: int = 0


class AvailabilityProfile:
    """The free capacity of nodes in every slot.

    Attributes:
        edges: (S,) int64, the begin of each slot; the last one has no end.
        extended: The names of extended resources.
        left: (RESOURCES, S, N) int64, what is left of each resource; then a row for each extended one.
        subset: The nodes it is restricted to, rising, or None for all.
        indices: The nodes of its columns.
    """

    def __init__(
        self, nodes: NodeTable, edges: Ints, held: HeldCapacity, stays: Iterable[Stay] = (), subset: Ints | None = None
    ) -> None:
        """Compute what the held shares and the stays leave free.

        `edges` rise, and the first is now. A profile of a subset keeps exactly the edges it was given.
        """
        self.nodes, self.edges, self.subset, self.extended = nodes, edges, subset, nodes.extended.names
        self._is_covered: NDArray[np.bool_] | None = None
        self.indices: NDArray[np.intp] = (np.arange(len(nodes.nodes)) if subset is None else subset).astype(np.intp)
        self.is_exact = subset is None and len(edges) * len(nodes.nodes) <= MAX_EXACT_CELLS
        self._hold_tables: dict[Shape, _HoldTable] = {}
        self._hold_table_of: dict[Shape, _HoldTable] = {}
        self._log: list[int] = []
        self._cut_count = 0
        self.left = self._sum_left(held, list(stays))
        extended_rows = zip(count(RESOURCES), nodes.extended.total.values(), strict=False)
        for resource, total in (*enumerate(nodes.total), *extended_rows):
            self.left[resource] += total if subset is None else total[subset]

    def edge_at_or_after(self, ms: int) -> int:
        """Return the first edge at a time or later: what ends then takes all slots before it."""
        return int(self.edges.searchsorted(ms))

    def slot_at(self, ms: int) -> int:
        """Return the slot that a time is in."""
        return max(0, int(self.edges.searchsorted(ms, side="right")) - 1)

    def covers(self, indices: Ints) -> NDArray[np.bool_]:
        """Return which of these nodes the profile covers."""
        if self.subset is None:
            return np.ones(len(indices), dtype=bool)
        if self._is_covered is None:
            self._is_covered = np.zeros(len(self.nodes.nodes), dtype=bool)
            self._is_covered[self.subset] = True
        return self._is_covered[indices]

    def slot_range(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """Return the first slot of an interval, and the edge at which it ends."""
        begin = self.slot_at(begin_ms)
        return begin, max(begin + 1, self.edge_at_or_after(end_ms))

    def add(self, stay: Stay, sign: int = 1) -> None:
        """Add a stay, or remove it with sign -1. Its begin and end become edges, unless there would be too many."""
        self._cut_at(stay.begin_ms, stay.end_ms)
        rows, columns = slice(*self.slot_range(stay.begin_ms, stay.end_ms)), self._column_of(stay.indices)
        taken = np.array(demand_per_node(stay.part, self.extended), dtype=np.int64)[:, None, None] * sign
        if len(columns) > 1:
            columns, counts = np.unique(columns, return_counts=True)
            taken = taken * counts
        self.left[:, rows, columns] -= taken
        self._log += columns.tolist()

    def is_feasible(self) -> bool:
        """Return whether no node has too little at any time, and no exclusive guest has company.

        All that was added is checked, where `least_free` is about some nodes.
        """
        if int(self.left[:GUESTS].min()) < 0 or (self.extended and int(self.left[RESOURCES:].min()) < 0):
            return False
        return not bool(((self.left[ALONE] < 0) & (self.left[GUESTS] < -1)).any())

    def close_nodes(self, indices: Ints, begin_ms: int, end_ms: int) -> None:
        """Take nodes out for an interval, before anything is read.

        If its ends are no edges, more of the time is taken.
        """
        if end_ms <= self.edges[0]:
            return
        rows, indices = slice(*self.slot_range(begin_ms, end_ms)), self._column_of(indices)
        self.left[GUESTS:RESOURCES, rows, indices] -= 1

    def least_free(self, indices: Ints, begin: int, end: int) -> LeastFree:
        """Return the least that is free of these nodes in slots begin : end, at least one."""
        rows, indices = slice(begin, max(end, begin + 1)), self._column_of(indices)
        gpus, cpu_milli, memory_bytes, guests, alone, *extended = self.left[:, rows, indices].min(axis=1)
        return LeastFree(gpus, cpu_milli, memory_bytes, -guests, -alone, tuple(extended))

    def start_slots(
        self, part: Shape, nodes_and_ms: tuple[int, int], usable: NDArray[np.bool_], first: int
    ) -> Iterator[int]:
        """Yield slots from `first` on from which enough usable nodes satisfy the part for long enough: (nodes, ms)."""
        held_until, end_edges = self.held_until(part), self.end_edges(nodes_and_ms[1])
        if len(self.indices) > WIDE_NODES:
            for slot in range(first, len(self.edges)):
                if np.count_nonzero((held_until[slot] >= end_edges[slot]) & usable) >= nodes_and_ms[0]:
                    yield slot
            return
        for begin in range(first, len(self.edges), BLOCK_SLOTS):
            rows = slice(begin, begin + BLOCK_SLOTS)
            counts = np.count_nonzero((held_until[rows] >= end_edges[rows, None]) & usable, axis=1)
            yield from (begin + np.flatnonzero(counts >= nodes_and_ms[0])).tolist()

    def count_holding(self, part: Shape, for_ms: int, usable: NDArray[np.bool_]) -> Ints:
        """Return (S,) the number of usable nodes that satisfy the part for `for_ms` from each slot on."""
        held_until, end_edges = self.held_until(part), self.end_edges(for_ms)
        counts: Ints = np.count_nonzero((held_until >= end_edges[:, None]) & usable[self.indices], axis=1)
        return counts

    def holding_nodes(self, part: Shape, slot: int, for_ms: int) -> NDArray[np.bool_]:
        """Return (N,) True for nodes that satisfy the part for `for_ms` from the begin of a slot on."""
        is_held: NDArray[np.bool_] = self.held_until(part)[slot] >= self.end_edges(for_ms)[slot]
        return is_held

    def end_edges(self, for_ms: int) -> Ints:
        """Return (S,) for each slot the edge at which a stay of `for_ms` from its begin on ends."""
        if for_ms >= NEVER_MS:
            return np.full(len(self.edges), len(self.edges))
        return np.searchsorted(self.edges, self.edges + for_ms)

    def held_until(self, part: Shape) -> NDArray[np.int16]:
        """Return (S, N) the first slot, from each on, in which a node does not satisfy the part; S if it always does.

        States of nodes are not considered.
        """
        table = self._hold_table_of.get(part)
        if table is None:
            per_node = part.one
            if per_node not in self._hold_tables:
                suitable = suitable_nodes(self.nodes, part)
                self._hold_tables[per_node] = _HoldTable(suitable if self.subset is None else suitable[self.subset])
            table = self._hold_table_of[part] = self._hold_tables[per_node]
        if table.held_until is None or table.cut_count != self._cut_count:
            table.held_until = self._compute_held_until(part, table.suitable, ALL)
            table.log_position, table.cut_count = len(self._log), self._cut_count
        elif table.log_position < len(self._log):
            changed = np.unique(np.array(self._log[table.log_position :], dtype=np.intp))
            table.held_until[:, changed] = self._compute_held_until(part, table.suitable, changed)
            table.log_position = len(self._log)
        return table.held_until

    def _compute_held_until(self, part: Shape, suitable: NDArray[np.bool_], columns: NodeIndices) -> NDArray[np.int16]:
        is_enough = suitable[columns] & (self.left[ALONE][:, columns] == 0)
        for amount, need in zip(self.left, (part.devices, part.cpu_milli, part.memory_bytes), strict=False):
            is_enough &= amount[:, columns] >= need
        for amount, need in zip(self.left[RESOURCES:], extended_needs(part, self.extended), strict=True):
            if need:
                is_enough &= amount[:, columns] >= need
        if part.selector.sharing != SHARED:
            is_enough &= self.left[GUESTS][:, columns] == 0
        slot_count = len(self.edges)
        # A slot that satisfies the demand takes the value of the next one, the others are their own end: a running
        # minimum from the last slot backwards.
        own_slot = np.arange(slot_count, dtype=np.int16)[:, None]
        until: NDArray[np.int16] = np.where(is_enough, np.int16(slot_count), own_slot)
        if until.shape[1] < WIDE_NODES:
            np.minimum.accumulate(until[::-1], axis=0, out=until[::-1])
            return until
        for slot in range(slot_count - 2, -1, -1):
            # Row by row: for long rows numpy's accumulate takes many times as long.
            np.minimum(until[slot], until[slot + 1], out=until[slot])
        return until

    def _column_of(self, indices: Ints) -> Ints:
        """Return the columns of nodes."""
        return indices if self.subset is None else np.searchsorted(self.subset, indices)

    def _cut_at(self, *times_ms: int) -> None:
        """Cut slots at these times, unless there would be too many."""
        if not self.is_exact:
            return
        new: list[int] = []
        for ms in times_ms:
            is_full = (len(self.edges) + len(new)) * len(self.nodes.nodes) > MAX_EXACT_CELLS
            slot = self.edge_at_or_after(ms)
            is_edge = ms in new or slot == 0 or (slot < len(self.edges) and self.edges[slot] == ms)
            if not (is_full or is_edge or ms >= NEVER_MS):
                new.append(ms)
        if not new:
            return
        # All at once: the whole profile is copied.
        edges = np.sort(np.append(self.edges, new))
        self.left = self.left[:, self.edges.searchsorted(edges, side="right") - 1]
        self.edges = edges
        self._cut_count += 1

    def _sum_left(self, held: HeldCapacity, stays: list[Stay]) -> Ints:
        """Return (RESOURCES, S, N) minus what is taken."""
        slots, width = len(self.edges), len(self.indices)
        # Differences first: each share takes its amount in the slot where it begins and returns it where it ends. Their
        # running sum over slots is what is left.
        columns = self._column_of(held.indices)
        ends = np.maximum(1, self.edges.searchsorted(held.ends_ms)) * width + columns
        cells, amounts = [columns, ends], [-held.taken, held.taken]
        if stays:
            begin, end, node_counts, demands = self._stay_columns(stays)
            columns = self._column_of(np.concatenate([stay.indices for stay in stays]))
            taken = demands.repeat(node_counts, axis=1)
            cells += [slot.repeat(node_counts) * width + columns for slot in (begin, end)]
            amounts += [-taken, taken]
        # All resources in one call: a call for each would cost more than the sums of a small cluster.
        rows = RESOURCES + len(self.extended)
        first_cells = np.arange(rows)[:, None] * ((slots + 1) * width)
        left: Ints = np.zeros((rows, slots + 1, width), dtype=np.int64)
        np.add.at(
            left.reshape(-1), (first_cells + np.concatenate(cells)).ravel(), np.concatenate(amounts, axis=1).ravel()
        )
        if width < WIDE_NODES:
            np.add.accumulate(left, axis=1, out=left)
        else:
            for slot in range(1, slots):
                # Row by row: for long rows numpy's accumulate takes three times as long.
                np.add(left[:, slot], left[:, slot - 1], out=left[:, slot])
        return left[:, :-1]

    def _stay_columns(self, stays: list[Stay]) -> tuple[Ints, Ints, list[int], Ints]:
        """Return by stay the first slot, the end edge and the node count, and (5, stays) what it takes per node."""
        times_ms = np.array([(stay.begin_ms, stay.end_ms) for stay in stays], dtype=np.int64)
        begin = np.maximum(0, self.edges.searchsorted(times_ms[:, 0], side="right") - 1)
        end = np.maximum(begin + 1, self.edges.searchsorted(times_ms[:, 1]))
        demands = np.array([demand_per_node(stay.part, self.extended) for stay in stays], dtype=np.int64).T
        return begin, end, [len(stay.indices) for stay in stays], demands


def suitable_nodes(nodes: NodeTable, part: Shape) -> NDArray[np.bool_]:
    """Return (N,) True for nodes that can satisfy the part at some time, by their type, labels and size."""
    suitable = nodes.attributes.accepts(part) & nodes.eligible(part.selector)
    if part.selector.sharing != SHARED and nodes.occupancy.foreign is not None:
        suitable = suitable & (nodes.occupancy.foreign == 0)
    if part.selector.sharing == WHOLE:
        suitable = suitable & (nodes.total.gpus == part.devices)
    if part.extended:
        suitable = suitable & has_extended(part, nodes.extended.total, ALL)
    return suitable & (nodes.devices.capacity_when_idle(part) > 0) if picks_devices(part) else suitable


def restrict_stay(stay: Stay, is_included: NDArray[np.bool_]) -> Stay:
    """Return the part of a stay on the included nodes, (N,) True for each."""
    return Stay(stay.part, stay.indices[is_included[stay.indices]], stay.begin_ms, stay.end_ms)


def demand_per_node(part: Shape, extended: tuple[str, ...]) -> tuple[int, ...]:
    """Return what the part takes of a node: GPUs, CPUs, memory, one guest, 1 if it is exclusive, and of `extended`."""
    amounts = (part.devices, part.cpu_milli, part.memory_bytes, 1, int(part.selector.sharing != SHARED))
    return (*amounts, *extended_needs(part, extended))


def slot_edges(now_ms: int, times_ms: Ints, node_count: int) -> Ints:
    """Return where slots begin: at each time, or on the grid where these are too many for the number of nodes."""
    later = times_ms[(times_ms > now_ms) & (times_ms < NEVER_MS)]
    exact = np.unique(np.append(later, now_ms))
    return exact if 2 * len(exact) * node_count <= MAX_EXACT_CELLS else grid_edges(now_ms)


def grid_edges(now_ms: int) -> Ints:
    """Return the edges of the grid from the current minute on."""
    edges = [now_ms - now_ms % MINUTE_MS]
    for position, (step_ms, reach_ms) in enumerate(GRID_STEPS):
        next_ms = GRID_STEPS[position + 1][0] if position + 1 < len(GRID_STEPS) else step_ms
        while edges[-1] < now_ms + reach_ms or edges[-1] % next_ms:
            edges.append(edges[-1] + step_ms)
    return np.array(edges, dtype=np.int64)
