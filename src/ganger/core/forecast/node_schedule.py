"""Free capacity of the nodes in a simulated queue: gangs start and end on it, and reservations are kept.

Everything is counted by node, so that a gang on whole nodes waits for whole nodes. Topology, networks and the numbers
of devices are left out: they seldom decide when a gang starts, and the learned range covers what they cost. What that
leaves out makes a forecast too early, never too late: a real start needs all that is asked for here, and more.

The simulated time moves from one release to the next (`next_ms`, `advance`). Invariant: `_can[kind, node]` says whether
the node satisfies the kind of demand at `now_ms`, and `counts` are its sums; whatever changes `_free` of nodes or
whether they are open calls `_recount` for them. So the question of whether a gang may start at all costs one comparison
for each part, and only one that may is placed.

Gangs have numbers: those that are simulated from 0 on, in the order in which they are tried; running ones downwards
from FIRST_ROW, by their row of the allocation table; NONE for what no gang releases. They say who released a node, and
so after whom a gang starts.
"""

from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import extended_needs
from ganger.core.nodes.topology import Ints
from ganger.core.reservations.availability_profile import suitable_nodes
from ganger.core.reservations.capacity_forecast import CapacityForecast
from ganger.core.state.gang import STRIDE, Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model.shape import Shape
from ganger.model.terms import SHARED

GPUS, CPU, MEMORY, GUESTS = range(4)
"""Rows of an amount; those of extended resources follow.

A node has room for EXCLUSIVE guests, and a gang that has it exclusively counts as so many."""
HELD_EXTENDED: Final = 5
"""The first row of extended resources in what gangs hold."""
EXCLUSIVE: Final = 1 << 20
"""More guests than any node has, so that one exclusive guest and any other never fit together."""
NONE: Final = -1
"""No gang."""
FIRST_ROW: Final = -2
"""Running gangs are numbered downwards from here, by their rows in the allocation table."""
GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""Its multiples, modulo 1, are spread evenly, and those of neighbours lie far apart: draws without randomness.

Jobs that were submitted together draw run times from all of a user's history, and the same job always draws the same.
"""
Bools = NDArray[np.bool_]


class PartNeed(NamedTuple):
    """The need of one part of a gang: a number of nodes, and one kind of demand on each."""

    kind: int
    nodes: int


class End(NamedTuple):
    """The end of a part of a simulated gang."""

    at_ms: int
    gang: int
    kind: int
    nodes: Ints


class RunningEnds(NamedTuple):
    """The releases of running gangs, in order of time.

    at_ms, node, gang: (releases,)
    amounts: (rows, releases)
    is_predicted: (releases,) True where the time is that of a predicted run time.
    """

    at_ms: Ints
    node: Ints
    gang: Ints
    amounts: Ints
    is_predicted: Bools


class NodeReservations(NamedTuple):
    """The reservations of nodes, at most one each.

    from_ms, by: (N,) when it begins, NEVER_MS for none, and of which gang.
    spare: (rows, N) free capacity beside it when it begins.
    """

    from_ms: Ints
    by: Ints
    spare: Ints


def drawn_run_ms(state: State, gang: Gang, ran_ms: int) -> int:
    """Return for how much longer a gang without a limit runs, as one of its user's jobs did."""
    fraction = (gang.submitted_seq + gang.number % STRIDE) * GOLDEN_RATIO % 1
    drawn_ms = state.history.draw_ms(gang.job, gang.shape, ran_ms, fraction)
    return NEVER_MS if drawn_ms is None else drawn_ms - ran_ms


class NodeSchedule:
    """The nodes at `now_ms`, which only moves forward.

    Attributes:
        now_ms: The simulated time.
        counts: (kinds,) The number of nodes that satisfy each kind of demand now.
        released_ms, released_by: (N,) When something was last released on a node, and by which gang.
        is_predicted: (N,) True where what is free depends on a predicted run time.
    """

    def __init__(self, state: State, now_ms: int) -> None:
        """Begin with what running gangs hold."""
        nodes = state.nodes
        self._state, self.now_ms = state, now_ms
        size = len(nodes.nodes)
        guests = EXCLUSIVE - nodes.occupancy.guests.astype(np.int64) - (EXCLUSIVE - 1) * nodes.occupancy.alone
        free = (*nodes.free, guests, *nodes.extended.free.values())
        self._free: Ints = np.stack(free).astype(np.int64)
        self._kinds: dict[tuple[Shape, tuple[str, ...]], int] = {}
        self._stacked: list[int] = []
        self._needs: Ints = np.zeros((0, len(free)), dtype=np.int64)
        self._suitable: Bools = np.zeros((0, size), dtype=bool)
        self._can: Bools = np.zeros((0, size), dtype=bool)
        self.counts: Ints = np.zeros(0, dtype=np.int64)
        self._ends: list[End] = []
        self._position = 0
        self._running = self._running_ends(CapacityForecast(state, now_ms, {}))
        self._reserved = NodeReservations(
            np.full(size, NEVER_MS, dtype=np.int64),
            np.full(size, NONE, dtype=np.int64),
            np.zeros((len(free), size), dtype=np.int64),
        )
        self.released_ms: Ints = np.zeros(size, dtype=np.int64)
        self.released_by: Ints = np.full(size, NONE, dtype=np.int64)
        self.is_predicted: Bools = np.zeros(size, dtype=bool)
        windows = state.maintenance
        self._windows = [
            (window.from_ms, window.until_ms, windows.nodes_of(nodes, window)) for window in windows.values()
        ]
        self._set_open()

    def _running_ends(self, forecast: CapacityForecast) -> RunningEnds:
        held = forecast.held_capacity()
        predicted = self._predict_ends(held.ends_ms)
        devices = list(forecast.shared_devices(self._state.allocations.sharers))
        guests = held.taken[3] + (EXCLUSIVE - 1) * held.taken[4]
        known = np.flatnonzero((held.ends_ms < NEVER_MS) & (held.ends_ms > 0))
        ends_ms = [held.ends_ms[known], *(np.full(len(stay.indices), stay.end_ms) for stay in devices)]
        nodes = [held.indices[known], *(stay.indices for stay in devices)]
        amounts = [np.stack((*held.taken[:3, known], guests[known], *held.taken[HELD_EXTENDED:, known]))]
        device = np.eye(len(self._free), 1, dtype=np.int64)
        amounts += [np.repeat(device, len(stay.indices), axis=1) for stay in devices]
        gangs = [FIRST_ROW - known, *(np.full(len(stay.indices), NONE) for stay in devices)]
        order = np.argsort(np.concatenate(ends_ms), kind="stable")
        gang = np.concatenate(gangs)[order]
        rows = FIRST_ROW - gang
        return RunningEnds(
            np.concatenate(ends_ms)[order],
            np.concatenate(nodes)[order],
            gang,
            np.concatenate(amounts, axis=1)[:, order],
            (rows >= 0) & predicted[np.maximum(0, rows)],
        )

    def _predict_ends(self, ends_ms: Ints) -> Bools:
        """Draw the ends of gangs without a limit, in place; return (rows,) True for their rows."""
        state, table = self._state, self._state.allocations.table
        is_predicted = np.zeros(len(ends_ms), dtype=bool)
        for name in state.allocations:
            gang = state.gangs[name]
            if gang.is_predicted:
                rows = table.row_indices((name,))
                is_predicted[rows] = True
                ran_ms = gang.ran_ms + self.now_ms - gang.attempt.began_ms
                ends_ms[rows] = self.now_ms + drawn_run_ms(state, gang, ran_ms)
        return is_predicted

    # -- demands -------------------------------------------------------------------------------------------------------

    def need_of(self, part: Shape, avoids: tuple[str, ...]) -> PartNeed:
        """Return what a part needs; shares that may be on one node are taken as filling nodes one after the other."""
        key = part if part.stacked else part.one, avoids
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._add_kind(part, avoids)
            self._kinds[key] = kind
        return PartNeed(kind, -(-part.nodes // self._stacked[kind]))

    def _add_kind(self, part: Shape, avoids: tuple[str, ...]) -> int:
        """Add the demand of a part on each of its nodes, and return its number."""
        nodes = self._state.nodes
        suitable: Bools = np.logical_or.reduce([suitable_nodes(nodes, choice) for choice in part.choices])
        suitable &= nodes.ready
        suitable[[nodes.index[name] for name in avoids if name in nodes.index]] = False
        guests = 1 if part.selector.sharing == SHARED else EXCLUSIVE
        extended = extended_needs(part, nodes.extended.names)
        one = np.array([part.devices, part.cpu_milli, part.memory_bytes, guests, *extended], dtype=np.int64)
        self._stacked.append(self._max_stacked(part, one, suitable) if part.stacked else 1)
        need = one * self._stacked[-1]
        self._needs, self._suitable = np.vstack((self._needs, need)), np.vstack((self._suitable, suitable))
        can = suitable & self._is_open & (self._free >= need[:, None]).all(axis=0)
        self._can, self.counts = np.vstack((self._can, can)), np.append(self.counts, np.count_nonzero(can))
        return len(self._needs) - 1

    def _max_stacked(self, part: Shape, one: Ints, suitable: Bools) -> int:
        """Return how many shares of a part the largest suitable node holds when idle."""
        nodes = self._state.nodes
        totals = np.stack((*nodes.total, *nodes.extended.total.values())).astype(np.int64)
        one = np.delete(one, GUESTS)
        used = np.flatnonzero(one)
        counts = (totals[used] // one[used, None]).min(axis=0, initial=part.nodes)
        return max(1, int(counts[suitable].max(initial=1)))

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_ms(self) -> int:
        """Return when something is released or maintenance begins or ends next; NEVER_MS for never."""
        times_ms = [int(ms) for ms in self._running.at_ms[self._position : self._position + 1]]
        times_ms += [self._ends[0].at_ms] if self._ends else []
        times_ms += [ms for window in self._windows for ms in window[:2] if ms > self.now_ms]
        return min(times_ms, default=NEVER_MS)

    def advance(self, to_ms: int) -> None:
        """Release what ends until then."""
        self.now_ms = to_ms
        end = int(np.searchsorted(self._running.at_ms, to_ms, side="right"))
        if end > self._position:
            rows, self._position = slice(self._position, end), end
            nodes = self._running.node[rows]
            for free, amounts in zip(self._free, self._running.amounts[:, rows], strict=True):
                np.add.at(free, nodes, amounts)
            self.released_ms[nodes], self.released_by[nodes] = to_ms, self._running.gang[rows]
            self.is_predicted[nodes] |= self._running.is_predicted[rows]
            self._recount(np.unique(nodes))
        while self._ends and self._ends[0].at_ms <= to_ms:
            ended = heappop(self._ends)
            self._free[:, ended.nodes] += self._needs[ended.kind][:, None]
            self.released_ms[ended.nodes], self.released_by[ended.nodes] = to_ms, ended.gang
            self._recount(ended.nodes)
        if any(to_ms in window[:2] for window in self._windows):
            self._set_open()
            self._recount(np.arange(len(self._state.nodes.nodes)))

    def _set_open(self) -> None:
        """Find which nodes are outside of maintenance, and until when."""
        self._is_open: Bools = np.ones(len(self._state.nodes.nodes), dtype=bool)
        self._open_until_ms: Ints = np.full(len(self._state.nodes.nodes), NEVER_MS, dtype=np.int64)
        for from_ms, until_ms, nodes in self._windows:
            if from_ms > self.now_ms:
                self._open_until_ms[nodes] = np.minimum(self._open_until_ms[nodes], from_ms)
            elif until_ms > self.now_ms:
                self._is_open[nodes] = False

    def _recount(self, nodes: Ints) -> None:
        """Find again which kinds of demand these nodes satisfy."""
        before = self._can[:, nodes]
        after = self._suitable[:, nodes] & self._is_open[nodes]
        after &= (self._free[None, :, nodes] >= self._needs[:, :, None]).all(axis=1)
        self._can[:, nodes] = after
        self.counts += np.count_nonzero(after, axis=1) - np.count_nonzero(before, axis=1)

    # -- starts --------------------------------------------------------------------------------------------------------

    def find_nodes(self, gang: int, need: PartNeed, end_ms: int, allowed_until_ms: int) -> Ints | None:
        """Return nodes for a part of a gang that ends at a time and delays no reservation of another, or None.

        allowed_until_ms: until when it may stay. It is placed on no node that goes into maintenance before, since the
        scheduler lets maintenance wait for time limits and not for predictions.
        """
        found = np.flatnonzero(self._can[need.kind])
        if self._windows:
            found = found[self._open_until_ms[found] >= allowed_until_ms]
        kept = (self._reserved.from_ms[found] < end_ms) & (self._reserved.by[found] != gang)
        if kept.any():
            spare = (self._reserved.spare[:, found] >= self._needs[need.kind][:, None]).all(axis=0)
            found = found[~kept | spare]
        if len(found) < need.nodes:
            return None
        if len(found) > need.nodes:
            # The fullest nodes first, as the scheduler packs.
            found = found[np.argsort(self._free[GPUS, found], kind="stable")[: need.nodes]]
        return found

    def start(self, gang: int, need: PartNeed, nodes: Ints, end_ms: int) -> None:
        """Let a part of a gang hold nodes until a time."""
        amounts = self._needs[need.kind][:, None]
        self._free[:, nodes] -= amounts
        kept = nodes[(self._reserved.from_ms[nodes] < end_ms) & (self._reserved.by[nodes] != gang)]
        self._reserved.spare[:, kept] -= amounts
        if end_ms < NEVER_MS:
            heappush(self._ends, End(end_ms, gang, need.kind, nodes))
        self._recount(nodes)

    def running_name(self, code: int) -> str | None:
        """Return the id of the running gang with this number of `released_by`."""
        return self._state.allocations.table.name_of(FIRST_ROW - code)

    def mark_predicted(self, nodes: Ints) -> None:
        """Note that what is free on these nodes depends on a predicted run time from now on."""
        self.is_predicted[nodes] = True

    # -- reservations --------------------------------------------------------------------------------------------------

    def reserve(self, gang: int, need: PartNeed, stays_ms: int) -> bool:
        """Reserve the nodes on which a part of a gang can start first; return whether it ever can.

        stays_ms: for how long it may stay at most, as in `find_nodes`.
        """
        first_ms = self._first_fit_ms(need)
        is_over = (self._open_until_ms < NEVER_MS) & (first_ms > self._open_until_ms - stays_ms)
        first_ms[(self._reserved.by != NONE) | is_over] = NEVER_MS
        start_ms = int(np.sort(first_ms)[need.nodes - 1]) if need.nodes <= len(first_ms) else NEVER_MS
        if start_ms >= NEVER_MS:
            return False
        # In the order of the nodes, as the scheduler takes them.
        self.keep(gang, need, np.flatnonzero(first_ms <= start_ms)[: need.nodes], start_ms)
        return True

    def keep(self, gang: int, need: PartNeed, nodes: Ints, start_ms: int) -> None:
        """Keep nodes for a part of a gang from a time on."""
        self._reserved.from_ms[nodes], self._reserved.by[nodes] = start_ms, gang
        column = np.full(len(self._state.nodes.nodes), NONE)
        column[nodes] = np.arange(len(nodes))
        ms, node, amounts = self._future_releases()
        rows = np.flatnonzero((ms <= start_ms) & (column[node] != NONE))
        free = self._free[:, nodes] - self._needs[need.kind][:, None]
        for amount, released in zip(free, amounts[:, rows], strict=True):
            np.add.at(amount, column[node[rows]], released)
        self._reserved.spare[:, nodes] = free

    def forget(self, gang: int) -> None:
        """Forget the reservation of a gang."""
        nodes = np.flatnonzero(self._reserved.by == gang)
        self._reserved.from_ms[nodes], self._reserved.by[nodes] = NEVER_MS, NONE

    def _future_releases(self) -> tuple[Ints, Ints, Ints]:
        """Return (releases,) times and nodes, and (rows, releases) amounts, of all that is going to be released."""
        rest, ends = slice(self._position, None), self._ends
        ms, node, amounts = self._running.at_ms[rest], self._running.node[rest], self._running.amounts[:, rest]
        if not ends:
            return ms, node, amounts
        lengths = [len(end.nodes) for end in ends]
        ends_ms = np.repeat(np.array([end.at_ms for end in ends], dtype=np.int64), lengths)
        kinds = np.repeat(np.array([end.kind for end in ends]), lengths)
        nodes = np.concatenate([end.nodes for end in ends])
        all_amounts = np.concatenate((amounts, self._needs[kinds].T), axis=1)
        return np.append(ms, ends_ms), np.append(node, nodes), all_amounts

    def _first_fit_ms(self, need: PartNeed) -> Ints:
        """Return (N,) when each node satisfies a demand if nothing else starts on it."""
        amounts_needed = self._needs[need.kind][:, None]
        first_ms: Ints = np.where(self._can[need.kind], self.now_ms, NEVER_MS)
        ms, node, amounts = self._future_releases()
        useful = np.flatnonzero(self._suitable[need.kind, node] & ~self._can[need.kind, node])
        useful = useful[np.lexsort((ms[useful], node[useful]))]
        ms, node, amounts = ms[useful], node[useful], amounts[:, useful]
        if not len(node):
            return first_ms
        # The running sum over a node's releases is that over all releases, less what came before its first one.
        begins = np.append(True, node[1:] != node[:-1])
        sums = np.cumsum(amounts, axis=1)
        before = (sums - amounts)[:, begins][:, np.cumsum(begins) - 1]
        fits = (self._free[:, node] + sums - before >= amounts_needed).all(axis=0)
        np.minimum.at(first_ms, node[fits], ms[fits])
        return first_ms
