"""Nodes and devices as arrays, in topology order (domains, then name): what each has, and what is free.

Owned by `core.state.state`; read by `core.placement.place`, `core.reservations.earliest_start` and
`core.explain.explain`. The only other order nodes ever have is this one: a node's index in every array is its place in
the network, so a domain of any level is a slice."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.capacity_index import MOST_COLUMNS, Columns, Journal
from ganger.core.nodes.devices import EVERY, FREE, Devices, Order, Places
from ganger.core.nodes.fragmentation import Kind
from ganger.core.nodes.node_attributes import Traits
from ganger.core.nodes.node_pools import Pools
from ganger.core.nodes.score_cache import Scored
from ganger.core.nodes.topology import Ints, Topology, by_labels, in_order
from ganger.core.state.undo import Undo
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.decision import NodeShare
from ganger.model.policy import Rules
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, WHOLE, Selector

NO_RULES: Final = Rules()
UNREADY: Final = "unready"
NO_STATES: Final[Mapping[str, NodeState]] = MappingProxyType({})
UNCOUNTED: Final = 1 << 20
"""How many fit on a node of what needs nothing."""


class Kept(NamedTuple):
    """What is not to be taken though it is free, of some nodes: `at`, their indices; that much of each resource; those
    that are to have other guests, and those that are to be shared with nobody."""

    at: NDArray[np.intp]
    gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    guests: NDArray[np.bool_]
    alone: NDArray[np.bool_]

    def of(self, mine: NDArray[np.bool_]) -> "Kept":
        """Of some of these nodes alone."""
        free = self.gpus[mine], self.cpu_milli[mine], self.memory_bytes[mine]
        return Kept(self.at[mine], *free, self.guests[mine], self.alone[mine])


class NodeTable:
    """Struct of arrays over N nodes and their D devices.

    gpus, free_gpus: (N,) int32; cpu_milli, free_cpu_milli, memory_bytes, free_memory_bytes: (N,) int64;
    devices: these one by one; first_device, owner: its arrays; free_gpus counts devices that nobody has any of, others
    included; foreign: (N,) int32, of how many devices others have some, or None where they have none anywhere;
    doubt: (N,) int64, what speaks against a node where all else is equal; doubts: whether anything does; guests, alone:
    (N,) int32, how many shares of gangs are on a node, and how many of these are of gangs that share it with nobody;
    held: (N,) bool, kept by a round for a gang that cannot start yet (never outside one); barred: (N,) bool, nodes that
    the gang in question must not have (never outside `without`); kept: what is free and not to be taken by it (never
    outside `keeping`); pools: in which each node is, by the `rules` of the policy; kinds: what jobs here ask for, where
    these rules heed it. `nodes` and `states` are lists in the same order, and `listed`: the nodes as they were told, of
    `listed_levels`, where the rules have levels of their own; `topology` has the domains, `traits` what nodes are by
    label, taint and network. journal: nodes that changed; columns: what of each need they
    hold; scores: what is said of each for a need by the score of the policy.
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
        self._undo = undo
        self.listed_levels = tuple(levels)
        if rules.topology:
            told, levels = {node.name: node for node in nodes}, tuple(level.name for level in rules.topology)
            self.nodes = in_order(by_labels(told.values(), rules.topology), levels)
            self.listed = [told[node.name] for node in self.nodes]
        else:
            self.nodes = self.listed = in_order(nodes, levels)
        self.topology = Topology(self.nodes, levels)
        self.index = {node.name: at for at, node in enumerate(self.nodes)}
        self.kinds: tuple[Kind, ...] = ()
        self.rules, self.pools = rules, Pools(self.nodes, rules.pools)
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
        self.barred = np.zeros(len(self.nodes), dtype=bool)
        self.guests = np.zeros(len(self.nodes), dtype=np.int32)
        self.alone = np.zeros(len(self.nodes), dtype=np.int32)
        self.kept: Kept | None = None
        self._of_type: dict[str, NDArray[np.bool_]] = {}
        self._large_enough: dict[Shape, NDArray[np.bool_]] = {}
        self._bare: NodeTable | None = None
        self.journal = Journal()
        self.columns = Columns(self)
        self.scores = Scored(self)
        self.traits = Traits(self.nodes)

    def set_state(self, name: str, state: NodeState) -> None:
        """A node's new state; decides whether it takes gangs."""
        at = self.index[name]
        if self._bare is not None:
            self._bare.set_state(name, state)
        self._undo.put(self.states, at, state)
        self._undo.put(self.ready, at, self._takes_gangs(at))
        self._undo.put(self.journal, at, None)

    def bare(self) -> "NodeTable":
        """The same nodes in the same states, with nothing taken, by others either. Made once; not to be changed for
        good."""
        if self._bare is None:
            states = {node.name: state for node, state in zip(self.nodes, self.states, strict=True)}
            self._bare = self.with_rules(self.rules, states)
        return self._bare

    def with_rules(self, rules: Rules, states: Mapping[str, NodeState] = NO_STATES) -> "NodeTable":
        """The same nodes under these rules, with nothing taken, by others either."""
        return NodeTable([node.unused for node in self.listed], states, Undo(), self.listed_levels, rules)

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

    def able(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) nodes that could hold one of the part's nodes if nothing else ran, whatever their state."""
        return ~self.barred & self.large_enough(part)

    def large_enough(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) the same, with those that the gang must not have. Not to be changed."""
        found = self._large_enough.get(part)
        if found is None:
            if len(self._large_enough) >= MOST_COLUMNS:
                self._large_enough.clear()
            found = self._large_enough[part] = self._holding_alone(part)
        return found

    def _holding_alone(self, part: Shape) -> NDArray[np.bool_]:
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

    def fitting(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) nodes that can take one of the part's nodes now."""
        return self.fits(part, EVERY) & ~self.barred

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

    def times(self, part: Shape) -> NDArray[np.int64]:
        """(N,) how many of the part's nodes each can take now: one at most, unless they may share a node. Not to be
        changed."""
        column = self.columns.kept(part)
        times = self.times_at(part, EVERY) if column is None else column.times
        if self.barred.any():
            times = times * ~self.barred
        if self.kept is not None:
            times = times.copy()
            times[self.kept.at] = np.minimum(times[self.kept.at], self._times_beside(part, self.kept))
        return times

    def times_at(self, part: Shape, at: Places) -> NDArray[np.int64]:
        """The same of these nodes. Bars are not looked at."""
        free = (self.free_gpus[at], self.free_cpu_milli[at], self.free_memory_bytes[at])
        times = self._times(part, self._fits(part, at), free)
        return np.minimum(times, self.devices.counts(part, at)) if picks_devices(part) else times

    def capacities(self, part: Shape, among: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(N,) how many of the part's nodes each of those `among` would hold if nothing else ran."""
        times = self._times(part, among, (self.gpus, self.cpu_milli, self.memory_bytes))
        return np.minimum(times, self.devices.most(part)) if picks_devices(part) else times

    def capacity(self, part: Shape, among: NDArray[np.bool_]) -> int:
        """How many of the part's nodes those `among` hold if nothing else ran."""
        return int(self.capacities(part, among).sum())

    def room(self, part: Shape) -> int:
        """How many of the part's nodes there is room for now."""
        if self.barred.any():
            return int(self.times(part).sum())
        column = self.columns.of(part)
        if self.kept is None:
            return column.total
        there = column.times[self.kept.at]
        return column.total - int((there - np.minimum(there, self._times_beside(part, self.kept))).sum())

    def _times_beside(self, part: Shape, kept: Kept) -> NDArray[np.int64]:
        """How many of the part's nodes those take of which something is kept."""
        has: tuple[Ints, ...] = (self.free_gpus, self.free_cpu_milli, self.free_memory_bytes)
        keeps = (kept.gpus, kept.cpu_milli, kept.memory_bytes)
        free = tuple(amount[kept.at] - less for amount, less in zip(has, keeps, strict=True))
        fits = self.fits(part, kept.at) & ~kept.alone
        # A share may stay when the others on its device have left: that one, too, must be there.
        for amount, need in zip(free, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
            fits &= amount >= need
        if part.selector.sharing != SHARED:
            fits &= ~kept.guests
        times = self._times(part, fits, free)
        return np.minimum(times, free[0]) if part.has_share else times

    def _times(
        self, part: Shape, among: NDArray[np.bool_], has: tuple[NDArray[np.integer[Any]], ...]
    ) -> NDArray[np.int64]:
        times = among.astype(np.int64)
        if part.stacked:
            each = (part.gpus, part.cpu_milli, part.memory_bytes)
            most = [amount // need for need, amount in zip(each, has, strict=True) if need]
            times *= np.minimum.reduce(most) if most else UNCOUNTED
        return times

    def choose(self, part: Shape, at: Ints, many: Ints, order: Order | None) -> Iterator[tuple[int, ...]]:
        """`many` times, for each of these nodes, the indices on it of the devices that one of the part's nodes gets:
        the first that are free, or, for a share, the one with the least left that holds it, unless another order is
        said."""
        return (
            self.devices.choose(part, at, many, order) if picks_devices(part) else self._first_free(at, many, part.gpus)
        )

    def _first_free(self, at: Ints, many: Ints, each: int) -> Iterator[tuple[int, ...]]:
        whole, idle = tuple(range(each)), (self.free_gpus[at] == self.gpus[at]).tolist()
        for node, times, is_idle in zip(at.tolist(), many.tolist(), idle, strict=True):
            if is_idle and times == 1:
                yield whole
                continue
            here = self.owner[self.first_device[node] : self.first_device[node + 1]]
            free = np.flatnonzero(here == FREE)[: times * each].tolist()
            for begin in range(0, times * each, each) if each else (0,) * times:
                yield tuple(free[begin : begin + each])

    def take(self, number: int, shape: Shape, shares: Iterable[NodeShare]) -> None:
        """Gang `number` holds its shares. ValueError if a device is not free: nothing is ever given twice."""
        for part, its in _by_part(shape, shares):
            at, devices = self._indices(its)
            if part.has_share:
                self._add_shares(at, devices, part, +1)
                continue
            taken = self.owner[devices] != FREE
            if taken.any() or (part.stacked and np.unique(devices).size < devices.size):
                names = ", ".join(share.node for share in its[:3])
                raise ValueError(f"a device of {names} is not free, and gang {number} wants it")
            self._undo.put(self.owner, devices, number)
            self._add(at, part, -1)

    def release(self, shape: Shape, shares: Iterable[NodeShare]) -> None:
        """The shares are free again."""
        for part, its in _by_part(shape, shares):
            at, devices = self._indices(its)
            if part.has_share:
                self._add_shares(at, devices, part, -1)
                continue
            self._undo.put(self.owner, devices, FREE)
            self._add(at, part, +1)

    def _indices(self, shares: list[NodeShare]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Their nodes, and their devices, by index."""
        at = np.array([self.index[share.node] for share in shares], dtype=np.int64)
        devices = np.array([share.devices for share in shares], dtype=np.int64)
        return at, (self.first_device[at][:, None] + devices).ravel()

    def _add_shares(self, at: NDArray[np.int64], devices: NDArray[np.int64], part: Shape, sign: int) -> None:
        """Shares of these devices more, or less: the first on a device takes it from those that are free."""
        changed = self.devices.take(part, at, devices) if sign > 0 else self.devices.release(part, at, devices)
        for node in np.repeat(at, changed).tolist():
            self._undo.put(self.free_gpus, node, self.free_gpus[node] - sign)
        self._add(at, part, -sign)

    def hold(self, nodes: Iterable[str], *, held: bool) -> None:
        """Whether nodes are kept from gangs that could start on them."""
        for name in nodes:
            self._undo.put(self.held, self.index[name], held)
            self._undo.put(self.journal, self.index[name], None)

    @contextmanager
    def without(self, nodes: Iterable[str]) -> Iterator[None]:
        """Inside it nothing fits on these nodes, as far as they are there. Whatever is put inside is undone."""
        there = [self.index[name] for name in nodes if name in self.index]
        if not there:
            yield
            return
        with self._undo.trial():
            for at in there:
                self._undo.put(self.barred, at, value=True)
            yield

    @contextmanager
    def barring(self, at: Ints) -> Iterator[None]:
        """Inside it nothing fits on these nodes, by index. Whatever is put inside is undone."""
        with self._undo.trial():
            self._undo.put(self.barred, at, value=True)
            yield

    @contextmanager
    def keeping(self, kept: Kept | None) -> Iterator[None]:
        """Inside it nobody is given what is kept."""
        before, self.kept = self.kept, kept
        try:
            yield
        finally:
            self.kept = before

    def trial(self) -> AbstractContextManager[None]:
        """Inside it shares may be taken; all of it is undone at the end."""
        return self._undo.trial()

    def _add(self, at: NDArray[np.int64], part: Shape, sign: int) -> None:
        """One of the part's nodes more, or less, on each of these; a node may be there more than once."""
        where, times = np.unique(at, return_counts=True) if part.stacked else (at, 1)
        more = sign * times
        self._undo.put(self.free_gpus, where, self.free_gpus[where] + more * part.gpus)
        self._undo.put(self.free_cpu_milli, where, self.free_cpu_milli[where] + more * part.cpu_milli)
        self._undo.put(self.free_memory_bytes, where, self.free_memory_bytes[where] + more * part.memory_bytes)
        self._undo.put(self.guests, where, self.guests[where] - more)
        if part.selector.sharing != SHARED:
            self._undo.put(self.alone, where, self.alone[where] - more)
        self._undo.put(self.journal, where, None)


def picks_devices(part: Shape) -> bool:
    """Whether it is not the same to the part which devices of a node it gets."""
    return part.has_share or bool(part.gpus and part.selector.devices)


def _by_part(shape: Shape, shares: Iterable[NodeShare]) -> Iterator[tuple[Shape, list[NodeShare]]]:
    """The parts that have any of the shares, with these."""
    every = list(shares)
    for index, part in enumerate(shape.parts):
        its = [share for share in every if share.part == index] if shape.more else every
        if its:
            yield part, its


def _foreign(nodes: Sequence[Node]) -> NDArray[np.int32] | None:
    counts = np.array([len(node.foreign) for node in nodes], dtype=np.int32)
    return counts if counts.any() else None


def _doubts(nodes: Sequence[Node]) -> NDArray[np.int64]:
    """(N,) more for a node that is under suspicion; of equally suspicious ones more for the slower."""
    suspicion = np.array([node.suspicion for node in nodes], dtype=np.int64)
    performance = np.array([node.performance_milli for node in nodes], dtype=np.int64)
    doubts: NDArray[np.int64] = suspicion * 1_000_000 + (performance.max(initial=0) - performance)
    return doubts
