"""The cycle's tentative reservations on the availability profile: add, remove, check for conflicts.

The table tells whether each reservation can be kept beside the others, and how much of the nodes and quotas a gang that
starts now has to leave for them. Profiles are made when first needed; the one of all nodes only if a start is searched
for.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import extended_needs
from ganger.core.nodes.node_table import ReservedCapacity
from ganger.core.nodes.topology import Ints
from ganger.core.queues.quota import Vector, need
from ganger.core.queues.share_bounds import ZERO_VECTOR
from ganger.core.reservations.availability_profile import AvailabilityProfile
from ganger.core.reservations.capacity_forecast import CapacityForecast, Reservation
from ganger.core.reservations.earliest_start import shares_on
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.quota_forecast import QuotaCharge, QuotaForecast
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.decision import ReservationCause
from ganger.model.shape import Shape


class ReservationTable:
    """Reservations in force.

    Attributes:
        by_gang: The reservations.
        of_queue: Their gangs, by queue.
        demand_of_queue: What they take of the cluster (gpus, cpu_milli, memory_bytes), by queue.
        owners: Gangs for which others were stopped.
        tried_slots: By kind of gang and its size, the first slot that is not known to be too early; until a reservation
            is removed.
    """

    def __init__(self, state: State, now_ms: int, ending: dict[str, int]) -> None:
        """Create an empty table; `ending` are gangs that end with this cycle, with the notice of each in ms."""
        self.state, self.now_ms, self._ending = state, now_ms, ending
        self.by_gang: dict[str, Reservation] = {}
        self.owners: dict[str, None] = {}
        self._order: list[tuple[int, int, str]] = []
        """Reserved starts, numbers and ids of the gangs, rising."""
        self.of_queue: dict[str, dict[str, Gang]] = {}
        self.demand_of_queue: dict[str, Vector] = {}
        self.tried_slots: dict[tuple[object, ...], dict[tuple[int, int], int]] = {}
        self._forecast = CapacityForecast(state, now_ms, ending)
        self._full_profile: AvailabilityProfile | None = None
        self._near_profile: AvailabilityProfile | None = None
        self._quota_forecast: QuotaForecast | FlatQuotaForecast | None = None
        self._has_quota_forecast = False
        self._charges: dict[tuple[str, int, tuple[str, ...]], QuotaCharge] = {}
        """By gang, begin and nodes."""
        self._kept_by_slots: dict[tuple[int, bool], ReservedCapacity] = {}
        self._max_stays: dict[tuple[Shape, ...], tuple[int, int]] = {}
        """By shape, the length of the node journal when the longest stay was computed, and that stay."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def build(self, gang: Gang, start_ms: int, nodes: tuple[str, ...], cause: ReservationCause) -> Reservation:
        """Return a reservation with what it takes of these nodes, which must exist."""
        end_ms = min(NEVER_MS, max(start_ms, self.now_ms) + gang.runs_for_ms)
        stays = tuple(self._forecast.stays_of(gang, shares_on(gang.shape, nodes), (start_ms, end_ms)))
        return Reservation(gang, start_ms, end_ms, nodes, cause, stays, gang.id in self.owners)

    def add(self, reservation: Reservation) -> None:
        """Put a reservation in force."""
        gang = reservation.gang
        self.by_gang[gang.id] = reservation
        insort(self._order, (*start_order(reservation), gang.id))
        self.of_queue.setdefault(gang.queue, {})[gang.id] = gang
        self._add_demand(gang, +1)
        if self._full_profile is not None:
            for stay in reservation.stays:
                self._full_profile.add(stay)
        if self._near_profile is not None and not self._add_to_near_profile(reservation):
            self._near_profile = None
        if self._has_quota_forecast and self._quota_forecast is not None:
            self._quota_forecast.add_reservation(self._charge(reservation))
        self._kept_by_slots.clear()
        self._max_stays.clear()

    def remove(self, reservation: Reservation) -> None:
        """Take a reservation out of force."""
        del self.by_gang[reservation.gang.id], self.of_queue[reservation.gang.queue][reservation.gang.id]
        del self._order[bisect_left(self._order, start_order(reservation))]
        self._add_demand(reservation.gang, -1)
        self.tried_slots.clear()
        for profile in filter(None, (self._full_profile, self._near_profile)):
            for stay in reservation.stays:
                profile.add(stay, -1)
        if self._has_quota_forecast and self._quota_forecast is not None:
            self._quota_forecast.remove_reservation(reservation.gang.id)
        self._kept_by_slots.clear()
        self._max_stays.clear()

    def _add_demand(self, gang: Gang, sign: int) -> None:
        before = self.demand_of_queue.get(gang.queue, ZERO_VECTOR)
        demand = zip(before, need(gang.shape), strict=True)
        self.demand_of_queue[gang.queue] = tuple(amount + sign * more for amount, more in demand)

    def add_running(self, gang: Gang, shares: Shares) -> None:
        """Record a gang that starts in this cycle."""
        interval = self.now_ms, self.now_ms + gang.runs_for_ms
        if self._full_profile is not None:
            for stay in self._forecast.stays_of(gang, shares, interval):
                self._full_profile.add(stay)
        if self._has_quota_forecast and self._quota_forecast is not None:
            self._quota_forecast.add_running(self._forecast.charge_of(gang, shares, interval))
        if self._near_profile is not None and has_share(gang.shape.parts):
            self._near_profile = None  # a device is taken once, however many shares of it are
        elif self._near_profile is not None:
            for stay in self._forecast.stays_of(gang, shares, interval):
                self._near_profile.add(replace(stay, indices=stay.indices[self._near_profile.covers(stay.indices)]))
        self._kept_by_slots.clear()
        self._max_stays.clear()

    @contextmanager
    def without(self, reservations: list[Reservation]) -> Iterator[None]:
        """Take reservations out of force for the duration of the context.

        Nothing else is added meanwhile, so that what was computed before is valid again afterwards.
        """
        if not reservations:
            yield
            return
        near, caches = self._near_profile, (self._kept_by_slots, self._max_stays, self.tried_slots)
        self._kept_by_slots, self._max_stays, self.tried_slots = {}, {}, {}
        for reservation in reservations:
            self.remove(reservation)
        try:
            yield
        finally:
            for reservation in reservations:
                self.add(reservation)
            if self._near_profile is near:
                self._kept_by_slots, self._max_stays, self.tried_slots = caches

    def reduced(self, without: Iterable[Reservation]) -> "ReservationTable":
        """Return a table without some of the reservations, which computes everything again."""
        table, names = ReservationTable(self.state, self.now_ms, self._ending), {gone.gang.id: None for gone in without}
        table.owners, table._charges = self.owners, self._charges
        for name, reservation in self.by_gang.items():
            if name not in names:
                table.add(reservation)
        return table

    def in_start_order(self, most: int | None = None) -> list[Reservation]:
        """Return the reservations, or that many at most, the soonest first."""
        return [self.by_gang[name] for _, _, name in self._order[:most]]

    # -- feasibility ---------------------------------------------------------------------------------------------------

    def are_all_feasible(self) -> bool:
        """Return whether all reservations can be kept, by a single check; if False, each has to be checked."""
        if not self.by_gang or self.state.maintenance:
            return not self.by_gang
        nodes, quota = self.state.nodes, self.quota_forecast()
        stays_by_part: dict[Shape, list[Ints]] = {}
        for reservation in self.by_gang.values():
            for stay in reservation.stays:
                stays_by_part.setdefault(stay.part, []).append(stay.indices)
        nodes_by_part = {part: np.concatenate(stays) for part, stays in stays_by_part.items()}
        for part, indices in nodes_by_part.items():
            if not nodes.ready[indices].all() or not self._is_large_enough(part, indices).all():
                return False
        return self.near_profile().is_feasible() and (quota is None or not quota.exceeds_any())

    def is_feasible(self, reservation: Reservation) -> bool:
        """Return whether a reservation can be kept beside the others."""
        nodes, quota = self.state.nodes, self.quota_forecast()
        is_ready = all(
            bool(nodes.ready[stay.indices].all()) for stay in reservation.stays
        ) and not self.meets_maintenance(reservation)
        return is_ready and self.has_capacity(reservation) and (quota is None or not quota.exceeds(reservation.gang.id))

    def meets_maintenance(self, reservation: Reservation) -> bool:
        """Return whether one of its nodes is in maintenance for a part of its time."""
        begin_ms = max(self.now_ms, reservation.start_ms)
        end_ms = NEVER_MS if reservation.gang.time_ms is None else reservation.end_ms
        return bool(self.state.maintenance) and bool(
            self.state.maintenance.overlapping(reservation.nodes, begin_ms, end_ms)
        )

    def has_capacity(self, reservation: Reservation) -> bool:
        """Return whether its nodes have what it needs, from its start on."""
        profile, is_enough = self.near_profile(), True
        all_indices = np.concatenate([stay.indices for stay in reservation.stays])
        for stay in reservation.stays:
            indices = np.unique(stay.indices)
            least_free = profile.least_free(indices, *profile.slot_range(max(self.now_ms, stay.begin_ms), stay.end_ms))
            own_guests = (all_indices[:, None] == indices).sum(axis=0)
            is_enough &= all(int(amount.min()) >= 0 for amount in least_free.amounts)
            is_enough &= bool(((least_free.alone == 0) | (least_free.guests <= own_guests)).all())
            is_enough &= bool(self._is_large_enough(stay.part, indices).all())
        return bool(is_enough)

    def _is_large_enough(self, part: Shape, indices: Ints) -> NDArray[np.bool_]:
        nodes = self.state.nodes
        by_choice = [nodes.capacity_index.large_enough(choice)[indices] for choice in part.choices]
        is_large_enough: NDArray[np.bool_] = np.logical_or.reduce(by_choice)
        return is_large_enough

    def gangs_delayed(self, gang: Gang, shares: Shares, interval: tuple[int, int]) -> list[str]:
        """Return the gangs whose reserved start would be made impossible by the gang's quota charge or user limits."""
        quota = self.quota_forecast() if self.by_gang else None
        return [] if quota is None else quota.delayed_gangs(self._forecast.charge_of(gang, shares, interval))

    # -- capacity left for starts --------------------------------------------------------------------------------------

    def has_room_now(self, name: str) -> bool:
        """Return whether a node reserved for a gang has room now for one of the gang's parts."""
        reservation, index = self.by_gang[name], self.state.nodes.capacity_index
        choices = [index.of(choice).counts for part in reservation.gang.shape.parts for choice in part.choices]
        return any(room_counts[stay.indices].any() for stay in reservation.stays for room_counts in choices)

    def max_stay_ms(self, parts: tuple[Shape, ...]) -> int:
        """Return how long a gang of these parts may stay if started now without delaying a reservation.

        Quota and topology may allow less. Free capacity only shrinks with the length of a stay, so the slot is found by
        bisection.
        """
        if not self.by_gang:
            return NEVER_MS
        journal_length = len(self.state.nodes.journal.entries)
        known = self._max_stays.get(parts)
        if known is not None and known[0] == journal_length:
            return known[1]
        profile = self.near_profile()
        low, high = 0, len(profile.edges) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has_room_for(parts, middle) else (low, middle)
        max_stay_ms = NEVER_MS if low == len(profile.edges) else int(profile.edges[low]) - self.now_ms
        self._max_stays[parts] = journal_length, max_stay_ms
        return max_stay_ms

    def capacity_kept_until(self, end_ms: int, parts: Iterable[Shape]) -> ReservedCapacity:
        """Return the capacity that a gang of these parts must leave free if it stays until `end_ms`."""
        return self._capacity_kept(max(1, self.near_profile().edge_at_or_after(end_ms)), has_share=has_share(parts))

    def kept_with_owned(self, kept: ReservedCapacity) -> ReservedCapacity:
        """Return that capacity, or on nodes that others are leaving for an owner what this one takes there, if more.

        So it is kept as well when those that are leaving count as gone.
        """
        names = tuple(kept.extended)
        taken = np.zeros((3 + len(names), len(self.state.nodes.nodes)), dtype=np.int64)
        for stay in (stay for reservation in self.by_gang.values() if reservation.owned for stay in reservation.stays):
            part = stay.part
            amounts = part.devices, part.cpu_milli, part.memory_bytes, *extended_needs(part, names)
            for of_nodes, amount in zip(taken, amounts, strict=True):
                np.add.at(of_nodes, stay.indices, amount)
        before = (kept.gpus, kept.cpu_milli, kept.memory_bytes, *kept.extended.values())
        gpus, cpu_milli, memory_bytes, *more = np.maximum(before, taken[:, kept.at])
        extended = dict(zip(names, more, strict=True))
        return kept._replace(gpus=gpus, cpu_milli=cpu_milli, memory_bytes=memory_bytes, extended=extended)

    def _capacity_kept(self, slots: int, *, has_share: bool) -> ReservedCapacity:
        """Return the capacity that a gang must leave free if it stays for `slots` slots."""
        kept = self._kept_by_slots.get((slots, has_share))
        if kept is None:
            kept = self._kept_where_reservations_begin(slots) if has_share else self._kept_on_all_reserved(slots)
            self._kept_by_slots[slots, has_share] = kept
        return kept

    def _kept_on_all_reserved(self, slots: int) -> ReservedCapacity:
        profile, nodes = self.near_profile(), self.state.nodes
        indices = profile.indices
        least_free = profile.least_free(indices, 0, slots)
        free_now: tuple[Ints, ...] = (*nodes.free, *nodes.extended.free.values())
        amounts = zip(free_now, least_free.amounts, strict=True)
        gpus, cpu_milli, memory_bytes, *more = (np.maximum(0, free[indices] - least) for free, least in amounts)
        guests, alone = least_free.guests > 0, least_free.alone > 0
        extended = dict(zip(nodes.extended.names, more, strict=True))
        return ReservedCapacity(indices, gpus, cpu_milli, memory_bytes, guests, alone, extended)

    def _kept_where_reservations_begin(self, slots: int) -> ReservedCapacity:
        """Return the same for nodes on which a reservation begins in these slots.

        On other nodes a share may stay alone on its device.
        """
        profile, kept = self.near_profile(), self._capacity_kept(slots, has_share=False)
        beginning = [r for r in self.by_gang.values() if profile.slot_at(max(self.now_ms, r.start_ms)) < slots]
        indices = [index for r in beginning for stay in r.stays for index in stay.indices.tolist()]
        return kept.of(np.isin(kept.at, indices))

    def _has_room_for(self, parts: tuple[Shape, ...], slots: int) -> bool:
        """Return whether there are enough nodes for each part by itself for `slots` slots."""
        nodes = self.state.nodes
        with nodes.reserving(self._capacity_kept(slots, has_share=has_share(parts))):
            return all(any(nodes.room(choice) >= part.nodes for choice in part.choices) for part in parts)

    # -- forecasts -----------------------------------------------------------------------------------------------------

    def near_profile(self) -> AvailabilityProfile:
        """Return the profile of the reserved nodes at reserved starts."""
        if self._near_profile is None:
            self._near_profile = self._forecast.profile_near(self.by_gang.values())
        return self._near_profile

    def _add_to_near_profile(self, reservation: Reservation) -> bool:
        """Add a reservation to the near profile if that has its nodes and its start; return whether it has."""
        profile = self._near_profile
        indices = np.concatenate([stay.indices for stay in reservation.stays])
        if profile is None or not profile.covers(indices).all():
            return False
        if max(self.now_ms, reservation.start_ms) not in profile.edges:
            return False
        for stay in reservation.stays:
            profile.add(stay)
        return True

    def full_profile(self) -> AvailabilityProfile:
        """Return the profile of all nodes."""
        if self._full_profile is None:
            self._full_profile = self._forecast.profile_of_all(self.by_gang.values())
        return self._full_profile

    def is_profile_exact(self) -> bool:
        """Return whether the full profile has all capacity as soon as it is free."""
        reserved_ms = [ms for r in self.by_gang.values() for ms in (max(self.now_ms, r.start_ms), r.end_ms)]
        return self._forecast.has_all_ends(self.full_profile(), reserved_ms)

    def quota_forecast(self) -> QuotaForecast | FlatQuotaForecast | None:
        """Return the forecast of free quota, or None if no queue has a limit."""
        if not self._has_quota_forecast:
            charges = map(self._charge, self.by_gang.values())
            self._quota_forecast, self._has_quota_forecast = self._forecast.quota_forecast(charges), True
        return self._quota_forecast

    def _charge(self, reservation: Reservation) -> QuotaCharge:
        gang, nodes, begin_ms = reservation.gang, reservation.nodes, max(self.now_ms, reservation.start_ms)
        key = gang.id, begin_ms, nodes
        charge = self._charges.get(key)
        if charge is None:
            interval = begin_ms, reservation.end_ms
            charge = self._charges[key] = self._forecast.charge_of(gang, shares_on(gang.shape, nodes), interval)
        return charge


def has_share(parts: Iterable[Shape]) -> bool:
    """Return whether one of the parts requests a share of a device."""
    return any(part.has_share for part in parts)


def start_order(reservation: Reservation) -> tuple[int, int]:
    """Return the sort key of a reservation."""
    return reservation.start_ms, reservation.gang.number
