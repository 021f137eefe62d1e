"""The nodes of the cluster: their arrays, allocating and releasing shares, and the caches kept beside the arrays."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.capacity_index import CapacityIndex
from ganger.core.nodes.devices import ALL, FREE, DeviceOrder
from ganger.core.nodes.node_arrays import (
    NO_RULES,
    NO_STATES,
    NodeArrays,
    has_extended,
    limited_by_extended,
    picks_devices,
)
from ganger.core.nodes.score_cache import ScoreCache
from ganger.core.nodes.topology import Ints
from ganger.core.undo import Undo
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.decision import NodeShare
from ganger.model.policy import Rules
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

JOURNAL_LENGTH: Final = 4
"""Entries per node that the journal may have before it is cleared."""


NO_AMOUNTS: Final[Mapping[str, Ints]] = MappingProxyType({})


class ReservedCapacity(NamedTuple):
    """Free capacity of some nodes that must not be taken.

    at: (n,) indices of the nodes.
    gpus, cpu_milli, memory_bytes: (n,) the reserved amounts.
    guests: (n,) nodes that will have other guests.
    alone: (n,) nodes that will be used exclusively.
    extended: (n,) the reserved amounts of each extended resource.
    """

    at: NDArray[np.intp]
    gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    guests: NDArray[np.bool_]
    alone: NDArray[np.bool_]
    extended: Mapping[str, Ints] = NO_AMOUNTS

    def of(self, mask: NDArray[np.bool_]) -> "ReservedCapacity":
        """Return the reserved capacity of a subset of these nodes."""
        free = self.gpus[mask], self.cpu_milli[mask], self.memory_bytes[mask]
        extended = {name: amounts[mask] for name, amounts in self.extended.items()}
        return ReservedCapacity(self.at[mask], *free, self.guests[mask], self.alone[mask], extended)


class NodeTable(NodeArrays):
    """The node arrays, what a cycle withholds from the current gang, and caches that follow the journal.

    excluded: (N,) bool, nodes that the current gang must not have; all False outside `excluding`.
    reserved: free capacity that it must not take; None outside `reserving`.
    without_image: (N,) 1 for nodes that lack the image of the current gang, else 0; None where nodes do not differ.
    capacity_index: how many of each demand the nodes hold.
    score_cache: the policy's score of each node for a demand.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        states: Mapping[str, NodeState],
        undo: Undo,
        levels: Sequence[str] = RACK,
        rules: Rules = NO_RULES,
    ) -> None:
        """Create a table with everything free but foreign devices.

        Nodes that `states` does not name are ready; `rules` assign nodes to pools.
        """
        super().__init__(nodes, states, undo, levels, rules)
        self._undo = undo
        self.excluded = np.zeros(len(self.nodes), dtype=bool)
        self.reserved: ReservedCapacity | None = None
        self.without_image: Ints | None = None
        self.takes_suspects = False
        self._bare: NodeTable | None = None
        self.capacity_index = CapacityIndex(self)
        self.score_cache = ScoreCache(self, self.capacity_index)

    def set_state(self, name: str, state: NodeState) -> None:
        """Set a node's state, which decides whether it takes gangs."""
        index = self.index[name]
        if self._bare is not None:
            self._bare.set_state(name, state)
        self._undo.put(self.states, index, state)
        self._undo.put(self.ready, index, self._accepts_gangs(index))
        self._undo.put(self.journal, index, None)

    def penalize(self, name: str, suspicion: int, slowness_milli: int) -> None:
        """Set what placement holds against a node: its faults, and what it is slower. Not undone with a trial."""
        self.attributes.penalize(self.index[name], suspicion, slowness_milli)

    def change(self, node: Node) -> None:
        """Replace a node by one that `is_same_node`, in the caches too."""
        super().change(node)
        self.capacity_index.forget_sizes()
        if self._bare is not None:
            self._bare.change(node.unused)

    def bare(self) -> "NodeTable":
        """Return the same nodes in the same states with nothing taken, not even by foreign workloads.

        Created once; it must not be changed for good.
        """
        if self._bare is None:
            states = {node.name: state for node, state in zip(self.nodes, self.states, strict=True)}
            self._bare = self.with_rules(self.listing.rules, states)
        return self._bare

    def with_rules(self, rules: Rules, states: Mapping[str, NodeState] = NO_STATES) -> "NodeTable":
        """Return the same nodes under these rules with nothing taken, not even by foreign workloads."""
        table = NodeTable([node.unused for node in self.listing.nodes], states, Undo(), self.listing.levels, rules)
        table.score_cache.find_score = self.score_cache.find_score
        return table

    def rebuilt(
        self, nodes: Iterable[Node], states: Mapping[str, NodeState], levels: Sequence[str], rules: Rules
    ) -> "NodeTable":
        """Return a table of these nodes under these rules with nothing taken, in place of this one."""
        table = NodeTable(nodes, states, self._undo, levels, rules)
        table.score_cache.find_score = self.score_cache.find_score
        return table

    def able(self, part: Shape) -> NDArray[np.bool_]:
        """Return (N,) nodes that could hold one of the part's nodes if nothing else ran, whatever their state."""
        return ~self.excluded & self.capacity_index.large_enough(part)

    def fitting(self, part: Shape) -> NDArray[np.bool_]:
        """Return (N,) nodes that can take one of the part's nodes now."""
        return self.fits(part, ALL) & ~self.excluded

    def counts(self, part: Shape) -> NDArray[np.int64]:
        """Return (N,) how many of the part's nodes each can take now, at most one unless stacked. Not to be changed."""
        column = self.capacity_index.existing(part)
        counts = self.counts_at(part, ALL) if column is None else column.counts
        if self.excluded.any():
            counts = counts * ~self.excluded
        if self.reserved is not None:
            counts = counts.copy()
            counts[self.reserved.at] = np.minimum(counts[self.reserved.at], self._counts_beside(part, self.reserved))
        return counts

    def room(self, part: Shape) -> int:
        """Return how many of the part's nodes there is room for now."""
        if self.excluded.any():
            return int(self.counts(part).sum())
        column = self.capacity_index.of(part)
        if self.reserved is None:
            return column.total
        counts = column.counts[self.reserved.at]
        return column.total - int((counts - np.minimum(counts, self._counts_beside(part, self.reserved))).sum())

    def _counts_beside(self, part: Shape, reserved: ReservedCapacity) -> NDArray[np.int64]:
        """Return how many of the part's nodes fit beside the reserved capacity, on the nodes that have any."""
        reserved_amounts = (reserved.gpus, reserved.cpu_milli, reserved.memory_bytes)
        free = tuple(
            amount[reserved.at] - reserved_amount
            for amount, reserved_amount in zip(self.free, reserved_amounts, strict=True)
        )
        fits = self.fits(part, reserved.at) & ~reserved.alone
        # A share needs a whole device beside the reserved ones: it may outlast the other shares on its device.
        for amount, need in zip(free, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
            fits &= amount >= need
        extended = {name: self.extended.free[name][reserved.at] - kept for name, kept in reserved.extended.items()}
        if part.extended:
            fits &= has_extended(part, extended, ALL)
        if part.selector.sharing != SHARED:
            fits &= ~reserved.guests
        counts = self.counts_among(part, fits, free)
        counts = limited_by_extended(part, counts, extended, ALL)
        # Shares on a device that is reserved whole leave fewer free devices than are reserved.
        return np.minimum(counts, np.maximum(0, free[0])) if part.has_share else counts

    def choose(self, part: Shape, nodes: Ints, counts: Ints, order: DeviceOrder | None) -> Iterator[tuple[int, ...]]:
        """Iterate over the device indices for each of the part's nodes, `counts` times on each of these nodes.

        Of the free devices those that are connected best, or else the first ones; for a share the device with the least
        left that takes it, unless `order` says otherwise.
        """
        return (
            self.devices.choose(part, nodes, counts, order)
            if picks_devices(part)
            else self._free_devices(nodes, counts, part.gpus)
        )

    def _free_devices(self, nodes: Ints, counts: Ints, gpus: int) -> Iterator[tuple[int, ...]]:
        whole, idle = tuple(range(gpus)), (self.free.gpus[nodes] == self.total.gpus[nodes]).tolist()
        linked = self.devices.links
        for node, count, is_idle in zip(nodes.tolist(), counts.tolist(), idle, strict=True):
            if is_idle and count == 1 and node not in linked:
                yield whole
                continue
            owners = self.devices.owner[self.devices.first[node] : self.devices.first[node + 1]]
            free = np.flatnonzero(owners == FREE).tolist()
            yield from self.devices.groups(node, free, gpus, count) if gpus else ((),) * count

    def take(self, number: int, shape: Shape, shares: Iterable[NodeShare]) -> None:
        """Allocate shares to gang `number`; raise ValueError if a device is not free."""
        for part, part_shares in _by_part(shape, shares):
            nodes, devices = self._indices(part_shares)
            if part.has_share:
                self._add_shares(nodes, devices, part, +1)
                continue
            taken = self.devices.owner[devices] != FREE
            if taken.any() or (part.stacked and np.unique(devices).size < devices.size):
                names = ", ".join(share.node for share in part_shares[:3])
                raise ValueError(f"a device of {names} is not free for gang {number}")
            self._undo.put(self.devices.owner, devices, number)
            self._add(nodes, part, -1)

    def release(self, shape: Shape, shares: Iterable[NodeShare]) -> None:
        """Free the shares."""
        for part, part_shares in _by_part(shape, shares):
            nodes, devices = self._indices(part_shares)
            if part.has_share:
                self._add_shares(nodes, devices, part, -1)
                continue
            self._undo.put(self.devices.owner, devices, FREE)
            self._add(nodes, part, +1)

    def _indices(self, shares: list[NodeShare]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of the shares' nodes and devices."""
        nodes = np.array([self.index[share.node] for share in shares], dtype=np.int64)
        devices = np.array([share.devices for share in shares], dtype=np.int64)
        return nodes, (self.devices.first[nodes][:, None] + devices).ravel()

    def _add_shares(self, nodes: NDArray[np.int64], devices: NDArray[np.int64], part: Shape, sign: int) -> None:
        """Add or remove shares of devices; the first share on a device takes it from the free ones."""
        changed = self.devices.take(part, nodes, devices) if sign > 0 else self.devices.release(part, nodes, devices)
        for node in np.repeat(nodes, changed).tolist():
            self._undo.put(self.free.gpus, node, self.free.gpus[node] - sign)
        self._add(nodes, part, -sign)

    def hold(self, nodes: Iterable[str], *, held: bool) -> None:
        """Withhold nodes from gangs that could start on them, or stop doing so."""
        for name in nodes:
            self._undo.put(self.held, self.index[name], held)
            self._undo.put(self.journal, self.index[name], None)

    @contextmanager
    def excluding(self, nodes: Iterable[str]) -> Iterator[None]:
        """Exclude those of these nodes that exist within the context; then undo all changes made inside."""
        indices = [self.index[name] for name in nodes if name in self.index]
        if not indices:
            yield
            return
        with self._undo.trial():
            for index in indices:
                self._undo.put(self.excluded, index, value=True)
            yield

    @contextmanager
    def excluding_at(self, indices: Ints) -> Iterator[None]:
        """Exclude the nodes at these indices within the context; then undo all changes made inside."""
        with self._undo.trial():
            self._undo.put(self.excluded, indices, value=True)
            yield

    @contextmanager
    def reserving(self, reserved: ReservedCapacity | None) -> Iterator[None]:
        """Withhold the reserved capacity within the context."""
        before, self.reserved = self.reserved, reserved
        try:
            yield
        finally:
            self.reserved = before

    @contextmanager
    def preferring(self, image: str, *, suspects: bool = False) -> Iterator[None]:
        """Prefer nodes with a container image, and suspect nodes to others, within the context if all else is equal."""
        before = self.without_image, self.takes_suspects
        self.without_image, self.takes_suspects = self.attributes.without_image(image), suspects
        try:
            yield
        finally:
            self.without_image, self.takes_suspects = before

    @property
    def penalty(self) -> Ints:
        """(N,) what speaks against a node if all else is equal, for the gang that is being placed."""
        return self.attributes.suspects_first if self.takes_suspects else self.attributes.penalty

    def trim(self) -> None:
        """Clear a journal that has become longer than recounting all nodes would cost."""
        if len(self.journal.entries) > JOURNAL_LENGTH * max(1, len(self.nodes)):
            self.score_cache.rewind()
            self.capacity_index.rewind()
            del self.journal.entries[:]

    def validate(self) -> None:
        """Recount and rescore everything and raise AssertionError naming the difference."""
        self.capacity_index.validate()
        self.score_cache.validate()

    def trial(self) -> AbstractContextManager[None]:
        """Undo at the end of the context all shares taken or released inside."""
        return self._undo.trial()

    def _add(self, nodes: NDArray[np.int64], part: Shape, sign: int) -> None:
        """Release (+1) or take (-1) one of the part's nodes on each of these; a node may occur more than once."""
        indices, counts = np.unique(nodes, return_counts=True) if len(nodes) > 1 else (nodes, 1)
        change = sign * counts
        for free, need in zip(self.free, (part.gpus, part.cpu_milli, part.memory_bytes), strict=True):
            self._undo.put(free, indices, free[indices] + change * need)
        for name, need in part.extended:
            if (amounts := self.extended.free.get(name)) is not None:
                self._undo.put(amounts, indices, amounts[indices] + change * need)
        guests, alone = self.occupancy.guests, self.occupancy.alone
        self._undo.put(guests, indices, guests[indices] - change)
        if part.selector.sharing != SHARED:
            self._undo.put(alone, indices, alone[indices] - change)
        self._undo.put(self.journal, indices, None)


def _by_part(shape: Shape, shares: Iterable[NodeShare]) -> Iterator[tuple[Shape, list[NodeShare]]]:
    """Iterate over the parts that have any of the shares, with these shares."""
    all_shares = list(shares)
    for index, part in enumerate(shape.parts):
        part_shares = [share for share in all_shares if share.part == index] if shape.more else all_shares
        if part_shares:
            yield part, part_shares
