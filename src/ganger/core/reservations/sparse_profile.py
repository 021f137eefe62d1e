"""The profile of a large cluster on most nodes of which nothing is promised: there what is free only grows.

Made by `core.reservations.capacity_forecast` where slots times nodes are many. Of a node on which nothing begins later
than now it is enough to know from which slot on it holds a need: that follows from those who hold something of it, in
the order in which they leave. The others, mostly few, have a profile of their own. It answers what
`core.reservations.availability_profile` would, and all of it when something was promised on most nodes."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.reservations.availability_profile import (
    AvailabilityProfile,
    Held,
    Stay,
    Window,
    cut_to,
    meant,
    taken_by,
)
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

GPUS, CPU_MILLI, MEMORY_BYTES, GUESTS, ALONE = range(5)
"""Rows of what is taken."""
MOST_WIDENED: Final = 8
"""How often the profile of its own is made for more nodes, before it is made of all."""


class RisingNode:
    """Of every node what is free from now on, as those leave who are there now."""

    def __init__(self, nodes: NodeTable, edges: Ints, held: Held, stays: list[Stay]) -> None:
        """`stays`: such as have begun. What they do not leave free is not."""
        self._nodes, self._slots = nodes, len(edges)
        there = np.flatnonzero(_is_held(held))
        at = np.concatenate([held.at[there], *(stay.at for stay in stays)])
        ends_ms = np.concatenate([held.ends_ms[there], *(np.full(len(stay.at), stay.end_ms) for stay in stays)])
        by_stay = [np.repeat(np.array(taken_by(stay.part))[:, None], len(stay.at), axis=1) for stay in stays]
        taken = np.concatenate([held.taken[:, there], *by_stay], axis=1)
        ends = np.maximum(1, np.searchsorted(edges, ends_ms))
        order = np.argsort(at * (self._slots + 1) + ends, kind="stable")
        self._at, self._ends, self._taken = at[order], ends[order], taken[:, order]
        has: tuple[Ints, ...] = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
        gone = self._gone(0)
        self._now = [*(amount - less for amount, less in zip(has, gone[:GUESTS], strict=True)), *-gone[GUESTS:]]
        """Of each node: what is free now, and the guests and those alone, less than nothing."""
        self._begins = np.flatnonzero(np.diff(self._at, prepend=-1))
        """Where the rows of each node begin that has any."""
        left = np.cumsum(self._taken, axis=1)
        before = left[:, self._begins] - self._taken[:, self._begins]
        many = np.diff(self._begins, append=len(self._at))
        self._then = [
            now[self._at] + own for now, own in zip(self._now, left - before.repeat(many, axis=1), strict=True)
        ]
        """The same of the node of each row, when that has left."""
        self._from: dict[Shape, Ints] = {}

    def since(self, part: Shape) -> Ints:
        """(N,) the first slot from which on a node holds one of the part; as many as there are where it never does."""
        one = part.one
        if one not in self._from:
            self._from[one] = self._since(one)
        return self._from[one]

    def at(self, slot: int) -> Ints:
        """(5, N) what is taken in a slot."""
        return self._gone(slot)

    def _gone(self, slot: int) -> Ints:
        found = np.zeros((5, len(self._nodes.nodes)), dtype=np.int64)
        stays = self._ends > slot
        for row, taken in zip(found, self._taken, strict=True):
            np.add.at(row, self._at[stays], taken[stays])
        return found

    def _since(self, part: Shape) -> Ints:
        never = np.int64(self._slots)
        found: Ints = np.where(_holds(part, self._now), 0, never)
        if self._begins.size:
            then = np.minimum.reduceat(np.where(_holds(part, self._then), self._ends, never), self._begins)
            where = self._at[self._begins]
            found[where] = np.minimum(found[where], then)
        found[~meant(self._nodes, part)] = never
        return found


def _holds(part: Shape, free: list[Ints]) -> NDArray[np.bool_]:
    """Whether a node with so much left, and minus so many guests and of those alone, holds one of a part."""
    ok: NDArray[np.bool_] = free[ALONE] == 0
    for amount, need in zip(free, (part.devices, part.cpu_milli, part.memory_bytes), strict=False):
        ok &= amount >= need
    if part.selector.sharing != SHARED:
        ok &= free[GUESTS] == 0
    return ok


def _is_held(held: Held) -> NDArray[np.bool_]:
    """Which rows say that something is held: by a guest, or by others, who are none."""
    found: NDArray[np.bool_] = (held.taken[GUESTS] | held.taken[GPUS]) > 0
    return found


class SparseProfile(AvailabilityProfile):
    """The same as a `AvailabilityProfile` of all nodes, in less time where little is promised."""

    def __init__(self, nodes: NodeTable, edges: Ints, held: Held, stays: list[Stay], closed: list[Ints]) -> None:
        """`closed`: nodes that are to be closed. Edges are not cut."""
        self.nodes, self.edges, self.among, self.exact = nodes, edges, None, False
        self.at = np.arange(len(nodes.nodes))
        begun = [stay for stay in stays if self.slot(stay.begin_ms) == 0]
        later = [stay.at for stay in stays if self.slot(stay.begin_ms) > 0]
        self._rising = RisingNode(nodes, edges, held, begun)
        self._held, self._stays = held, stays
        self._closed: list[tuple[Ints, int, int]] = []
        self._changes: list[tuple[Stay, int]] = []
        self._beyond: list[Ints] = []
        """Nodes on which something was changed since they were set apart last."""
        self._widened = 0
        self._apart = self._made([*later, *closed, np.zeros(0, dtype=np.int64)])
        """Of nodes on which something begins later."""

    def add(self, stay: Stay, sign: int = 1) -> None:
        """One stay more, or less."""
        self._changes.append((stay, sign))
        if self._beyond or not self._apart.has(stay.at).all():
            self._beyond.append(stay.at)
        else:
            self._apart.add(stay, sign)

    def close(self, at: Ints, begin_ms: int, end_ms: int) -> None:
        """Nodes that are not there in that time: such as were said to be closed."""
        self._closed.append((at, begin_ms, end_ms))
        self._apart.close(at, begin_ms, end_ms)

    def window(self, at: Ints, begin: int, end: int) -> Window:
        """What is there of these nodes in slots begin : end, at least one."""
        self._widen()
        if self._apart.among is None:
            return self._apart.window(at, begin, end)
        taken, nodes = self._rising.at(begin), self.nodes
        has: tuple[Ints, ...] = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
        found = [*(amount - less for amount, less in zip(has, taken, strict=False)), *taken[GUESTS:]]
        for amount, apart in zip(found, self._apart.window(self._apart.at, begin, end), strict=True):
            amount[self._apart.at] = apart
        return Window(*(amount[at] for amount in found))

    def starts(self, part: Shape, wanted: tuple[int, int], usable: NDArray[np.bool_], first: int) -> Iterator[int]:
        """Slots from `first` on in which so many usable nodes hold the part for so long: `wanted` is (nodes, ms)."""
        self._widen()
        if self._apart.among is None:
            yield from self._apart.starts(part, wanted, usable, first)
            return
        rising = usable.copy()
        rising[self._apart.at] = False
        since = np.bincount(self._rising.since(part)[rising], minlength=len(self.edges))[: len(self.edges)]
        many = np.cumsum(since) + self._apart.many(part, wanted[1], usable)
        yield from (first + np.flatnonzero(many[first:] >= wanted[0])).tolist()

    def holding(self, part: Shape, slot: int, for_ms: int) -> NDArray[np.bool_]:
        """(N,) nodes that hold one of the part from the beginning of a slot on for so long."""
        self._widen()
        if self._apart.among is None:
            return self._apart.holding(part, slot, for_ms)
        found: NDArray[np.bool_] = self._rising.since(part) <= slot
        found[self._apart.at] = self._apart.holding(part, slot, for_ms)
        return found

    def _widen(self) -> None:
        """Before anything is asked: what has a profile of its own is all that was changed."""
        if not self._beyond:
            return
        self._widened += 1
        self._apart = self._made([self._apart.at, *self._beyond])
        self._beyond.clear()

    def _made(self, nodes: list[Ints]) -> AvailabilityProfile:
        """A profile of these nodes; of all where they are most, or became more too often."""
        held, stays, among = self._held, self._stays, np.unique(np.concatenate(nodes))
        is_most = self._widened > MOST_WIDENED or 2 * len(among) > len(self.nodes.nodes)
        if not is_most:
            there = np.zeros(len(self.nodes.nodes), dtype=bool)
            there[among] = True
            here = np.flatnonzero(there[held.at] & _is_held(held))
            held = Held(held.at[here], held.ends_ms[here], held.taken[:, here])
            stays = [cut_to(stay, there) for stay in stays]
        found = AvailabilityProfile(self.nodes, self.edges, held, stays, None if is_most else among)
        found.exact = False  # its edges are those of all
        for closed in self._closed:
            found.close(*closed)
        for stay, sign in self._changes:
            found.add(stay, sign)
        return found
