"""The nodes of the cluster: their arrays, shares that are taken and released, and the caches that are kept beside them.

Owned by `core.state.state`; read by `core.placement.place`, `core.reservations.earliest_start` and
`core.explain.explain`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.capacity_index import MOST_COLUMNS, CapacityIndex
from ganger.core.nodes.devices import EVERY, FREE, Order
from ganger.core.nodes.node_arrays import NO_RULES, NO_STATES, NodeArrays, picks_devices
from ganger.core.nodes.score_cache import ScoreCache
from ganger.core.nodes.topology import Ints
from ganger.core.undo import Undo
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.decision import NodeShare
from ganger.model.policy import RESERVED, Rules
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

JOURNAL: Final = 4
"""Entries a node that the journal may have before it is let go."""


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


class NodeTable(NodeArrays):
    """The arrays, with what a round keeps from a gang, and the caches that follow the journal of changed nodes.

    barred: (N,) bool, nodes that the gang in question must not have (never outside `without`); kept: what is free and
    not to be taken by it (never outside `keeping`); columns: what of each need nodes hold; scores: what is said of each
    node for a need by the score of the policy.
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
        super().__init__(nodes, states, undo, levels, rules)
        self._undo = undo
        self.barred = np.zeros(len(self.nodes), dtype=bool)
        self.kept: Kept | None = None
        self._large_enough: dict[Shape, NDArray[np.bool_]] = {}
        self._bare: NodeTable | None = None
        self.columns = CapacityIndex(self)
        self.scores = ScoreCache(self, self.columns)

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

    def able(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) nodes that could hold one of the part's nodes if nothing else ran, whatever their state."""
        return ~self.barred & self.large_enough(part)

    def large_enough(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) the same, with those that the gang must not have. Not to be changed."""
        found = self._large_enough.get(part)
        if found is None:
            if len(self._large_enough) >= MOST_COLUMNS:
                self._large_enough.clear()
            found = self._large_enough[part] = self.holding_alone(part)
        return found

    def fitting(self, part: Shape) -> NDArray[np.bool_]:
        """(N,) nodes that can take one of the part's nodes now."""
        return self.fits(part, EVERY) & ~self.barred

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
        times = self.times_among(part, fits, free)
        return np.minimum(times, free[0]) if part.has_share else times

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

    def give_back(self, most: int) -> tuple[str, ...]:
        """Return up to `most` nodes on which nothing is, to be given back: those of the last pool first, of one pool
        the last in topology order.

        Reserved nodes are paid for anyway, and those in no pool are not the policy's to give back.
        """
        pools = [*(pool.kind != RESERVED for pool in self.pools.pools), False]
        idle = np.flatnonzero(self.empty() & np.array(pools)[self.pools.of])
        order = idle[np.lexsort((-idle, -self.pools.of[idle]))]
        return tuple(self.names[at] for at in order[:most].tolist())

    def trim(self) -> None:
        """Let go of a journal that has become longer than reading all nodes anew would be."""
        if len(self.journal.entries) > JOURNAL * max(1, len(self.nodes)):
            self.scores.rewind()
            self.columns.rewind()
            del self.journal.entries[:]

    def validate(self) -> None:
        """Count and score everything anew and compare. AssertionError names what differs."""
        self.columns.validate()
        self.scores.validate()

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


def _by_part(shape: Shape, shares: Iterable[NodeShare]) -> Iterator[tuple[Shape, list[NodeShare]]]:
    """The parts that have any of the shares, with these."""
    every = list(shares)
    for index, part in enumerate(shape.parts):
        its = [share for share in every if share.part == index] if shape.more else every
        if its:
            yield part, its
