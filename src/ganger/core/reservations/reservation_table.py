"""Promised starts as they are laid down in one round, on the time after it: added, taken back, held against each other.

Made by `core.reservations.reservations`, which decides who is promised what. Says whether each can be kept beside the
others, and what of the nodes and quotas a gang that starts now must leave for them. Nothing is made before it is asked
for: the profile of all nodes only where a moment is looked for."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_table import Kept
from ganger.core.nodes.topology import Ints
from ganger.core.reservations.availability_profile import AvailabilityProfile
from ganger.core.reservations.capacity_forecast import CapacityForecast, Reservation
from ganger.core.reservations.earliest_start import shares_on
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.quota_forecast import Charge, QuotaForecast
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.decision import Moved
from ganger.model.shape import Shape


class ReservationTable:
    """standing: promises in force, by gang; of_queue: the gangs, by queue; tried: what was found of moments that are
    too early, until a promise is taken back."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, None]) -> None:
        """None yet. `ending`: gangs that end with this round."""
        self.state, self.now_ms = state, now_ms
        self.standing: dict[str, Reservation] = {}
        self.of_queue: dict[str, dict[str, Gang]] = {}
        self.tried: dict[tuple[object, ...], dict[tuple[int, int], int]] = {}
        self._seen = CapacityForecast(state, now_ms, ending)
        self._profile: AvailabilityProfile | None = None
        self._near: AvailabilityProfile | None = None
        self._allowance: QuotaForecast | FlatQuotaForecast | None = None
        self._knows_quota = False
        self._kept: dict[tuple[int, bool], Kept] = {}
        self._longest: dict[tuple[Shape, ...], tuple[int, int]] = {}
        """What was found of kinds, and how far the journal of the nodes had come by then."""

    # -- what is laid down ---------------------------------------------------------------------------------------------

    def promise(self, gang: Gang, start_ms: int, nodes: tuple[str, ...], cause: Moved) -> Reservation:
        """What is promised, with what it takes of these nodes, which are there."""
        end_ms = min(NEVER_MS, max(start_ms, self.now_ms) + gang.runs_for_ms)
        stays = tuple(self._seen.stays(gang, shares_on(gang.shape, nodes), (start_ms, end_ms)))
        return Reservation(gang, start_ms, end_ms, nodes, cause, stays)

    def put(self, promise: Reservation) -> None:
        """It is in force."""
        gang = promise.gang
        self.standing[gang.id] = promise
        self.of_queue.setdefault(gang.queue, {})[gang.id] = gang
        if self._profile is not None:
            for stay in promise.stays:
                self._profile.add(stay)
        if self._near is not None and not self._add_near(promise):
            self._near = None
        if self._knows_quota and self._allowance is not None:
            self._allowance.promise(self._charge(promise))
        self._kept.clear()
        self._longest.clear()

    def drop(self, promise: Reservation) -> None:
        """It is so no more."""
        del self.standing[promise.gang.id], self.of_queue[promise.gang.queue][promise.gang.id]
        self.tried.clear()
        for profile in filter(None, (self._profile, self._near)):
            for stay in promise.stays:
                profile.add(stay, -1)
        if self._knows_quota and self._allowance is not None:
            self._allowance.withdraw(promise.gang.id)
        self._kept.clear()
        self._longest.clear()

    def begin(self, gang: Gang, shares: Shares) -> None:
        """A gang starts in this round."""
        when = self.now_ms, self.now_ms + gang.runs_for_ms
        if self._profile is not None:
            for stay in self._seen.stays(gang, shares, when):
                self._profile.add(stay)
        if self._knows_quota and self._allowance is not None:
            self._allowance.begin(self._seen.charge(gang, shares, when))
        if self._near is not None and has_share(gang.shape.parts):
            self._near = None  # a device is taken once, however many are on it
        elif self._near is not None:
            for stay in self._seen.stays(gang, shares, when):
                self._near.add(replace(stay, at=stay.at[self._near.has(stay.at)]))
        self._kept.clear()
        self._longest.clear()

    @contextmanager
    def lifted(self, promises: list[Reservation]) -> Iterator[None]:
        """Inside it nothing is kept by them, and nothing else is laid down: what was found before is so afterwards."""
        if not promises:
            yield
            return
        near, found = self._near, (self._kept, self._longest, self.tried)
        self._kept, self._longest, self.tried = {}, {}, {}
        for promise in promises:
            self.drop(promise)
        try:
            yield
        finally:
            for promise in promises:
                self.put(promise)
            if self._near is near:
                self._kept, self._longest, self.tried = found

    def in_order(self) -> list[Reservation]:
        """Those in force, the soonest first."""
        return sorted(self.standing.values(), key=by_start)

    # -- whether they can be kept --------------------------------------------------------------------------------------

    def all_stand(self) -> bool:
        """Whether all can be kept, at a look at all of them together; False: each has to be looked at."""
        if not self.standing or self.state.windows:
            return not self.standing
        nodes, allowance = self.state.nodes, self.quota()
        on: dict[Shape, list[Ints]] = {}
        for promise in self.standing.values():
            for stay in promise.stays:
                on.setdefault(stay.part, []).append(stay.at)
        there = {part: np.concatenate(every) for part, every in on.items()}
        ready = all(bool(nodes.ready[at].all() and self._suits(part, at).all()) for part, at in there.items())
        return ready and self.nearby().is_kept() and (allowance is None or not allowance.breaks_any())

    def stands(self, promise: Reservation) -> bool:
        """Whether it can be kept beside the others that are laid down."""
        nodes, allowance = self.state.nodes, self.quota()
        ready = all(bool(nodes.ready[stay.at].all()) for stay in promise.stays) and not self.is_maintained(promise)
        return ready and self.fits(promise) and (allowance is None or not allowance.breaks(promise.gang.id))

    def is_maintained(self, promise: Reservation) -> bool:
        """Whether one of its nodes is not there for all of its time."""
        begin_ms = max(self.now_ms, promise.start_ms)
        end_ms = NEVER_MS if promise.gang.time_ms is None else promise.end_ms
        return bool(self.state.windows) and bool(self.state.windows.meeting(promise.nodes, begin_ms, end_ms))

    def fits(self, promise: Reservation) -> bool:
        """Whether its nodes have what it needs, from its moment on."""
        near, fits = self.nearby(), True
        every = np.concatenate([stay.at for stay in promise.stays])
        for stay in promise.stays:
            at = np.unique(stay.at)
            there = near.window(at, *near.slots(max(self.now_ms, stay.begin_ms), stay.end_ms))
            mine = (every[:, None] == at).sum(axis=0)
            fits &= all(int(amount.min()) >= 0 for amount in there[:3])
            fits &= bool(((there.alone == 0) | (there.guests <= mine)).all())
            fits &= bool(self._suits(stay.part, at).all())
        return bool(fits)

    def _suits(self, part: Shape, at: Ints) -> NDArray[np.bool_]:
        nodes = self.state.nodes
        found: NDArray[np.bool_] = np.logical_or.reduce([nodes.large_enough(choice)[at] for choice in part.choices])
        return found

    def delayed(self, gang: Gang, shares: Shares, when: tuple[int, int]) -> list[str]:
        """Gangs that its quota, or its user's limits, would keep from starting as promised."""
        allowance = self.quota() if self.standing else None
        return [] if allowance is None else allowance.delayed(self._seen.charge(gang, shares, when))

    # -- what they leave -----------------------------------------------------------------------------------------------

    def has_room(self, name: str) -> bool:
        """Whether a node that is promised to a gang has room for one of it now."""
        promise, columns = self.standing[name], self.state.nodes.columns
        choices = [columns.of(choice).times for part in promise.gang.shape.parts for choice in part.choices]
        return any(times[stay.at].any() for stay in promise.stays for times in choices)

    def longest_ms(self, parts: tuple[Shape, ...]) -> int:
        """How long gangs of such parts may stay that start now: one that stays longer would be in the way of a promise
        on any nodes. Quota and levels may say less."""
        if not self.standing:
            return NEVER_MS
        as_of = len(self.state.nodes.journal.entries)
        known = self._longest.get(parts)
        if known is not None and known[0] == as_of:
            return known[1]
        near = self.nearby()
        low, high = 0, len(near.edges) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has_room(parts, middle) else (low, middle)
        found = NEVER_MS if low == len(near.edges) else int(near.edges[low]) - self.now_ms
        self._longest[parts] = as_of, found
        return found

    def kept_until(self, end_ms: int, parts: Iterable[Shape]) -> Kept:
        """What a gang of such parts that ends then must leave."""
        return self._kept_in(max(1, self.nearby().upto(end_ms)), has_share=has_share(parts))

    def _kept_in(self, slots: int, *, has_share: bool) -> Kept:
        """The same of one that stays for so many slots."""
        kept = self._kept.get((slots, has_share))
        if kept is None:
            kept = self._where_some_begin(slots) if has_share else self._where_any_is_promised(slots)
            self._kept[slots, has_share] = kept
        return kept

    def _where_any_is_promised(self, slots: int) -> Kept:
        near, nodes = self.nearby(), self.state.nodes
        at = near.at
        there = near.window(at, 0, slots)
        has: tuple[Ints, ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
        gpus, cpu_milli, memory_bytes = (
            np.maximum(0, amount[at] - least) for amount, least in zip(has, there[:3], strict=True)
        )
        return Kept(at, gpus, cpu_milli, memory_bytes, there.guests > 0, there.alone > 0)

    def _where_some_begin(self, slots: int) -> Kept:
        """The same where a promise begins in these slots: on other nodes a share may stay alone on its device."""
        near, kept = self.nearby(), self._kept_in(slots, has_share=False)
        soon = [each for each in self.standing.values() if near.slot(max(self.now_ms, each.start_ms)) < slots]
        mine = np.isin(kept.at, [at for each in soon for stay in each.stays for at in stay.at.tolist()])
        return kept.of(mine)

    def _has_room(self, parts: tuple[Shape, ...], slots: int) -> bool:
        """Whether there are enough nodes for each part by itself, for so many slots."""
        nodes = self.state.nodes
        with nodes.keeping(self._kept_in(slots, has_share=has_share(parts))):
            return all(any(nodes.room(choice) >= part.nodes for choice in part.choices) for part in parts)

    # -- the time after this round -------------------------------------------------------------------------------------

    def nearby(self) -> AvailabilityProfile:
        """Of the nodes that are promised to somebody, at the moments of the promises."""
        if self._near is None:
            self._near = self._seen.near(self.standing.values())
        return self._near

    def _add_near(self, promise: Reservation) -> bool:
        """Lay it down where promises are held against each other, if that has its nodes and its moment."""
        near = self._near
        at = np.concatenate([stay.at for stay in promise.stays])
        if near is None or not near.has(at).all():
            return False
        if max(self.now_ms, promise.start_ms) not in near.edges:
            return False
        for stay in promise.stays:
            near.add(stay)
        return True

    def whole(self) -> AvailabilityProfile:
        """Of all nodes, with all that is promised."""
        if self._profile is None:
            self._profile = self._seen.whole(self.standing.values())
        return self._profile

    def knows_all(self) -> bool:
        """Whether that has all that will be free, from the moment on at which it is."""
        promised = [ms for each in self.standing.values() for ms in (max(self.now_ms, each.start_ms), each.end_ms)]
        return self._seen.has_ends(self.whole(), promised)

    def quota(self) -> QuotaForecast | FlatQuotaForecast | None:
        """What queues may use, with all that is promised; None where no figure binds anybody."""
        if not self._knows_quota:
            self._allowance, self._knows_quota = self._seen.allowance(), True
            if self._allowance is not None:
                for promise in self.standing.values():
                    self._allowance.promise(self._charge(promise))
        return self._allowance

    def _charge(self, promise: Reservation) -> Charge:
        shares, begin_ms = shares_on(promise.gang.shape, promise.nodes), max(self.now_ms, promise.start_ms)
        return self._seen.charge(promise.gang, shares, (begin_ms, promise.end_ms))


def has_share(parts: Iterable[Shape]) -> bool:
    """Whether one of these is to have a share of a device."""
    return any(part.has_share for part in parts)


def by_start(promise: Reservation) -> tuple[int, int]:
    """Where it is in their order."""
    return promise.start_ms, promise.gang.number
