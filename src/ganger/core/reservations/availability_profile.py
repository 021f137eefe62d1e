"""What every node has free over time, by when those on it end and by what is promised.

Made by `core.reservations.capacity_forecast`. Time is cut into slots at edges. Edges are exact (every end, every
promised start) while slots times nodes are few; else they lie on a grid of 1, 5, 30 minutes, 2 hours and a day,
absolute, each finer one containing the coarser: what was promised on the coarse grid stays an edge of the fine one. A
share of a device that is promised counts as all of it. Ends are rounded up to an edge, so what the profile says is free
is. For each kind of need asked about it keeps until when each node holds it, from every slot on, so that the earliest
start of a gang is a look at rows. Source of the slots: Slurm's backfill (reference: scheduling, section 2); of the
finer ones first: section 5."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import EVERY, Places
from ganger.core.nodes.node_arrays import picks_devices
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, WHOLE
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS

MOST_CELLS: Final = 1 << 18
"""Slots times nodes up to which every edge is exact."""
GRID: Final = (
    (MINUTE_MS, 10 * MINUTE_MS),
    (5 * MINUTE_MS, HOUR_MS),
    (30 * MINUTE_MS, 8 * HOUR_MS),
    (2 * HOUR_MS, 2 * DAY_MS),
    (DAY_MS, 16 * DAY_MS),
)
"""Steps of the grid, and how far from now on each goes."""
_SIZES: Final = (np.int32, np.int64, np.int64, np.int32, np.int32)
"""Of GPUs, CPUs, memory, guests and those alone: what is small is summed in half the time."""
ROWS: Final = 64
"""Slots that are looked at together, of no more nodes than are WIDE."""
WIDE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stay:
    """Nodes of one part of a gang, by index, for a time: one node several times where the part is stacked."""

    part: Shape
    at: Ints
    begin_ms: int
    end_ms: int


class Held(NamedTuple):
    """What is held from now on, a row for each share. at, ends_ms: (P,) the node by index, and when it is left; taken:
    (5, P) of GPUs, CPUs and memory, of guests and of those that are alone."""

    at: Ints
    ends_ms: Ints
    taken: Ints


class Window(NamedTuple):
    """Over some slots, of some nodes: the least that is free of each resource, the most shares, and the most of those
    that share with nobody."""

    gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    guests: Ints
    alone: Ints


@dataclass(slots=True)
class _Holds:
    """Of one need. meant: (N,) nodes that may hold it at some time; until: (S, N) the first slot, from each on, in
    which a node does not hold it; read: how far in the log of changes it has come; cuts: how often the slots had been
    cut by then."""

    meant: NDArray[np.bool_]
    until: NDArray[np.int16] | None = None
    read: int = 0
    cuts: int = 0


class AvailabilityProfile:
    """edges: (S,) int64, when each slot begins, the last one without end; free: of GPUs, CPUs and memory, (S, N) each;
    guests, alone: (S, N) as in `NodeTable`."""

    def __init__(
        self, nodes: NodeTable, edges: Ints, held: Held, stays: Iterable[Stay] = (), among: Ints | None = None
    ) -> None:
        """What those who hold something, and `stays`, leave of the nodes `among`, by rising index, or of all. `edges`
        rise, the first is now. What is about some nodes alone has the edges that it was given, and no more."""
        self.nodes, self.edges, self.among = nodes, edges, among
        self._mine: NDArray[np.bool_] | None = None
        self.at: NDArray[np.intp] = (np.arange(len(nodes.nodes)) if among is None else among).astype(np.intp)
        self.exact = among is None and len(edges) * len(nodes.nodes) <= MOST_CELLS
        self._holds: dict[Shape, _Holds] = {}
        self._of: dict[Shape, _Holds] = {}
        self._log: list[int] = []
        self._cuts = 0
        has: tuple[Ints, ...] = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
        gpus, cpu_milli, memory_bytes, self.guests, self.alone = self._taken(held, list(stays))
        self.free: list[Ints] = [gpus, cpu_milli, memory_bytes]
        for amount, gone in zip(has, self.free, strict=True):
            np.subtract(amount if among is None else amount[among], gone, out=gone)

    def upto(self, ms: int) -> int:
        """The first edge at that moment or later: what ends then has all slots before it."""
        return int(np.searchsorted(self.edges, ms))

    def slot(self, ms: int) -> int:
        """The slot in which a moment is."""
        return max(0, int(np.searchsorted(self.edges, ms, side="right")) - 1)

    def has(self, at: Ints) -> NDArray[np.bool_]:
        """Which of these nodes it is about."""
        if self.among is None:
            return np.ones(len(at), dtype=bool)
        if self._mine is None:
            self._mine = np.zeros(len(self.nodes.nodes), dtype=bool)
            self._mine[self.among] = True
        return self._mine[at]

    def slots(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """The first slot of a time, and the edge up to which it lasts."""
        begin = self.slot(begin_ms)
        return begin, max(begin + 1, self.upto(end_ms))

    def add(self, stay: Stay, sign: int = 1) -> None:
        """One stay more, or less. New edges are cut where it begins and ends, unless that would be too many."""
        self._cut(stay.begin_ms)
        self._cut(stay.end_ms)
        rows = slice(*self.slots(stay.begin_ms, stay.end_ms))
        at, times = self._local(stay.at), np.ones(len(stay.at), dtype=np.int64)
        if len(at) > 1:
            at, times = np.unique(at, return_counts=True)
        part = stay.part
        needs = (part.devices, part.cpu_milli, part.memory_bytes)
        for amount, need in zip(self.free, needs, strict=True):
            if need:
                amount[rows, at] -= sign * need * times
        self.guests[rows, at] += sign * times
        if part.selector.sharing != SHARED:
            self.alone[rows, at] += sign * times
        self._log += at.tolist()

    def is_kept(self) -> bool:
        """Whether nobody has too little at any time, and nobody is beside one that shares with nobody. What is about
        all that is laid down, where `window` is about some."""
        enough = all(int(amount.min()) >= 0 for amount in self.free)
        return enough and not bool(((self.alone > 0) & (self.guests > 1)).any())

    def close(self, at: Ints, begin_ms: int, end_ms: int) -> None:
        """Nodes that are not there in that time. Called before anything is asked; all that has to do with it are edges,
        or more of it is closed."""
        if end_ms <= self.edges[0]:
            return
        rows, at = slice(*self.slots(begin_ms, end_ms)), self._local(at)
        self.alone[rows, at] += 1
        self.guests[rows, at] += 1

    def window(self, at: Ints, begin: int, end: int) -> Window:
        """What is there of these nodes in slots begin : end, at least one."""
        rows, at = slice(begin, max(end, begin + 1)), self._local(at)
        gpus, cpu_milli, memory_bytes = (amount[rows, at].min(axis=0) for amount in self.free)
        guests, alone = (amount[rows, at].max(axis=0) for amount in (self.guests, self.alone))
        return Window(gpus, cpu_milli, memory_bytes, guests, alone)

    def starts(self, part: Shape, wanted: tuple[int, int], usable: NDArray[np.bool_], first: int) -> Iterator[int]:
        """Slots from `first` on in which so many usable nodes hold the part for so long: `wanted` is (nodes, ms)."""
        until, ends = self.until(part), self.ends(wanted[1])
        if len(self.at) > WIDE:
            for slot in range(first, len(self.edges)):
                if np.count_nonzero((until[slot] >= ends[slot]) & usable) >= wanted[0]:
                    yield slot
            return
        for begin in range(first, len(self.edges), ROWS):
            rows = slice(begin, begin + ROWS)
            many = np.count_nonzero((until[rows] >= ends[rows, None]) & usable, axis=1)
            yield from (begin + np.flatnonzero(many >= wanted[0])).tolist()

    def many(self, part: Shape, for_ms: int, usable: NDArray[np.bool_]) -> Ints:
        """(S,) how many usable nodes hold the part, from each slot on, for so long."""
        until, ends = self.until(part), self.ends(for_ms)
        found: Ints = np.count_nonzero((until >= ends[:, None]) & usable[self.at], axis=1)
        return found

    def holding(self, part: Shape, slot: int, for_ms: int) -> NDArray[np.bool_]:
        """(N,) nodes that hold one of the part from the beginning of a slot on for so long."""
        held: NDArray[np.bool_] = self.until(part)[slot] >= self.ends(for_ms)[slot]
        return held

    def ends(self, for_ms: int) -> Ints:
        """(S,) for each slot the edge up to which what begins with it lasts."""
        if for_ms >= NEVER_MS:
            return np.full(len(self.edges), len(self.edges))
        return np.searchsorted(self.edges, self.edges + for_ms)

    def until(self, part: Shape) -> NDArray[np.int16]:
        """(S, N) the first slot, from each on, in which a node does not hold one of the part; S where it always does.
        States of nodes are not looked at."""
        holds = self._of.get(part)
        if holds is None:
            one = part.one
            if one not in self._holds:
                among = meant(self.nodes, part)
                self._holds[one] = _Holds(among if self.among is None else among[self.among])
            holds = self._of[part] = self._holds[one]
        if holds.until is None or holds.cuts != self._cuts:
            holds.until, holds.read, holds.cuts = self._until(part, holds.meant, EVERY), len(self._log), self._cuts
        elif holds.read < len(self._log):
            changed = np.unique(np.array(self._log[holds.read :], dtype=np.intp))
            holds.until[:, changed] = self._until(part, holds.meant, changed)
            holds.read = len(self._log)
        return holds.until

    def _until(self, part: Shape, among: NDArray[np.bool_], at: Places) -> NDArray[np.int16]:
        sharing = part.selector.sharing
        ok = among[at] & (self.alone[:, at] == 0)
        for amount, need in zip(self.free, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
            ok &= amount[:, at] >= need
        if sharing != SHARED:
            ok &= self.guests[:, at] == 0
        many = len(self.edges)
        found: NDArray[np.int16] = np.where(ok, np.int16(many), np.arange(many, dtype=np.int16)[:, None])
        if found.shape[1] < WIDE:
            np.minimum.accumulate(found[::-1], axis=0, out=found[::-1])
            return found
        for slot in range(many - 2, -1, -1):
            # Row by row: of long rows numpy's own takes many times as long.
            np.minimum(found[slot], found[slot + 1], out=found[slot])
        return found

    def _local(self, at: Ints) -> Ints:
        """Columns of nodes."""
        return at if self.among is None else np.searchsorted(self.among, at)

    def _cut(self, ms: int) -> None:
        """An edge at that moment, unless that would be one too many."""
        at = self.upto(ms)
        there = at < len(self.edges) and self.edges[at] == ms
        if ms >= NEVER_MS or there or at == 0 or not self.exact or len(self.edges) * len(self.nodes.nodes) > MOST_CELLS:
            return
        self.edges = np.insert(self.edges, at, ms)
        self.free = [np.insert(amount, at, amount[at - 1], axis=0) for amount in self.free]
        self.guests = np.insert(self.guests, at, self.guests[at - 1], axis=0)
        self.alone = np.insert(self.alone, at, self.alone[at - 1], axis=0)
        self._cuts += 1

    def _taken(self, held: Held, stays: list[Stay]) -> list[Ints]:
        """GPUs, CPUs, memory, guests and those alone: (S, N) each."""
        slots, width = len(self.edges), len(self.at)
        ends = np.maximum(1, np.searchsorted(self.edges, held.ends_ms))
        at = self._local(held.at)
        found: list[Ints] = []
        for rows, kind in zip(held.taken, _SIZES, strict=True):
            taken, change = rows.astype(kind, copy=False), np.zeros((slots + 1, width), dtype=kind)
            np.add.at(change[0], at, taken)
            np.subtract.at(change.reshape(-1), ends * width + at, taken)
            found.append(change)
        if stays:
            begin, end, many, needs = self._columns(stays)
            local = self._local(np.concatenate([stay.at for stay in stays]))
            begin, end = (np.repeat(slot, many) * width + local for slot in (begin, end))
            for change, need in zip(found, needs, strict=True):
                taken = np.repeat(need.astype(change.dtype), many)
                np.add.at(change.reshape(-1), begin, taken)
                np.subtract.at(change.reshape(-1), end, taken)
        for change in found:
            if width < WIDE:
                np.cumsum(change, axis=0, out=change)
                continue
            for slot in range(1, slots):
                # Row by row: of long rows numpy's own takes three times as long.
                np.add(change[slot], change[slot - 1], out=change[slot])
        return [change[:-1] for change in found]

    def _columns(self, stays: list[Stay]) -> tuple[Ints, Ints, list[int], Ints]:
        """Of each stay its first slot, the edge up to which it lasts, and how many nodes it has; and (5, stays) what it
        takes of each."""
        times_ms = np.array([(stay.begin_ms, stay.end_ms) for stay in stays], dtype=np.int64)
        begin = np.maximum(0, np.searchsorted(self.edges, times_ms[:, 0], side="right") - 1)
        end = np.maximum(begin + 1, np.searchsorted(self.edges, times_ms[:, 1]))
        needs = np.array([taken_by(stay.part) for stay in stays], dtype=np.int64).T
        return begin, end, [len(stay.at) for stay in stays], needs


def meant(nodes: NodeTable, part: Shape) -> NDArray[np.bool_]:
    """(N,) nodes that may hold one of a part at some time, by what they are."""
    found = nodes.of_type(part.gpu_type) & nodes.meant(part.selector)
    if part.selector.sharing != SHARED and nodes.foreign is not None:
        found = found & (nodes.foreign == 0)
    if part.selector.sharing == WHOLE:
        found = found & (nodes.gpus == part.devices)
    return found & (nodes.devices.most(part) > 0) if picks_devices(part) else found


def cut_to(stay: Stay, mine: NDArray[np.bool_]) -> Stay:
    """The part of it that is on some nodes: (N,) whether each is one of them."""
    return Stay(stay.part, stay.at[mine[stay.at]], stay.begin_ms, stay.end_ms)


def taken_by(part: Shape) -> tuple[int, int, int, int, int]:
    """What a node of it takes: GPUs, CPUs, memory, one guest, and whether that is alone."""
    return part.devices, part.cpu_milli, part.memory_bytes, 1, int(part.selector.sharing != SHARED)


def edges(now_ms: int, moments: Ints, nodes: int) -> Ints:
    """Where slots begin: at each of the moments, or on the grid where these are too many for so many nodes."""
    later = moments[(moments > now_ms) & (moments < NEVER_MS)]
    exact = np.unique(np.append(later, now_ms))
    return exact if 2 * len(exact) * nodes <= MOST_CELLS else grid(now_ms)


def grid(now_ms: int) -> Ints:
    """Edges from the minute that has begun on, finer first."""
    found = [now_ms - now_ms % MINUTE_MS]
    for at, (step_ms, reach_ms) in enumerate(GRID):
        next_ms = GRID[at + 1][0] if at + 1 < len(GRID) else step_ms
        while found[-1] < now_ms + reach_ms or found[-1] % next_ms:
            found.append(found[-1] + step_ms)
    return np.array(found, dtype=np.int64)
