"""Forecast of free capacity: which gang holds what until when, on nodes and in queues.

It makes two profiles of the same facts. The one of all nodes serves to find a start, and is made only when one is
searched for. The one of reserved nodes alone, with slots that begin at reserved starts, suffices to check a start
against all reservations: between two reserved starts capacity only grows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.reservations import availability_profile
from ganger.core.reservations.availability_profile import (
    AvailabilityProfile,
    HeldCapacity,
    Stay,
    restrict_stay,
    slot_edges,
)
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.quota_forecast import QuotaCharge, QuotaForecast
from ganger.core.reservations.sparse_profile import SparseProfile
from ganger.core.state.allocations.allocations import AMOUNTS, NODE, split_by_part
from ganger.core.state.allocations.column_table import END_MS, ColumnTable
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import STOP_MS
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.core.state.timers import STOPPING
from ganger.model.decision import ReservationCause, ReservedStart
from ganger.model.shape import Shape
from ganger.model.units import MINUTE_MS

Device = tuple[str, int]
_ONE_DEVICE: Final = Shape(nodes=1, gpus=1)
# A gang that is overdue, or that leaves after its notice, holds its nodes for a time that nobody knows. Two guesses are
# made of it, for two questions. A reservation that stands is checked against the optimistic one: it is not given up
# because of a few seconds for which a gang is late, as it would lose its place to no purpose. A new one is made by the
# pessimistic one: it is not placed on nodes of which it is doubtful that they are free then. What lies between the two
# is late, but not broken (`ReservationCause.OVERRUN`).
LATE_AT_ONCE_MS: Final = 1
"""Time until overdue gangs are taken to be gone when reservations are checked."""
LATE_MARGIN_MS: Final = 10 * MINUTE_MS
"""Time until overdue gangs are taken to be gone when a reservation is made."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved start: the gang, its start and latest end, its nodes, and what it takes of them.

    owned: as `ReservedStart` has it.
    """

    gang: Gang
    start_ms: int
    end_ms: int
    nodes: tuple[str, ...]
    cause: ReservationCause
    stays: tuple[Stay, ...]
    owned: bool = False

    @property
    def decision(self) -> ReservedStart:
        """The decision that records it."""
        name, start_ms, owned = self.gang.id, self.start_ms, self.owned
        return ReservedStart(gang=name, start_ms=start_ms, nodes=self.nodes, cause=self.cause, owned=owned)


Moved = Sequence[tuple[Reservation, ReservationCause]]
"""Reservations that a gang may move, and why."""


class FoundStart(NamedTuple):
    """The shares that a gang may start on; None, and the longest stay with which others of its kind might start."""

    shares: Shares | None
    max_stay_of_others_ms: int = NEVER_MS


class CapacityForecast:
    """The forecast at one time of a state."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, int]) -> None:
        """Create the forecast; `ending` are gangs that end with this cycle, with the notice of each in ms."""
        self.state, self.now_ms, self._ending = state, now_ms, ending

    def profile_of_all(self, reservations: Iterable[Reservation]) -> AvailabilityProfile:
        """Return the profile of all nodes with these reservations."""
        reserved, windows, held = list(reservations), self.state.maintenance, self.held_capacity(LATE_MARGIN_MS)
        times_ms = [ms for r in reserved for ms in (max(self.now_ms, r.start_ms), r.end_ms)]
        times_ms += [ms for window in windows.values() for ms in (window.from_ms, window.until_ms)]
        ends_ms = np.append(held.ends_ms, np.array(times_ms, dtype=np.int64))
        slots = slot_edges(self.now_ms, ends_ms, len(self.state.nodes.nodes))
        reserved_stays = (stay for reservation in reserved for stay in reservation.stays)
        stays = chain(self.shared_devices(self.state.allocations.sharers, LATE_MARGIN_MS), reserved_stays)
        closed = [windows.nodes_of(self.state.nodes, window) for window in windows.values()]
        if len(slots) * len(self.state.nodes.nodes) <= availability_profile.MAX_EXACT_CELLS:
            profile = AvailabilityProfile(self.state.nodes, slots, held, stays)
        else:
            profile = SparseProfile(self.state.nodes, slots, held, list(stays), closed)
        for window in windows.values():
            profile.close_nodes(windows.nodes_of(self.state.nodes, window), window.from_ms, window.until_ms)
        return profile

    def profile_near(self, reservations: Iterable[Reservation]) -> AvailabilityProfile:
        """Return the profile of the reserved nodes, with slots that begin at reserved starts."""
        reserved, state = list(reservations), self.state
        slots = np.unique([self.now_ms, *(max(self.now_ms, reservation.start_ms) for reservation in reserved)])
        subset = np.unique(np.concatenate([stay.indices for reservation in reserved for stay in reservation.stays]))
        held, is_reserved = self.held_capacity(LATE_AT_ONCE_MS), np.zeros(len(state.nodes.nodes), dtype=bool)
        is_reserved[subset] = True
        rows = np.flatnonzero(is_reserved[held.indices])
        all_names = state.nodes.attributes.names
        names = {all_names[index]: None for index in subset.tolist()} if state.allocations.sharers else {}
        sharers = {gang: None for name in names for gang in state.allocations.gangs_on_node.get(name, ())}
        stays = [restrict_stay(stay, is_reserved) for stay in self.shared_devices(sharers, LATE_AT_ONCE_MS)]
        stays += (stay for reservation in reserved for stay in reservation.stays)
        held_there = HeldCapacity(held.indices[rows], held.ends_ms[rows], held.taken[:, rows])
        return AvailabilityProfile(state.nodes, slots, held_there, stays, subset)

    def has_all_ends(self, profile: AvailabilityProfile, times_ms: list[int]) -> bool:
        """Return whether these times and all ends of running gangs are edges, and no gang is overdue.

        Otherwise more may be free than in the profile, or sooner.
        """
        ends_ms = self.state.allocations.table.cells[END_MS]
        ends_ms = ends_ms[ends_ms > 0]
        if self.state.timers.in_transition or bool((ends_ms <= self.now_ms).any()):
            return False
        ends_ms = np.append(ends_ms, np.array(times_ms, dtype=np.int64))
        return bool(np.isin(ends_ms[ends_ms < NEVER_MS], profile.edges).all())

    def quota_forecast(self, reserved: Iterable[QuotaCharge]) -> QuotaForecast | FlatQuotaForecast | None:
        """Return the forecast of free quota with the charges of reservations, or None if no queue has a limit."""
        state = self.state
        if not state.tree.has_limits:
            return None
        ends_ms = self._end_times(state.quota_charges.table, self.now_ms + LATE_AT_ONCE_MS)
        kind = FlatQuotaForecast if state.tree.is_flat else QuotaForecast
        return kind(state.tree, state.quota_charges, ends_ms, reserved)

    def stays_of(self, gang: Gang, shares: Shares, interval: tuple[int, int]) -> Iterator[Stay]:
        """Yield what shares take of the nodes, part by part."""
        holding, end_ms = self.state.allocations, min(NEVER_MS, interval[1])
        is_held = holding.get(gang.id) is shares
        parts = holding.by_part(gang.id) if is_held else split_by_part(gang.shape, shares, self.state.nodes.index)
        for part, part_shares, indices in parts:
            has_device = part.has_share and bool(part_shares[0].devices)
            if has_device:
                devices = {(share.node, share.devices[0]): end_ms for share in part_shares}
                yield from self._whole_devices(devices, interval[0])
                part = replace(part, gpu_milli=0, gpu_memory_bytes=0)  # noqa: PLW2901 - its device is taken already
            yield Stay(part, indices, interval[0], end_ms)

    def _whole_devices(self, devices: dict[Device, int], begin_ms: int) -> Iterator[Stay]:
        """Yield the stays of devices that are taken as a whole, one for each end."""
        by_end: dict[int, list[int]] = {}
        for (node, _), end_ms in devices.items():
            by_end.setdefault(end_ms, []).append(self.state.nodes.index[node])
        for end_ms, indices in by_end.items():
            yield Stay(_ONE_DEVICE, np.array(indices, dtype=np.int64), begin_ms, end_ms)

    def charge_of(self, gang: Gang, shares: Shares, interval: tuple[int, int]) -> QuotaCharge:
        """Return what a gang is charged for on these shares."""
        nodes, tree = self.state.nodes, self.state.tree
        taken = tree.taken(gang.shape, shares, lambda name: nodes.attributes.gpu_types[nodes.index[name]])
        return QuotaCharge(gang, taken, interval[0], min(NEVER_MS, interval[1]))

    def held_capacity(self, late_ms: int = LATE_MARGIN_MS) -> HeldCapacity:
        """Return what is held, and until when: by the time limits, or `late_ms` from now where that has passed."""
        ledger = self.state.allocations.table
        return HeldCapacity(ledger.cells[NODE], self._end_times(ledger, self.now_ms + late_ms), ledger.cells[AMOUNTS:])

    def shared_devices(self, names: Iterable[str], late_ms: int = LATE_MARGIN_MS) -> Iterator[Stay]:
        """Yield the devices that shares of these gangs are on, each taken until the last share leaves."""
        until_ms: dict[Device, int] = {}
        holding, ledger = self.state.allocations, self.state.allocations.table
        ends_ms = self._end_times(ledger, self.now_ms + late_ms)
        for name in (name for name in holding.sharers if name in names):
            end_ms = int(ends_ms[ledger.row_indices((name,))[0]])
            shared = (
                share for part, part_shares, _ in holding.by_part(name) if part.has_share for share in part_shares
            )
            for device in ((share.node, share.devices[0]) for share in shared):
                until_ms[device] = max(until_ms.get(device, 0), end_ms)
        return self._whole_devices(until_ms, self.now_ms)

    def _end_times(self, ledger: ColumnTable, late_ms: int) -> Ints:
        """Return (rows,) the end of each row's gang.

        That is `late_ms` for gangs that are overdue, soon after their notice for gangs that are leaving, and the begin
        of maintenance for those on its nodes.
        """
        state = self.state
        ends_ms: Ints = ledger.cells[END_MS].copy()
        for window in state.maintenance.values():
            if window.from_ms > self.now_ms:
                rows = ledger.row_indices(gang.id for gang in state.on_nodes(window.nodes))
                ends_ms[rows] = np.minimum(ends_ms[rows], window.from_ms)
        ends_ms[(ends_ms > 0) & (ends_ms <= self.now_ms)] = late_ms
        leaving = [gang for gang in state.timers.in_transition.values() if gang.state in STOPPING]
        notices_ms = {gang.id: gang.attempt.notice_until_ms for gang in leaving}
        notices_ms |= {name: self.now_ms + notice_ms for name, notice_ms in self._ending.items()}
        for name, until_ms in notices_ms.items():
            # Its notice tells when it is gone, unless that has passed, or all that is late counts as gone at once.
            gone_ms = until_ms + STOP_MS
            is_in_time = gone_ms > self.now_ms and late_ms > self.now_ms + LATE_AT_ONCE_MS
            ends_ms[self._leaving_rows(ledger, state.gangs[name])] = gone_ms if is_in_time else late_ms
        return ends_ms

    def _leaving_rows(self, ledger: ColumnTable, gang: Gang) -> Ints:
        """Return the rows of a gang that is leaving; of one that goes on elsewhere, those of what it gives up."""
        rows = np.array(ledger.row_indices((gang.id,)), dtype=np.int64)
        if not rows.size:
            return rows  # inside a trial it counts as gone
        if not gang.attempt.target or (gang.is_short and gang.id in self._ending):
            return rows  # what it keeps, it gives up
        if ledger is not self.state.allocations.table:
            return rows[:0]  # it stays charged
        parting = dict.fromkeys(gang.attempt.parting)
        return rows[[share in parting for share in self.state.allocations[gang.id]]]


def movable_for_good(moved: Moved) -> Moved:
    """Return those that a gang may move for its own reservation, not for its own start alone."""
    return [(other, cause) for other, cause in moved if cause is not ReservationCause.RESTARTED]
