"""Reservations in one cycle: which are kept, which move, which gangs get one, and what starts leave for them.

A reservation is a fact of the state (`ReservedStart`): a start and nodes. A cycle puts all of them on the profile of
the running gangs, in their order. That fits as long as all gangs end by their limit. One that does not fit any more is
postponed, for a recorded cause; the others move to an earlier start if there is one.

A gang starts beside them only where each of its nodes has what it needs, and its queue and user may have it, for as
long as its time limit; without a limit for ever. The real start is placed by `core.placement.place` like any other: the
reserved nodes are those on which it is sure to be possible. Source of the rule: conservative backfill (Slurm), with as
many reservations as the policy says: one is EASY, all is conservative.

A cycle goes through them in this order, which is what keeps a reserved start from being lost to a later gang:

1. *Restore* (`_restore`): those of the state that are still feasible, all at once if they are. Else one by one, the
   soonest first, so that a conflict costs the later one of two its place.
2. *Replace* those that are not (`_reserve_again`), after all that can be kept: they get what these leave.
3. *Move earlier* (`_move_earlier`): a few, since each costs a search.
4. *Starts* of the cycle: each takes its own reservation out, and stays beside all others (`find_start`).
5. *Reserve* for gangs that may have one (`reserve`), at the cost of weaker ones, which are postponed (`postpone`).

`changes` has what the cycle decides on each reservation that is not as in the state: after 2 those that broke, after 3
those that moved as well, at the end the new ones too. `new_decisions` leaves out those that came back to where they
were. A gang has at most one entry, the last one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from ganger.core.nodes.node_table import ReservedCapacity
from ganger.core.placement.start_check import StartRequest, place_request, start_request
from ganger.core.queues.quota import Vector
from ganger.core.reservations.capacity_forecast import LATE_MARGIN_MS, FoundStart, Moved, Reservation, movable_for_good
from ganger.core.reservations.earliest_start import candidate_slots, open_types, place_at_slot, usable_nodes_of
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.queue_rotation import is_large_cluster
from ganger.core.reservations.reservation_table import ReservationTable, has_share, start_order
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.decision import ReservationCause, ReservedStart
from ganger.model.job import GangState
from ganger.model.shape import Shape

# The four bounds are of work in one cycle, and of no consequence for what is right: what one cycle leaves, the next one
# does. They were set by the benches `cycle_full` and `cycle_next`.
MAX_MOVES: Final = 8
"""Reservations for which one cycle looks for an earlier start: a search each, in turn over the cycles."""
MAX_MOVABLE: Final = 64
"""Reservations, the soonest, among which a gang may move some: they hold what is free first."""
MAX_TAKEN_OUT: Final = 8
"""Reservations that are taken out of the profiles one by one; for more of them new profiles cost less."""
RELEASES_PER_MOVE: Final = 8
"""On a large cluster, early releases of nodes per reservation that is considered for a move."""


class CycleReservations:
    """The reservations of one cycle.

    Attributes:
        table: All reservations, on the forecast after this cycle.
        changes: Decisions of the cycle about them.
    """

    def __init__(
        self,
        state: State,
        now_ms: int,
        ending: dict[str, int],
        find_movable: Callable[[Gang, Iterable[Reservation]], Moved],
        find_due_ms: Callable[[Gang, Mapping[str, Vector]], int],
    ) -> None:
        """Restore the reservations of the state.

        Args:
            state: The state of the cycle.
            now_ms: Its time.
            ending: Gangs that end with this cycle, with the notice of each in ms.
            find_movable: Returns those of some reservations that a gang may move, and why.
            find_due_ms: Returns from when a gang may have a reservation, with what reservations take, by queue.
        """
        self.state, self.now_ms, self._ending, self._find_movable = state, now_ms, ending, find_movable
        self._find_due_ms = find_due_ms
        self.table = ReservationTable(state, now_ms, ending)
        self.changes: dict[str, ReservedStart] = {}
        if state.reservations:
            self.table.owners = {name: None for name, start in state.reservations.items() if self._is_owner(start)}
            self._restore()
            self._move_earlier()

    @property
    def by_gang(self) -> dict[str, Reservation]:
        """The reservations in force."""
        return self.table.by_gang

    # -- starts beside reservations ------------------------------------------------------------------------------------

    def find_start(
        self, gang: Gang, request: StartRequest, weaker: Iterable[Reservation] = (), *, for_ms: int | None = None
    ) -> FoundStart:
        """Return where a gang may start without delaying a reservation, not counting its own and the weaker ones.

        The gang's queue and user must allow the start. `for_ms` is its stay if it differs from the request's.
        """
        own = self.by_gang.get(gang.id)
        request = request if for_ms is None else request.lasting(for_ms)
        # Three tests, of which each may say no: nodes and their resources (what is kept is withheld from placement),
        # devices of several parts together, and quota and user limits at the reserved starts.
        with self._without([*weaker, *([own] if own else [])]):
            if not self.by_gang:
                return FoundStart(place_request(self.state, request))
            stays_ms = self._assumed_stay_ms(gang) if for_ms is None else for_ms
            kept = self.table.capacity_kept_until(self.now_ms + stays_ms, gang.shape.parts)
            with self.state.nodes.reserving(kept):
                shares = place_request(self.state, request)
            shares = shares if shares and self._leaves_devices(kept, request.shape, shares) else None
            delayed = self.table.gangs_delayed(gang, shares, (self.now_ms, self.now_ms + stays_ms)) if shares else []
            if shares is None or delayed:
                return FoundStart(None, self._max_stay_of_others_ms(stays_ms, delayed))
            return FoundStart(shares)

    def _leaves_devices(self, kept: ReservedCapacity, shape: Shape, shares: Shares) -> bool:
        """Return whether the devices that are kept remain beside a placement of several parts.

        Each part is placed beside what is kept, but several may need too much together.
        """
        if not shape.more or not has_share(shape.parts):
            return True
        nodes = self.state.nodes
        own_devices = {(nodes.index[share.node], device): None for share in shares for device in share.devices}
        counts = np.bincount([index for index, _ in own_devices], minlength=len(nodes.nodes))[kept.at]
        return bool((counts <= np.maximum(0, nodes.free.gpus[kept.at] - kept.gpus)).all())

    def _max_stay_of_others_ms(self, stays_ms: int, delayed: list[str]) -> int:
        """Return the longest stay of others of its kind if a gang with this stay may not start."""
        if not delayed:
            return stays_ms - 1
        if not isinstance(self.table.quota_forecast(), FlatQuotaForecast):
            return NEVER_MS  # it waits for its own queue or user
        return min(self.by_gang[name].start_ms for name in delayed) - self.now_ms

    def find_shortened_start(self, gang: Gang, request: StartRequest) -> tuple[Shares, int] | None:
        """Return where a gang may start with less time than requested, and with how much; None if with none.

        It may stay until the last reserved start or maintenance before which it can end.
        """
        begin_ms, end_ms = self.now_ms + gang.min_run_ms, self.now_ms + gang.runs_for_ms
        if begin_ms >= end_ms:
            return None
        # What is free only shrinks with the length of a stay, and only at these times: the longest one is found by
        # bisection over them, in O(log reservations) placements.
        times_ms = [window.from_ms for window in self.state.maintenance.values()]
        times_ms += self.table.near_profile().edges.tolist() if self.by_gang else []
        ends_ms = [begin_ms, *sorted({ms: None for ms in times_ms if begin_ms < ms < end_ms})]
        shares, low, high = self.find_start(gang, request, for_ms=begin_ms - self.now_ms).shares, 0, len(ends_ms)
        while shares and high - low > 1:
            middle = (low + high) // 2
            longer_shares = self.find_start(gang, request, for_ms=ends_ms[middle] - self.now_ms).shares
            shares, low, high = (longer_shares, middle, high) if longer_shares else (shares, low, middle)
        return (shares, ends_ms[low] - self.now_ms) if shares else None

    def excludes(self, gang: Gang) -> bool:
        """Return whether reservations keep a gang from starting anywhere now, which must not have run yet."""
        if gang.passes_reservations or (gang.id in self.by_gang and self.table.has_room_now(gang.id)):
            return False  # neither its own reservation nor weaker ones are in its way
        return gang.min_run_ms > self.table.max_stay_ms(gang.shape.parts)

    def record_start(self, candidate: str, gang: Gang, shares: Shares) -> None:
        """Record a start; `candidate` is the id of the gang or array that the reservation was made for."""
        own = self.by_gang.get(candidate)
        if own is not None:
            self.table.remove(own)
        self.changes.pop(candidate, None)
        self.table.add_running(gang, shares)

    def gangs_in_the_way(self, gang: Gang, shares: Shares) -> tuple[Gang, ...]:
        """Return the gangs whose reservation a start on these shares would delay, even with its least stay."""
        stays_ms = self._assumed_stay_ms(gang) if gang.time_ms is None else gang.min_run_ms
        interval, nodes = (self.now_ms, self.now_ms + stays_ms), {share.node: None for share in shares}
        before_end = [r for r in self.table.in_start_order() if r.start_ms < interval[1] and r.gang is not gang]
        delayed = self.table.gangs_delayed(gang, shares, interval)
        conflicting = [r for r in before_end if r.gang.id in delayed or any(node in nodes for node in r.nodes)]
        return tuple(reservation.gang for reservation in conflicting or before_end)

    def postpone(self, moved: Moved) -> None:
        """Replace those of some reservations that a start, or another reservation, has made infeasible."""
        if len(moved) > MAX_TAKEN_OUT and self.table.are_all_feasible():
            return
        for reservation, cause in moved:
            if self.by_gang.get(reservation.gang.id) is reservation and not self.table.is_feasible(reservation):
                self.table.remove(reservation)
                self._reserve_again(reservation.gang, reservation.decision, cause)

    def _assumed_stay_ms(self, gang: Gang) -> int:
        """Return how long a gang that starts is assumed to stay.

        A reservation that was postponed by a wrong prediction must not be put at risk by another prediction: while one
        is in force, a gang without a limit and without a reservation counts as staying for ever.
        """
        is_predicted = gang.time_ms is None and gang.id not in self.state.reservations
        if is_predicted and any(
            reservation.cause is ReservationCause.PREDICTED for reservation in self.by_gang.values()
        ):
            return NEVER_MS
        return gang.runs_for_ms

    # -- making and moving reservations --------------------------------------------------------------------------------

    def movable_by(self, gang: Gang) -> Moved:
        """Return the reservations, of the soonest ones, that a gang may move, the soonest first."""
        return self._find_movable(gang, self.table.in_start_order(MAX_MOVABLE))

    def due_ms(self, gang: Gang, replaced: Reservation | None = None) -> int:
        """Return from when a gang may have a reservation, in place of its own and of one other.

        A gang that has run before has had its turn.
        """
        if gang.passes_reservations:
            return self.now_ms
        own = self.by_gang.get(gang.id)
        with self.table.without([other for other in (own, replaced) if other is not None]):
            return self._find_due_ms(gang, self.table.demand_of_queue)

    def reserve(
        self,
        gang: Gang,
        replaced: Reservation | None = None,
        nodes: Collection[str] = (),
        *,
        from_ms: int,
    ) -> bool:
        """Reserve the earliest possible start for a gang, moving others for it; return False if none can be predicted.

        `replaced` is a reservation of another gang that ends for it; it is on `nodes` alone, if any are named, and not
        before `from_ms`.
        """
        weaker, bounds_ms = movable_for_good(self.movable_by(gang)), (from_ms, NEVER_MS)
        cause = ReservationCause.RESERVED
        reservation, moved = self._find_reservation(gang, cause, bounds_ms, weaker=weaker, nodes=nodes)
        if reservation is None:
            return False
        if replaced is not None:
            self.table.remove(replaced)
            self._end(replaced.gang, next(cause for other, cause in weaker if other is replaced))
        self.table.add(reservation)
        self.changes[gang.id] = reservation.decision
        self.postpone(moved)
        return True

    def reserve_beside(
        self, gang: Gang, victims: list[Gang], resized: Sequence[Gang] = (), nodes: Collection[str] = ()
    ) -> bool:
        """Reserve the start of a gang for when its victims have left, which end with this cycle then.

        `resized` are gangs that give up nodes for it, and are in the state as they are then. Return False, with
        everything as it was, if it has to wait for longer. Its own reservation is replaced.
        """
        table, changes, own = self.table, dict(self.changes), self.by_gang.get(gang.id)
        self._ending.update({victim.id: victim.notice_ms for victim in victims})
        notices_ms = [other.attempt.notice_until_ms for other in resized]
        last_ms = max([self._last_notice_ms(), *notices_ms]) + LATE_MARGIN_MS
        self.table = table.reduced([own] if own else [])
        if victims or resized:
            self.table.owners = table.owners | {gang.id: None}
        if self.reserve(gang, nodes=nodes, from_ms=self.now_ms) and self.by_gang[gang.id].start_ms <= last_ms:
            return True
        self.table, self.changes = table, changes
        for victim in victims:
            del self._ending[victim.id]
        return False

    def could_reserve_beside(self, gang: Gang, victims: list[Gang], resized: Sequence[Gang]) -> bool:
        """Return what `reserve_beside` would, with everything as it was."""
        table, changes = self.table, dict(self.changes)
        could = self.reserve_beside(gang, victims, resized)
        if could:
            self.table, self.changes = table, changes
            for victim in victims:
                del self._ending[victim.id]
        return could

    @contextmanager
    def kept_from(self, gang: Gang) -> Iterator[None]:
        """Withhold within the context what belongs to reservations that a gang may not move, free already or not."""
        own, kept = self.by_gang.get(gang.id), None
        weaker = [other for other, _ in movable_for_good(self.movable_by(gang))]
        with self._without([*weaker, *([own] if own else [])]):
            if self.by_gang:
                kept = self.table.capacity_kept_until(self.now_ms + gang.runs_for_ms, gang.shape.parts)
                kept = self.table.kept_with_owned(kept)
        with self.state.nodes.reserving(kept):
            yield

    def is_awaited(self, gang: Gang) -> bool:
        """Return whether a gang has a reservation for when those have left that were stopped for it."""
        own = self.by_gang.get(gang.id)
        return own is not None and own.owned and own.start_ms <= self._last_notice_ms() + LATE_MARGIN_MS

    def is_new(self, gang: Gang) -> bool:
        """Return whether a gang that got capacity starts on it, or has another reservation than before the cycle."""
        own = self.by_gang.get(gang.id)
        return own is None or own.decision != self.state.reservations.get(gang.id)

    def new_decisions(self) -> list[ReservedStart]:
        """Return the decisions of the cycle but those that are in force already."""
        return [change for change in self.changes.values() if change != self.state.reservations.get(change.gang)]

    def _last_notice_ms(self) -> int:
        """Return when the last notice ends of the gangs that are leaving; now if none is."""
        leaving = self.state.timers.in_transition.values()
        ends_ms = [gang.attempt.notice_until_ms for gang in leaving if gang.state in (*LEAVING, GangState.RESIZING)]
        return max([self.now_ms, *ends_ms, *(self.now_ms + notice_ms for notice_ms in self._ending.values())])

    @contextmanager
    def _without(self, reservations: list[Reservation]) -> Iterator[None]:
        """Take reservations out of force for the duration of the context, in which none is added or removed."""
        if len(reservations) <= MAX_TAKEN_OUT:
            with self.table.without(reservations):
                yield
            return
        table, self.table = self.table, self.table.reduced(reservations)
        try:
            yield
        finally:
            self.table = table

    def _end(self, gang: Gang, cause: ReservationCause) -> None:
        """Record the end of a reservation that was taken out; one made in this cycle leaves no trace."""
        self.changes.pop(gang.id, None)
        if gang.id in self.state.reservations:
            self.changes[gang.id] = ReservedStart(gang=gang.id, start_ms=None, cause=cause)

    def _is_owner(self, start: ReservedStart) -> bool:
        """Return whether what others are leaving belongs to a gang: that ends some time after its start was due."""
        return start.owned and start.start_ms is not None and self.now_ms <= start.start_ms + LATE_MARGIN_MS

    def _restore(self) -> None:
        """Restore the state's reservations that are still feasible, and replace the others."""
        gangs, broken = self.state.gangs, list[tuple[Gang, ReservedStart, ReservationCause]]()
        for start in sorted(
            self.state.reservations.values(), key=lambda start: (start.start_ms, gangs[start.gang].number)
        ):
            gang = gangs[start.gang]
            if gang.id in self._ending or start.start_ms is None:
                continue
            if all(node in self.state.nodes.index for node in start.nodes):
                self.table.add(self.table.build(gang, start.start_ms, start.nodes, start.cause))
            else:
                broken.append((gang, start, ReservationCause.NODE_UNAVAILABLE))
        order = self.table.in_start_order()
        if not self.table.are_all_feasible() and not all(map(self.table.is_feasible, order)):
            for reservation in order:
                self.table.remove(reservation)
            broken += self._restore_one_by_one(order)
        for gang, start, cause in broken:
            self._reserve_again(gang, start, cause)

    def _restore_one_by_one(self, order: list[Reservation]) -> Iterator[tuple[Gang, ReservedStart, ReservationCause]]:
        """Add reservations one by one, yielding those that cannot be kept.

        One that is due, and waits for gangs that are leaving, keeps its place: a short delay does not put it behind
        later ones.
        """
        is_late = False
        for reservation in order:
            self.table.add(reservation)
            if all(map(self.table.is_feasible, self.table.in_start_order())):
                continue
            cause = self._postponement_cause(reservation, is_late=is_late)
            self.table.remove(reservation)
            is_due = cause is ReservationCause.OVERRUN and reservation.start_ms <= self.now_ms
            before_ms = self.now_ms + LATE_MARGIN_MS + 1
            soon = self._find_beside_others(reservation.gang, cause, (self.now_ms, before_ms)) if is_due else None
            if soon is None:
                yield reservation.gang, reservation.decision, cause
            else:
                is_late = True
                self._replace(reservation.decision, soon)

    def _reserve_again(self, gang: Gang, old_start: ReservedStart, cause: ReservationCause) -> None:
        # It keeps what it was given, but what is free sooner by chance is for the queues that are due.
        from_ms = min(old_start.start_ms or 0, self.due_ms(gang))
        reservation = self._find_beside_others(gang, cause, (from_ms, NEVER_MS))
        if reservation is None:
            self.changes[gang.id] = ReservedStart(gang=gang.id, start_ms=None, cause=cause)
            return
        if reservation.owned and reservation.start_ms > (old_start.start_ms or 0) + LATE_MARGIN_MS:
            # It does not wait for those that were stopped for it any more.
            self.table.owners = {name: None for name in self.table.owners if name != gang.id}
            reservation = replace(reservation, owned=False)
        self._replace(old_start, reservation)

    def _replace(self, old_start: ReservedStart, reservation: Reservation) -> None:
        start_ms, gang = old_start.start_ms or 0, reservation.gang
        is_soon = start_ms <= self.now_ms and reservation.start_ms <= self.now_ms + LATE_MARGIN_MS
        is_overdue = reservation.cause is ReservationCause.OVERRUN and is_soon
        if is_overdue and place_request(self.state, start_request(gang)) is None:
            # It starts as soon as the gangs in its way are gone, so its nodes are kept for it from now on. Not for one
            # with only other reservations in its way: each would wait for the start of the other one, for ever.
            stays = tuple(replace(stay, begin_ms=start_ms) for stay in reservation.stays)
            reservation = replace(reservation, start_ms=start_ms, stays=stays)
        if reservation.start_ms < start_ms:
            reservation = replace(reservation, cause=ReservationCause.EARLIER)
        self.table.add(reservation)
        if reservation.decision != self.state.reservations.get(gang.id):
            self.changes[gang.id] = reservation.decision

    def _postponement_cause(self, reservation: Reservation, *, is_late: bool) -> ReservationCause:
        """Return why a reservation cannot be kept; `is_late` if one that precedes it is late."""
        nodes = self.state.nodes
        if not all(nodes.ready[nodes.index[node]] for node in reservation.nodes):
            return ReservationCause.NODE_UNAVAILABLE
        if self.table.meets_maintenance(reservation):
            return ReservationCause.MAINTENANCE
        if self._is_prediction_outlived(reservation):
            return ReservationCause.PREDICTED
        if is_late or reservation.start_ms <= self.now_ms:
            return ReservationCause.OVERRUN
        return (
            ReservationCause.POLICY_CHANGED
            if self.table.has_capacity(reservation)
            else ReservationCause.NODE_UNAVAILABLE
        )

    def _is_prediction_outlived(self, reservation: Reservation) -> bool:
        """Return whether a gang in the way of a reservation has run for longer than predicted."""
        state, lacks_quota = self.state, self.table.has_capacity(reservation)
        gangs = map(state.gangs.__getitem__, state.allocations) if lacks_quota else state.on_nodes(reservation.nodes)
        return any(gang.time_ms is None and gang.expected is not None and gang.expected.outlived for gang in gangs)

    def _move_earlier(self) -> None:
        """Move reservations to an earlier start where there is one, each in its order."""
        order = [reservation for reservation in self.table.in_start_order() if reservation.gang.id not in self.changes]
        may_cache = not (self._ending or self.state.maintenance or self.state.undo.in_trial)
        checked_ms = self.state.reservations.earliest_checked_ms
        for reservation in self._candidates_to_move(order):
            if reservation.start_ms <= self.now_ms or self.is_awaited(reservation.gang):
                continue  # what others leave for it is kept for it
            name = reservation.gang.id
            if self.by_gang.get(name) is not reservation:
                continue  # one before it has moved it
            weaker, due_ms = movable_for_good(self.movable_by(reservation.gang)), self.now_ms
            # What an earlier cycle has found holds until something is free sooner than it knew: a reservation that was
            # moved in this one has left its nodes for later ones.
            is_known = may_cache and not self.changes and checked_ms.get(name, NEVER_MS) <= self.now_ms
            is_earliest = not weaker and is_known
            if is_earliest or (due_ms := self.due_ms(reservation.gang)) >= reservation.start_ms:
                self.by_gang[name] = self.by_gang.pop(name)  # to the end, like those that are searched for
                continue
            self.table.remove(reservation)
            cause, bounds_ms = ReservationCause.EARLIER, (due_ms, reservation.start_ms)
            earlier, moved = self._find_reservation(reservation.gang, cause, bounds_ms, weaker=weaker)
            if may_cache and earlier is None and self._is_earliest(reservation):
                checked_ms[name] = self.now_ms
            self.table.add(earlier or reservation)
            if earlier is not None:
                self.changes[reservation.gang.id] = earlier.decision
                self.postpone(moved)

    def _candidates_to_move(self, order: list[Reservation]) -> list[Reservation]:
        """Return the reservations that this cycle tries to move earlier, in order.

        Others come next whenever something was free sooner than known, since only that makes an earlier start possible;
        on a large cluster one, and none after most releases.
        """
        position, count = self.state.reservations.early_releases, MAX_MOVES
        if is_large_cluster(self.state):
            position, remainder = divmod(position, RELEASES_PER_MOVE)
            count = int(remainder == 0)
        begin = position * count % len(order) if len(order) > count else 0
        return sorted((order[begin:] + order[:begin])[:count], key=start_order)

    def _is_earliest(self, reservation: Reservation) -> bool:
        """Return whether until a removed reservation's start too few nodes have room.

        There remain too few as long as nothing is freed sooner than known now.
        """
        profile, request, for_ms = (
            self.table.full_profile(),
            start_request(reservation.gang),
            reservation.gang.runs_for_ms,
        )
        slots = candidate_slots(
            profile, request, for_ms, usable_nodes_of(self.state, request), profile.slot_at(self.now_ms)
        )
        first_ms = next((int(profile.edges[slot]) for slot in slots), NEVER_MS)
        return first_ms >= reservation.start_ms and self.table.is_profile_exact()

    def end_all(self) -> None:
        """End the standing reservations under a policy that allows none."""
        for reservation in self.table.in_start_order():
            self.table.remove(reservation)
        ended = self.state.reservations.keys() - self._ending.keys()
        cause = ReservationCause.POLICY_CHANGED
        self.changes = {name: ReservedStart(gang=name, start_ms=None, cause=cause) for name in sorted(ended)}

    # -- searching -----------------------------------------------------------------------------------------------------

    def _find_reservation(
        self,
        gang: Gang,
        cause: ReservationCause,
        bounds_ms: tuple[int, int],
        *,
        weaker: Moved = (),
        nodes: Collection[str] = (),
    ) -> tuple[Reservation | None, Moved]:
        """Return the first reservation for a gang from a time until before another, and those at whose cost it is."""
        from_ms, before_ms = bounds_ms
        beside_all = self._find_beside_others(gang, cause, bounds_ms, nodes)
        if beside_all is not None:
            # Only those that begin before its end can keep it from an earlier start.
            weaker = [moved for moved in weaker if moved[0].start_ms < beside_all.end_ms]
            before_ms = beside_all.start_ms
        if not weaker:
            return beside_all, ()
        with self._without([other for other, _ in weaker]):
            earlier = self._find_beside_others(gang, cause, (from_ms, before_ms), nodes)
        return (beside_all, ()) if earlier is None else (earlier, weaker)

    def _find_beside_others(
        self, gang: Gang, cause: ReservationCause, bounds_ms: tuple[int, int], nodes: Collection[str] = ()
    ) -> Reservation | None:
        """Return the first reservation after now, from a time until before another, at which a gang could stay.

        A slot that was too early for fewer nodes or a shorter stay is too early for more, so the search begins after
        the last such slot. On an exact profile slots are inserted, which would shift what is remembered.
        """
        if any(part.selector.devices for part in gang.shape.parts):
            return None  # the forecast does not tell which devices are free
        from_ms, before_ms = bounds_ms
        if from_ms >= NEVER_MS:
            return None
        # Slots rise, and the first that passes every test is the earliest start: nodes that satisfy the demand by
        # number, quota, nodes that satisfy it in the layout that is asked for, and the reserved starts of others.
        profile, quota = self.table.full_profile(), self.table.quota_forecast()
        request, for_ms = start_request(gang), gang.runs_for_ms
        first_slot = max(profile.slot_at(self.now_ms) + 1, profile.slot_at(from_ms))
        if nodes:
            others = (name for name in self.state.nodes.index if name not in nodes)
            request = replace(request, avoids=(*request.avoids, *others))
        is_flat = isinstance(quota, FlatQuotaForecast)
        tried_slots = {} if nodes else self._slots_tried(gang, first_slot, is_flat=is_flat)
        size = gang.shape.nodes, for_ms
        known = () if profile.is_exact else tried_slots.items()
        too_early = [slot for (nodes, ms), slot in known if nodes <= size[0] and ms <= for_ms]
        usable_nodes = usable_nodes_of(self.state, request)
        for slot in candidate_slots(profile, request, for_ms, usable_nodes, max(first_slot, *too_early, 0)):
            start_ms = int(profile.edges[slot])
            if start_ms >= before_ms:
                return None
            usable, end_ms = usable_nodes.copy(), start_ms + for_ms
            if self.state.maintenance and gang.time_ms is None:  # a prediction is not enough for maintenance
                usable[self.state.maintenance.unavailable(self.state.nodes, NEVER_MS, start_ms)] = False
            if quota is not None:
                if quota.bars(request, start_ms):
                    continue
                usable &= open_types(self.state, quota, request, start_ms)
            shares = place_at_slot(self.state, profile, request, (slot, for_ms), usable)
            if shares is None or self.table.gangs_delayed(gang, shares, (start_ms, end_ms)):
                continue
            tried_slots[size] = slot
            return self.table.build(gang, start_ms, tuple(share.node for share in shares), cause)
        return None

    def _slots_tried(self, gang: Gang, first_slot: int, *, is_flat: bool) -> dict[tuple[int, int], int]:
        """Return the tried slots, from one on, of gangs that differ in nodes and time alone, by (nodes, ms)."""
        key = replace(gang.shape, nodes=1), gang.avoids, first_slot, *(() if is_flat else (gang.queue, gang.job.user))
        return self.table.tried_slots.setdefault(key, {})
