"""Nodes and devices as arrays, in topology order (domains, then name): what each has, and what is free.

The only order that nodes ever have is this one: a node's index in every array is its place in the network, so a domain
of any level is a slice. Scores and indexes read these arrays; `core.nodes.node_table` changes them."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import Devices, Places
from ganger.core.nodes.fragmentation import DemandKind, Fragments
from ganger.core.nodes.node_attributes import NodeAttributes
from ganger.core.nodes.node_pools import NodePools
from ganger.core.nodes.topology import Ints, Topology, by_labels, in_order
from ganger.core.undo import Undo
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.policy import Rules
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, WHOLE, Selector

NO_RULES: Final = Rules()
UNREADY: Final = "unready"
NO_STATES: Final[Mapping[str, NodeState]] = MappingProxyType({})
UNCOUNTED: Final = 1 << 20
"""How many fit on a node of what needs nothing."""


class Journal:
    """Indices of nodes in the order in which they changed. Put through an `Undo` like a value, an entry is made again
    when the change is undone: undoing is a change too."""

    def __init__(self) -> None:
        """Nothing has changed."""
        self.entries = array("q")

    def __getitem__(self, at: int | Ints) -> None:
        return None

    def __setitem__(self, at: int | Ints, value: None) -> None:
        if isinstance(at, int):
            self.entries.append(at)
        else:
            self.entries.frombytes(at.astype(np.int64, copy=False).tobytes())

    def since(self, read: int, nodes: int) -> NDArray[np.int64]:
        """Which of so many nodes have changed since it had so many entries: rising, each once."""
        there = np.zeros(nodes, dtype=bool)
        there[np.array(self.entries[read:])] = True
        return np.flatnonzero(there)


class NodeArrays:
    """Struct of arrays over N nodes and their D devices.

    gpus, free_gpus: (N,) int32; cpu_milli, free_cpu_milli, memory_bytes, free_memory_bytes: (N,) int64;
    devices: these one by one; first_device, owner: its arrays; free_gpus counts devices that nobody has any of, others
    included; foreign: (N,) int32, of how many devices others have some, or None where they have none anywhere;
    doubt: (N,) int64, what speaks against a node where all else is equal; doubts: whether anything does; guests, alone:
    (N,) int32, how many shares of gangs are on a node, and how many of these are of gangs that share it with nobody;
    held: (N,) bool, kept by a round for a gang that cannot start yet (never outside one); pools: in which each node is,
    by the `rules` of the policy; kinds: what jobs here ask for, where these rules heed it; fragments: these as arrays.
    `nodes` and `states` are lists in the same order, and `listed`: the nodes as they were told, of `listed_levels`,
    where the rules have levels of their own; `topology` has the domains, `traits` what nodes are by label, taint and
    network. journal: nodes that changed.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        states: Mapping[str, NodeState],
        undo: Undo,
        levels: Sequence[str] = RACK,
        rules: Rules = NO_RULES,
    ) -> None:
        """All free that others do not use. `states` of nodes that it does not name are ready; `rules` say in which
        pools nodes are."""
        self.listed_levels = tuple(levels)
        if rules.topology:
            told, levels = {node.name: node for node in nodes}, tuple(level.name for level in rules.topology)
            self.nodes = in_order(by_labels(told.values(), rules.topology), levels)
            self.listed = [told[node.name] for node in self.nodes]
        else:
            self.nodes = self.listed = in_order(nodes, levels)
        self.topology = Topology(self.nodes, levels)
        self.index = {node.name: at for at, node in enumerate(self.nodes)}
        self.rules, self.pools = rules, NodePools(self.nodes, rules.pools)
        self.states = [states.get(node.name, NodeState.READY) for node in self.nodes]
        self.gpu_types = [node.gpu_type.lower() for node in self.nodes]
        self.names = [node.name for node in self.nodes]
        self.doubt = _doubts(self.nodes)
        self.doubts = bool(self.doubt.any())
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
        self.ready = np.array([self._takes_gangs(at) for at in range(len(self.nodes))], dtype=bool)
        self.held = np.zeros(len(self.nodes), dtype=bool)
        self.guests = np.zeros(len(self.nodes), dtype=np.int32)
        self.alone = np.zeros(len(self.nodes), dtype=np.int32)
        self._of_type: dict[str, NDArray[np.bool_]] = {}
        self.journal = Journal()
        self.kinds: tuple[DemandKind, ...] = ()
        self.fragments = Fragments(self.kinds, self.of_type)
        self.traits = NodeAttributes(self.nodes)

    def set_kinds(self, kinds: tuple[DemandKind, ...]) -> None:
        """Set what jobs here ask for."""
        if kinds != self.kinds:
            self.kinds, self.fragments = kinds, Fragments(kinds, self.of_type)

    def shown_state(self, at: int) -> str:
        """The state of a node for people: `unready` for one that is not ready and in no other state that says more."""
        return UNREADY if self.nodes[at].unready and self.states[at] is NodeState.READY else self.states[at]

    def is_lost(self, name: str) -> bool:
        """Whether a node does not answer."""
        return self.states[self.index[name]] in (NodeState.LOST, NodeState.LOST_CORDONED)

    def empty(self) -> NDArray[np.bool_]:
        """(N,) nodes that nobody has anything of that could be in the way of one who shares with nobody."""
        empty: NDArray[np.bool_] = self.guests == 0
        return empty if self.foreign is None else empty & (self.foreign == 0)

    def of_type(self, gpu_type: str | None) -> NDArray[np.bool_]:
        """(N,) nodes with that GPU type; None is every node."""
        key = gpu_type or ""
        if key not in self._of_type:
            self._of_type[key] = np.array([not gpu_type or has == gpu_type for has in self.gpu_types], dtype=bool)
        return self._of_type[key]

    def _takes_gangs(self, at: int) -> bool:
        return self.states[at] is NodeState.READY and not self.nodes[at].unready

    def meant(self, selector: Selector) -> NDArray[np.bool_]:
        """(N,) nodes that a gang may have by its labels, taints and networks."""
        return self.traits.meant(selector)

    def holding_alone(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) nodes that could hold one of the part's nodes if nothing else ran, whatever their state."""
        enough = self.gpus == part.devices if part.selector.sharing == WHOLE else self.gpus >= part.devices
        if picks_devices(part):
            enough &= self.devices.most(part) > 0
        return (
            self.of_type(part.gpu_type)
            & self.meant(part.selector)
            & enough
            & (self.cpu_milli >= part.cpu_milli)
            & (self.memory_bytes >= part.memory_bytes)
        )

    def fits(self, part: Shape, at: Places) -> NDArray[np.bool_]:
        """Which of these nodes can take one of the part's nodes now. Bars are not looked at."""
        fits = self._fits(part, at)
        return fits & (self.devices.counts(part, at) > 0) if picks_devices(part) else fits

    def _fits(self, part: Shape, at: Places) -> NDArray[np.bool_]:
        """The same, if it were all the same which devices they have."""
        fits: NDArray[np.bool_] = (
            self.ready[at]
            & ~self.held[at]
            & self.of_type(part.gpu_type)[at]
            & self.meant(part.selector)[at]
            & (self.free_gpus[at] >= part.gpus)
            & (self.free_cpu_milli[at] >= part.cpu_milli)
            & (self.free_memory_bytes[at] >= part.memory_bytes)
            & (self.alone[at] == 0)
        )
        if part.selector.sharing == SHARED:
            return fits
        left_over = (self.gpus[at] != part.devices) & (part.selector.sharing == WHOLE)
        fits &= (self.guests[at] == 0) & ~left_over
        return fits if self.foreign is None else fits & (self.foreign[at] == 0)

    def times_at(self, part: Shape, at: Places) -> NDArray[np.int64]:
        """How many of the part's nodes each of these can take now: one at most, unless they may share a node. Bars are
        not looked at."""
        free = (self.free_gpus[at], self.free_cpu_milli[at], self.free_memory_bytes[at])
        times = self.times_among(part, self._fits(part, at), free)
        return np.minimum(times, self.devices.counts(part, at)) if picks_devices(part) else times

    def capacities(self, part: Shape, among: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(N,) how many of the part's nodes each of those `among` would hold if nothing else ran."""
        times = self.times_among(part, among, (self.gpus, self.cpu_milli, self.memory_bytes))
        return np.minimum(times, self.devices.most(part)) if picks_devices(part) else times

    def capacity(self, part: Shape, among: NDArray[np.bool_]) -> int:
        """How many of the part's nodes those `among` hold if nothing else ran."""
        return int(self.capacities(part, among).sum())

    def times_among(
        self, part: Shape, among: NDArray[np.bool_], has: tuple[NDArray[np.integer[Any]], ...]
    ) -> NDArray[np.int64]:
        """(n,) how many of the part's nodes each of those `among` holds that has so much of each resource."""
        times = among.astype(np.int64)
        if part.stacked:
            each = (part.gpus, part.cpu_milli, part.memory_bytes)
            most = [amount // need for need, amount in zip(each, has, strict=True) if need]
            times *= np.minimum.reduce(most) if most else UNCOUNTED
        return times


def picks_devices(part: Shape) -> bool:
    """Whether it is not the same to the part which devices of a node it gets."""
    return part.has_share or bool(part.gpus and part.selector.devices)


def _foreign(nodes: Sequence[Node]) -> NDArray[np.int32] | None:
    counts = np.array([len(node.foreign) for node in nodes], dtype=np.int32)
    return counts if counts.any() else None


def _doubts(nodes: Sequence[Node]) -> NDArray[np.int64]:
    """(N,) more for a node that is under suspicion; of equally suspicious ones more for the slower."""
    suspicion = np.array([node.suspicion for node in nodes], dtype=np.int64)
    performance = np.array([node.performance_milli for node in nodes], dtype=np.int64)
    doubts: NDArray[np.int64] = suspicion * 1_000_000 + (performance.max(initial=0) - performance)
    return doubts
