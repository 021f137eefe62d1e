"""Nodes and devices as arrays in topology order (domains, then name): the capacity of each, and what is free.

Nodes have no other order: a node's index in every array is its place in the network, so that the nodes of a domain at
any level are a slice. Scores and indexes read these arrays; `core.nodes.node_table` changes them.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import Devices, NodeIndices
from ganger.core.nodes.fragmentation import DemandKind, Fragments
from ganger.core.nodes.node_attributes import NodeAttributes
from ganger.core.nodes.node_pools import NodePools
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


class NodeArrays:
    """Arrays over N nodes and their D devices.

    gpus, free_gpus: (N,) int32; free are devices of which no gang and nothing foreign has any part.
    cpu_milli, free_cpu_milli, memory_bytes, free_memory_bytes: (N,) int64.
    devices: the devices one by one.
    first_device, owner: the arrays of `devices`.
    foreign: (N,) int32, the number of devices used from outside ganger, None if there are none.
    penalty: (N,) int64, what speaks against a node if all else is equal.
    has_penalties: whether any node has a penalty.
    guests: (N,) int32, the shares of gangs on a node.
    alone: (N,) int32, how many of these belong to gangs that have the node exclusively.
    held: (N,) bool, nodes that a cycle withholds for a gang that cannot start yet; always False outside a cycle.
    pools: the pool of each node by the policy's `rules`.
    demand_kinds: the typical demands here, where the rules use them.
    fragments: these as arrays.
    nodes, states: lists in the same order.
    listed: the nodes as listed by the backend, with `listed_levels`, where the rules define other levels.
    topology: the domains.
    attributes: labels, taints and networks.
    journal: the nodes that changed.
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
        self.listed_levels = tuple(levels)
        if rules.topology:
            listed, levels = {node.name: node for node in nodes}, tuple(level.name for level in rules.topology)
            self.nodes = sort_by_topology(assign_domains(listed.values(), rules.topology), levels)
            self.listed = [listed[node.name] for node in self.nodes]
        else:
            self.nodes = self.listed = sort_by_topology(nodes, levels)
        self.topology = Topology(self.nodes, levels)
        self.index = {node.name: index for index, node in enumerate(self.nodes)}
        self.rules, self.pools = rules, NodePools(self.nodes, rules.pools)
        self.states = [states.get(node.name, NodeState.READY) for node in self.nodes]
        self.gpu_types = [node.gpu_type.lower() for node in self.nodes]
        self.names = [node.name for node in self.nodes]
        self.penalty = _penalties(self.nodes)
        self.has_penalties = bool(self.penalty.any())
        self.gpus = np.array([node.gpus for node in self.nodes], dtype=np.int32)
        self.cpu_milli = np.array([node.cpu_milli for node in self.nodes], dtype=np.int64)
        self.memory_bytes = np.array([node.memory_bytes for node in self.nodes], dtype=np.int64)
        self.free_gpus = self.gpus.copy()
        self.free_cpu_milli = self.cpu_milli.copy()
        self.free_memory_bytes = self.memory_bytes.copy()
        self.foreign = _foreign(self.nodes)
        if self.foreign is not None:
            self.free_gpus -= self.foreign
        self.devices = Devices(self.nodes, undo)
        self.first_device, self.owner = self.devices.first, self.devices.owner
        self.ready = np.array([self._accepts_gangs(index) for index in range(len(self.nodes))], dtype=bool)
        self.held = np.zeros(len(self.nodes), dtype=bool)
        self.guests = np.zeros(len(self.nodes), dtype=np.int32)
        self.alone = np.zeros(len(self.nodes), dtype=np.int32)
        self._of_type: dict[tuple[str | None, ...], NDArray[np.bool_]] = {}
        self.journal = Journal()
        self.demand_kinds: tuple[DemandKind, ...] = ()
        self.fragments = Fragments(self.demand_kinds, self.gpu_types)
        self.attributes = NodeAttributes(self.nodes)

    def set_demand_kinds(self, demand_kinds: tuple[DemandKind, ...]) -> None:
        """Set the typical demands."""
        if demand_kinds != self.demand_kinds:
            self.demand_kinds, self.fragments = demand_kinds, Fragments(demand_kinds, self.gpu_types)

    def display_state(self, index: int) -> str:
        """Return the state to display: `unready` for a node that is not ready and in no more specific state."""
        return UNREADY if self.nodes[index].unready and self.states[index] is NodeState.READY else self.states[index]

    def is_lost(self, name: str) -> bool:
        """Return whether a node does not respond."""
        return self.states[self.index[name]] in (NodeState.LOST, NodeState.LOST_CORDONED)

    def empty(self) -> NDArray[np.bool_]:
        """Return (N,) nodes without guests or foreign devices, which an exclusive gang may use."""
        empty: NDArray[np.bool_] = self.guests == 0
        return empty if self.foreign is None else empty & (self.foreign == 0)

    def of_type(self, *gpu_types: str | None) -> NDArray[np.bool_]:
        """Return (N,) nodes with one of these GPU types; all nodes if one of them is None."""
        if gpu_types not in self._of_type:
            self._of_type[gpu_types] = np.array(
                [None in gpu_types or node_type in gpu_types for node_type in self.gpu_types], dtype=bool
            )
        return self._of_type[gpu_types]

    def _accepts_gangs(self, index: int) -> bool:
        return self.states[index] is NodeState.READY and not self.nodes[index].unready

    def eligible(self, selector: Selector) -> NDArray[np.bool_]:
        """Return (N,) nodes that a gang may have by its labels, taints and networks."""
        return self.attributes.eligible(selector)

    def fits_when_idle(self, part: Shape) -> NDArray[np.bool_]:
        """Return (N,) nodes that could hold one of the part's nodes if nothing else ran, whatever their state."""
        enough = self.gpus == part.devices if part.selector.sharing == WHOLE else self.gpus >= part.devices
        if picks_devices(part):
            enough &= self.devices.capacity_when_idle(part) > 0
        return (
            self.of_type(*part.gpu_types)
            & self.eligible(part.selector)
            & enough
            & (self.cpu_milli >= part.cpu_milli)
            & (self.memory_bytes >= part.memory_bytes)
        )

    def fits(self, part: Shape, nodes: NodeIndices) -> NDArray[np.bool_]:
        """Return which of these nodes can take one of the part's nodes now, apart from excluded nodes."""
        fits = self._fits(part, nodes)
        return fits & (self.devices.counts(part, nodes) > 0) if picks_devices(part) else fits

    def _fits(self, part: Shape, nodes: NodeIndices) -> NDArray[np.bool_]:
        """Return the same without regard to which devices are free."""
        fits: NDArray[np.bool_] = (
            self.ready[nodes]
            & ~self.held[nodes]
            & self.of_type(*part.gpu_types)[nodes]
            & self.eligible(part.selector)[nodes]
            & (self.free_gpus[nodes] >= part.gpus)
            & (self.free_cpu_milli[nodes] >= part.cpu_milli)
            & (self.free_memory_bytes[nodes] >= part.memory_bytes)
            & (self.alone[nodes] == 0)
        )
        if part.selector.sharing == SHARED:
            return fits
        left_over = (self.gpus[nodes] != part.devices) & (part.selector.sharing == WHOLE)
        fits &= (self.guests[nodes] == 0) & ~left_over
        return fits if self.foreign is None else fits & (self.foreign[nodes] == 0)

    def counts_at(self, part: Shape, nodes: NodeIndices) -> NDArray[np.int64]:
        """Return how many of the part's nodes each of these can take now, at most one unless stacked.

        Excluded nodes are included.
        """
        free = (self.free_gpus[nodes], self.free_cpu_milli[nodes], self.free_memory_bytes[nodes])
        counts = self.counts_among(part, self._fits(part, nodes), free)
        return np.minimum(counts, self.devices.counts(part, nodes)) if picks_devices(part) else counts

    def capacities(self, part: Shape, among: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return (N,) how many of the part's nodes each node in `among` would hold if nothing else ran."""
        counts = self.counts_among(part, among, (self.gpus, self.cpu_milli, self.memory_bytes))
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


def _foreign(nodes: Sequence[Node]) -> NDArray[np.int32] | None:
    counts = np.array([len(node.foreign) for node in nodes], dtype=np.int32)
    return counts if counts.any() else None


def _penalties(nodes: Sequence[Node]) -> NDArray[np.int64]:
    """Return (N,) penalties: higher for nodes under more suspicion, then for slower nodes."""
    suspicion = np.array([node.suspicion for node in nodes], dtype=np.int64)
    performance = np.array([node.performance_milli for node in nodes], dtype=np.int64)
    has_penalties: NDArray[np.int64] = suspicion * 1_000_000 + (performance.max(initial=0) - performance)
    return has_penalties
