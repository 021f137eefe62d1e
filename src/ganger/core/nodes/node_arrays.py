"""Nodes and devices as arrays in topology order (domains, then name): the capacity of each, and what is free.

Nodes have no other order: a node's index in every array is its place in the network, so that the nodes of a domain at
any level are a slice. Scores and indexes read these arrays; `core.nodes.node_table` changes them.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import ALL, Devices, NodeIndices
from ganger.core.nodes.fragmentation import DemandKind, Fragments
from ganger.core.nodes.node_attributes import NodeAttributes
from ganger.core.nodes.topology import Ints, Topology, assign_domains, sort_by_topology
from ganger.core.undo import Undo
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.policy import Rules
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, WHOLE, Selector

NO_RULES: Final = Rules()
UNREADY: Final = "unready"
"""The displayed state of a node that its backend reports as not ready."""
NO_STATES: Final[Mapping[str, NodeState]] = MappingProxyType({})
UNLIMITED_COUNT: Final = 1 << 20
"""The count on a node for a part that needs nothing."""


class Journal:
    """Indices of nodes in the order in which they changed.

    An entry put through an `Undo` like a value is appended again when the change is undone: undoing is a change too.
    """

    def __init__(self) -> None:
        """Start without changes."""
        self.entries = array("q")

    def __getitem__(self, index: int | Ints) -> None:
        return None

    def __setitem__(self, index: int | Ints, value: None) -> None:
        if isinstance(index, int):
            self.entries.append(index)
        else:
            self.entries.frombytes(index.astype(np.int64, copy=False).tobytes())

    def since(self, read: int, nodes: int) -> NDArray[np.int64]:
        """Return the nodes that changed after the first `read` entries, in rising order, each once."""
        changed = np.zeros(nodes, dtype=bool)
        changed[np.array(self.entries[read:])] = True
        return np.flatnonzero(changed)


class NodeAmounts(NamedTuple):
    """NodeAmounts of the resources of nodes.

    gpus: (N,) int32.
    cpu_milli, memory_bytes: (N,) int64.
    """

    gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints

    def at(self, nodes: NodeIndices) -> "NodeAmounts":
        """Return the amounts of some of the nodes."""
        return NodeAmounts(self.gpus[nodes], self.cpu_milli[nodes], self.memory_bytes[nodes])

    def copy(self) -> "NodeAmounts":
        """Return amounts that can be changed independently."""
        return NodeAmounts(self.gpus.copy(), self.cpu_milli.copy(), self.memory_bytes.copy())


class ExtendedAmounts(NamedTuple):
    """Amounts of the extended resources that any node has, by name: (N,) int64 each."""

    total: dict[str, Ints]
    free: dict[str, Ints]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resources, in order."""
        return tuple(self.total)


class Listing(NamedTuple):
    """The nodes, levels and rules that the arrays were made from.

    nodes: as the backend listed them, in the order of the arrays.
    levels: their levels, in place of which the rules may define others.
    rules: the policy's, which assign nodes to domains and pools.
    """

    nodes: list[Node]
    levels: tuple[str, ...]
    rules: Rules


class Occupancy(NamedTuple):
    """The guests of each node, for gangs that must or must not share it.

    guests: (N,) int32, the shares of gangs on a node.
    alone: (N,) int32, how many of these belong to gangs that have the node exclusively.
    foreign: (N,) int32, the number of devices used from outside ganger, None if there are none.
    """

    guests: NDArray[np.int32]
    alone: NDArray[np.int32]
    foreign: NDArray[np.int32] | None

    def empty(self, nodes: NodeIndices = ALL) -> NDArray[np.bool_]:
        """Return which of these nodes have no guests or foreign devices, so that an exclusive gang may use them."""
        empty: NDArray[np.bool_] = self.guests[nodes] == 0
        return empty if self.foreign is None else empty & (self.foreign[nodes] == 0)


class NodeArrays:
    """Arrays over N nodes and their devices.

    listing: what they were made from.
    nodes, states: lists in the order of the arrays; `index`: the place of a node in them, by its name.
    topology: the domains.
    attributes: names, GPU types, labels, taints, networks, pools and penalties.
    total, free: the amounts; free are devices of which no gang and nothing foreign has any part.
    extended: the same of extended resources.
    devices: the devices one by one.
    occupancy: the gangs and foreign workloads on each node.
    ready: (N,) bool, nodes that take gangs.
    held: (N,) bool, nodes that a cycle withholds for a gang that cannot start yet; always False outside a cycle.
    journal: the nodes that changed.
    fragments: the typical demands here as arrays, where the rules use them.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        states: Mapping[str, NodeState],
        undo: Undo,
        levels: Sequence[str] = RACK,
        rules: Rules = NO_RULES,
    ) -> None:
        """Create arrays with everything free but foreign devices.

        Nodes that `states` does not name are ready; `rules` assign nodes to pools.
        """
        listed_levels = tuple(levels)
        if rules.topology:
            listed, levels = {node.name: node for node in nodes}, tuple(level.name for level in rules.topology)
            self.nodes = sort_by_topology(assign_domains(listed.values(), rules.topology), levels)
            self.listing = Listing([listed[node.name] for node in self.nodes], listed_levels, rules)
        else:
            self.nodes = sort_by_topology(nodes, levels)
            self.listing = Listing(self.nodes, listed_levels, rules)
        self.topology = Topology(self.nodes, levels)
        self.index = {node.name: index for index, node in enumerate(self.nodes)}
        self.states = [states.get(node.name, NodeState.READY) for node in self.nodes]
        self.attributes = NodeAttributes(self.nodes, rules.pools)
        self.total = _capacities(self.nodes)
        self.free = self.total.copy()
        self.extended = _extended_amounts(self.nodes)
        self.occupancy = _unoccupied(self.nodes)
        if self.occupancy.foreign is not None:
            self.free.gpus[:] -= self.occupancy.foreign
        self.devices = Devices(self.nodes, undo)
        self.ready = np.array([self._accepts_gangs(index) for index in range(len(self.nodes))], dtype=bool)
        self.held = np.zeros(len(self.nodes), dtype=bool)
        self.journal = Journal()
        self.fragments = Fragments((), self.attributes.gpu_types)

    def validate_against(self, rebuilt: "NodeArrays") -> None:
        """Raise AssertionError if a node is over-allocated, or naming the difference from arrays of the same gangs."""
        for name, current, expected in (
            *zip(self.free._fields, self.free, rebuilt.free, strict=True),
            *((name, free, rebuilt.extended.free[name]) for name, free in self.extended.free.items()),
            *zip(("total GPUs", "total CPU", "total memory"), self.total, rebuilt.total, strict=True),
            *((name, total, rebuilt.extended.total[name]) for name, total in self.extended.total.items()),
            ("guests", self.occupancy.guests, rebuilt.occupancy.guests),
            ("alone", self.occupancy.alone, rebuilt.occupancy.alone),
            ("owner", self.devices.owner, rebuilt.devices.owner),
            ("ready", self.ready, rebuilt.ready),
            ("held", self.held, rebuilt.held),
        ):
            assert (current == expected).all(), f"{name} of the nodes differs from the gangs"
        free_amounts = (*self.free, *self.extended.free.values())
        assert all((free >= 0).all() for free in free_amounts), "a node is over-allocated"
        assert self.states == rebuilt.states, "node states differ"
        self.devices.validate(rebuilt.devices)

    def change(self, node: Node) -> None:
        """Replace a node by one that `is_same_node`; what gangs have taken stays taken. Not undone with a trial."""
        index = self.index[node.name]
        before = self.listing.nodes[index]
        self.listing.nodes[index] = node
        self.nodes[index] = replace(node, domains=self.nodes[index].domains)
        for amounts in (self.total, self.free):
            amounts.cpu_milli[index] += node.cpu_milli - before.cpu_milli
            amounts.memory_bytes[index] += node.memory_bytes - before.memory_bytes
        for name, amount in node.extended.items():
            for extended in (self.extended.total, self.extended.free):
                extended[name][index] += amount - before.extended[name]
        if node.foreign != before.foreign:
            self._set_foreign(index, before.foreign, node.foreign)
        self.ready[index] = self._accepts_gangs(index)
        self.journal[index] = None
        if node.images != before.images:
            self.attributes.forget_images()

    def _set_foreign(self, index: int, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        if self.occupancy.foreign is None:
            self.occupancy = self.occupancy._replace(foreign=np.zeros_like(self.occupancy.guests))
        assert self.occupancy.foreign is not None
        self.occupancy.foreign[index] = len(after)
        self.free.gpus[index] += len(before) - len(after)
        self.devices.set_foreign(index, before, after)

    def set_demand_kinds(self, demand_kinds: tuple[DemandKind, ...]) -> None:
        """Set the typical demands."""
        if demand_kinds != self.fragments.kinds:
            self.fragments = Fragments(demand_kinds, self.attributes.gpu_types)

    def display_state(self, index: int) -> str:
        """Return the state to display: `unready` for a node that is not ready and in no more specific state."""
        return UNREADY if self.nodes[index].unready and self.states[index] is NodeState.READY else self.states[index]

    def is_lost(self, name: str) -> bool:
        """Return whether a node does not respond."""
        return self.states[self.index[name]] in (NodeState.LOST, NodeState.LOST_CORDONED)

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node is out of service by request."""
        return self.states[self.index[name]] in (NodeState.CORDONED, NodeState.LOST_CORDONED)

    def _accepts_gangs(self, index: int) -> bool:
        return self.states[index] is NodeState.READY and not self.nodes[index].unready

    def eligible(self, selector: Selector) -> NDArray[np.bool_]:
        """Return (N,) nodes that a gang may have by its labels, taints and networks."""
        return self.attributes.eligible(selector)

    def fits_when_idle(self, part: Shape) -> NDArray[np.bool_]:
        """Return (N,) nodes that could hold one of the part's nodes if nothing else ran, whatever their state."""
        gpus, cpu_milli, memory_bytes = self.total
        enough = gpus == part.devices if part.selector.sharing == WHOLE else gpus >= part.devices
        if picks_devices(part):
            enough &= self.devices.capacity_when_idle(part) > 0
        if part.extended:
            enough &= has_extended(part, self.extended.total, ALL)
        return (
            self.attributes.accepts(part)
            & self.eligible(part.selector)
            & enough
            & (cpu_milli >= part.cpu_milli)
            & (memory_bytes >= part.memory_bytes)
        )

    def fits(self, part: Shape, nodes: NodeIndices) -> NDArray[np.bool_]:
        """Return which of these nodes can take one of the part's nodes now, apart from excluded nodes."""
        fits = self._fits(part, nodes)
        return fits & (self.devices.counts(part, nodes) > 0) if picks_devices(part) else fits

    def _fits(self, part: Shape, nodes: NodeIndices) -> NDArray[np.bool_]:
        """Return the same without regard to which devices are free."""
        free = self.free
        fits: NDArray[np.bool_] = (
            self.ready[nodes]
            & ~self.held[nodes]
            & self.attributes.accepts(part)[nodes]
            & self.eligible(part.selector)[nodes]
            & (free.gpus[nodes] >= part.gpus)
            & (free.cpu_milli[nodes] >= part.cpu_milli)
            & (free.memory_bytes[nodes] >= part.memory_bytes)
            & (self.occupancy.alone[nodes] == 0)
        )
        if part.extended:
            fits &= has_extended(part, self.extended.free, nodes)
        if part.selector.sharing == SHARED:
            return fits
        left_over = (self.total.gpus[nodes] != part.devices) & (part.selector.sharing == WHOLE)
        fits &= self.occupancy.empty(nodes) & ~left_over
        return fits

    def counts_at(self, part: Shape, nodes: NodeIndices) -> NDArray[np.int64]:
        """Return how many of the part's nodes each of these can take now, at most one unless stacked.

        Excluded nodes are included.
        """
        counts = self.counts_among(part, self._fits(part, nodes), self.free.at(nodes))
        counts = limited_by_extended(part, counts, self.extended.free, nodes)
        return np.minimum(counts, self.devices.counts(part, nodes)) if picks_devices(part) else counts

    def capacities(self, part: Shape, among: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return (N,) how many of the part's nodes each node in `among` would hold if nothing else ran."""
        counts = limited_by_extended(part, self.counts_among(part, among, self.total), self.extended.total, ALL)
        return np.minimum(counts, self.devices.capacity_when_idle(part)) if picks_devices(part) else counts

    def capacity(self, part: Shape, among: NDArray[np.bool_]) -> int:
        """Return how many of the part's nodes those in `among` would hold if nothing else ran."""
        return int(self.capacities(part, among).sum())

    def counts_among(
        self, part: Shape, among: NDArray[np.bool_], amounts: tuple[NDArray[np.integer[Any]], ...]
    ) -> NDArray[np.int64]:
        """Return (n,) how many of the part's nodes fit on each node in `among` that has these amounts."""
        counts = among.astype(np.int64)
        if part.stacked:
            needs = (part.gpus, part.cpu_milli, part.memory_bytes)
            limits = [amount // need for need, amount in zip(needs, amounts, strict=True) if need]
            counts *= np.minimum.reduce(limits) if limits else UNLIMITED_COUNT
        return counts


def picks_devices(part: Shape) -> bool:
    """Return whether it matters to the part which devices of a node it gets."""
    return part.has_share or bool(part.gpus and part.selector.devices)


def extended_needs(part: Shape, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return how much of each of these extended resources one of the part's nodes has."""
    if not names:
        return ()
    amounts = dict(part.extended)
    return tuple(amounts.get(name, 0) for name in names)


def has_extended(part: Shape, amounts: Mapping[str, Ints], nodes: NodeIndices) -> NDArray[np.bool_] | bool:
    """Return which of these nodes have the part's extended resources among the amounts."""
    if not all(name in amounts for name, _ in part.extended):
        return False
    enough: NDArray[np.bool_] = np.logical_and.reduce([amounts[name][nodes] >= need for name, need in part.extended])
    return enough


def limited_by_extended(
    part: Shape, counts: NDArray[np.int64], amounts: Mapping[str, Ints], nodes: NodeIndices
) -> NDArray[np.int64]:
    """Return (n,) counts of a part on these nodes, at most as many as their extended resources are enough for."""
    if not part.extended or not part.stacked:
        return counts
    limits = [amounts[name][nodes] // need for name, need in part.extended if name in amounts]
    limited: NDArray[np.int64] = np.maximum(0, np.minimum.reduce([counts, *limits]))
    return limited


def _extended_amounts(nodes: Sequence[Node]) -> ExtendedAmounts:
    names = sorted({name: None for node in nodes for name in node.extended})
    total: dict[str, Ints] = {
        name: np.array([node.extended.get(name, 0) for node in nodes], dtype=np.int64) for name in names
    }
    return ExtendedAmounts(total, {name: amounts.copy() for name, amounts in total.items()})


def _capacities(nodes: Sequence[Node]) -> NodeAmounts:
    return NodeAmounts(
        np.array([node.gpus for node in nodes], dtype=np.int32),
        np.array([node.cpu_milli for node in nodes], dtype=np.int64),
        np.array([node.memory_bytes for node in nodes], dtype=np.int64),
    )


def _unoccupied(nodes: Sequence[Node]) -> Occupancy:
    """Return the occupancy without any gang."""
    foreign = np.array([len(node.foreign) for node in nodes], dtype=np.int32)
    return Occupancy(np.zeros_like(foreign), np.zeros_like(foreign), foreign if foreign.any() else None)
