"""What a round knows of the time after it: who holds what until when, on nodes and in queues.

Used by `core.reservations.reservations`. Two profiles of the same: of all nodes, to find a moment and a place, made
only when somebody asks for one; and of the nodes that are promised to somebody, at the moments of the promises alone:
all that a start has to be held against. Between these what is free only grows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.reservations import availability_profile
from ganger.core.reservations.availability_profile import AvailabilityProfile, Held, Stay, cut_to, edges
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.quota_forecast import Charge, QuotaForecast
from ganger.core.reservations.sparse_profile import SparseProfile
from ganger.core.state.allocations import AT, TAKEN, rows
from ganger.core.state.column_table import END, Ledger
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.decision import Moved, ReservedStart
from ganger.model.shape import Shape
from ganger.model.units import MINUTE_MS

Device = tuple[str, int]
_DEVICE: Final = Shape(nodes=1, gpus=1)
AT_ONCE_MS: Final = 1
"""When those are gone that should be gone already: what is promised counts on it."""
LINGER_MS: Final = 10 * MINUTE_MS
"""When it is promised that they are."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A gang, when it starts and when it ends at the latest, and on which nodes."""

    gang: Gang
    start_ms: int
    end_ms: int
    nodes: tuple[str, ...]
    cause: Moved
    stays: tuple[Stay, ...]

    @property
    def told(self) -> ReservedStart:
        """The decision that makes it."""
        return ReservedStart(gang=self.gang.id, start_ms=self.start_ms, nodes=self.nodes, cause=self.cause)


class CapacityForecast:
    """Of one state and moment. `ending`: gangs that end with this round."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, None]) -> None:
        """Nothing is made before it is asked for."""
        self.state, self.now_ms, self._ending = state, now_ms, ending

    def whole(self, promises: Iterable[Reservation]) -> AvailabilityProfile:
        """Of all nodes, with promises laid down."""
        every, windows, held = list(promises), self.state.windows, self._held(LINGER_MS)
        moments = [ms for each in every for ms in (max(self.now_ms, each.start_ms), each.end_ms)]
        moments += [ms for window in windows.values() for ms in (window.from_ms, window.until_ms)]
        ends_ms = np.append(held.ends_ms, np.array(moments, dtype=np.int64))
        slots = edges(self.now_ms, ends_ms, len(self.state.nodes.nodes))
        promised = (stay for each in every for stay in each.stays)
        stays = chain(self._on_devices(self.state.shares.sharers, LINGER_MS), promised)
        closed = [windows.at(self.state.nodes, window) for window in windows.values()]
        if len(slots) * len(self.state.nodes.nodes) <= availability_profile.MOST_CELLS:
            found = AvailabilityProfile(self.state.nodes, slots, held, stays)
        else:
            found = SparseProfile(self.state.nodes, slots, held, list(stays), closed)
        for window in windows.values():
            found.close(windows.at(self.state.nodes, window), window.from_ms, window.until_ms)
        return found

    def near(self, promises: Iterable[Reservation]) -> AvailabilityProfile:
        """Of the nodes that are promised to somebody, with promises laid down; slots begin with these."""
        every, state = list(promises), self.state
        slots = np.unique([self.now_ms, *(max(self.now_ms, each.start_ms) for each in every)])
        among = np.unique(np.concatenate([stay.at for each in every for stay in each.stays]))
        held, mine = self._held(AT_ONCE_MS), np.zeros(len(state.nodes.nodes), dtype=bool)
        mine[among] = True
        here = np.flatnonzero(mine[held.at])
        names = {state.nodes.names[at]: None for at in among.tolist()} if state.shares.sharers else {}
        sharers = {gang: None for name in names for gang in state.shares.residents.get(name, ())}
        stays = [cut_to(stay, mine) for stay in self._on_devices(sharers, AT_ONCE_MS)]
        stays += (stay for each in every for stay in each.stays)
        there = Held(held.at[here], held.ends_ms[here], held.taken[:, here])
        return AvailabilityProfile(state.nodes, slots, there, stays, among)

    def has_ends(self, whole: AvailabilityProfile, moments: list[int]) -> bool:
        """Whether each of these moments, and the end of each that runs, is an edge of a profile, and nobody should have
        ended: else more may be free, or sooner, than it says."""
        ends_ms = self.state.shares.ledger.cells[END]
        ends_ms = ends_ms[ends_ms > 0]
        if self.state.due.restless or bool((ends_ms <= self.now_ms).any()):
            return False
        ends_ms = np.append(ends_ms, np.array(moments, dtype=np.int64))
        return bool(np.isin(ends_ms[ends_ms < NEVER_MS], whole.edges).all())

    def allowance(self) -> QuotaForecast | FlatQuotaForecast | None:
        """What queues may use; None where no figure binds anybody."""
        state = self.state
        if not state.tree.limits_anybody:
            return None
        ends_ms = self._ends(state.charged.ledger, self.now_ms + AT_ONCE_MS)
        return (FlatQuotaForecast if state.tree.is_pooled else QuotaForecast)(state.tree, state.charged, ends_ms)

    def stays(self, gang: Gang, shares: Shares, when: tuple[int, int]) -> Iterator[Stay]:
        """What shares take of the nodes, part by part."""
        holding, end_ms = self.state.shares, min(NEVER_MS, when[1])
        is_held = holding.get(gang.id) is shares
        parts = holding.rows(gang.id) if is_held else rows(gang.shape, shares, self.state.nodes.index)
        for part, mine, at in parts:
            is_real = part.has_share and bool(mine[0].devices)
            if is_real:
                devices = {(share.node, share.devices[0]): end_ms for share in mine}
                yield from self._taken_up(devices, when[0])
            yield Stay(replace(part, gpu_milli=0, gpu_memory_bytes=0) if is_real else part, at, when[0], end_ms)

    def _taken_up(self, devices: dict[Device, int], begin_ms: int) -> Iterator[Stay]:
        """Devices that are taken as a whole until then, by the moment."""
        by_end: dict[int, list[int]] = {}
        for (node, _), end_ms in devices.items():
            by_end.setdefault(end_ms, []).append(self.state.nodes.index[node])
        for end_ms, at in by_end.items():
            yield Stay(_DEVICE, np.array(at, dtype=np.int64), begin_ms, end_ms)

    def charge(self, gang: Gang, shares: Shares, when: tuple[int, int]) -> Charge:
        """What it is charged for on these shares."""
        nodes, tree = self.state.nodes, self.state.tree
        taken = tree.taken(gang.shape, shares, lambda name: nodes.gpu_types[nodes.index[name]])
        return Charge(gang, taken, when[0], min(NEVER_MS, when[1]))

    def _held(self, linger_ms: int) -> Held:
        """What is held, and when it is free: by the limits, or in a while where it should be free already."""
        ledger = self.state.shares.ledger
        return Held(ledger.cells[AT], self._ends(ledger, self.now_ms + linger_ms), ledger.cells[TAKEN:])

    def _on_devices(self, names: Iterable[str], linger_ms: int) -> Iterator[Stay]:
        """The devices that shares of these gangs are on: each is taken until the last of them leaves."""
        until_ms: dict[Device, int] = {}
        holding, ledger = self.state.shares, self.state.shares.ledger
        ends_ms = self._ends(ledger, self.now_ms + linger_ms)
        for name in (name for name in holding.sharers if name in names):
            end_ms = int(ends_ms[ledger.at((name,))[0]])
            shared = (share for part, mine, _ in holding.rows(name) if part.has_share for share in mine)
            for device in ((share.node, share.devices[0]) for share in shared):
                until_ms[device] = max(until_ms.get(device, 0), end_ms)
        return self._taken_up(until_ms, self.now_ms)

    def _ends(self, ledger: Ledger, late_ms: int) -> Ints:
        """(rows,) when those end whose rows these are; `late_ms` for those that are leaving, or should have left. Those
        on nodes that are to be maintained leave when that begins."""
        state = self.state
        ends_ms: Ints = ledger.cells[END].copy()
        for window in state.windows.values():
            if window.from_ms > self.now_ms:
                at = ledger.at(gang.id for gang in state.on_nodes(window.nodes))
                ends_ms[at] = np.minimum(ends_ms[at], window.from_ms)
        leaving = (gang.id for gang in state.due.restless.values() if gang.state in LEAVING)
        ends_ms[(ends_ms > 0) & (ends_ms <= self.now_ms)] = late_ms
        ends_ms[ledger.at((*leaving, *self._ending))] = late_ms
        return ends_ms
