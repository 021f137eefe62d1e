"""Promised starts in one round: which stand, which move, who gets one, and what is kept from everybody else.

Made by `core.cycle.cycle`. A promise is a fact of the state (`ReservedStart`): a moment, and nodes. A round lays them
all down on the profile of what runs, in their order; that fits, as long as everybody ends by their limit. One that does
not fit any more moves back, for a cause that is recorded; the others move to an earlier moment where there is one. A
gang starts beside them only where each of its nodes has what it needs, and its queue and its user may have it, for as
long as its limit says; without a limit for ever. The real start is placed by `core.placement.place` like any other: the
promised nodes are those on which it is sure to be possible. Source of the rule: conservative backfill (Slurm), with as
many reservations as the policy says: one is EASY, all is conservative."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_table import Kept
from ganger.core.placement.start_check import StartRequest, ask, placed
from ganger.core.reservations.capacity_forecast import LINGER_MS, Reservation
from ganger.core.reservations.earliest_start import placed_from, slots
from ganger.core.reservations.flat_quota_forecast import FlatQuotaForecast
from ganger.core.reservations.queue_rotation import is_large_cluster
from ganger.core.reservations.quota_forecast import QuotaForecast
from ganger.core.reservations.reservation_table import ReservationTable, by_start, has_share
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.decision import Moved, ReservedStart
from ganger.model.shape import Shape

MOST_MOVED: Final = 8
"""Promises for which one round looks for an earlier moment."""
RELEASES_A_MOVE: Final = 8
"""On a large cluster, early releases of nodes after which a round looks for one."""


class CycleReservations:
    """laid: all that is promised, on the time after this round; standing: promises in force, by gang; decided: what the
    round changes of them; others_ms: how long others of the kind of a gang that was refused a `start` may stay, at
    most."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, None]) -> None:
        """Lay down what was promised. `ending`: gangs that end with this round."""
        self.state, self.now_ms, self._ending = state, now_ms, ending
        self.laid = ReservationTable(state, now_ms, ending)
        self.standing = self.laid.standing
        self.decided: dict[str, ReservedStart] = {}
        self.others_ms = NEVER_MS
        if state.promises:
            self._lay()
            self._move_earlier()

    # -- who may start beside them -----------------------------------------------------------------------------------

    def start(
        self, gang: Gang, wanted: StartRequest, weaker: Iterable[Reservation] = (), *, for_ms: int | None = None
    ) -> Shares | None:
        """Where it may start without being in the way of any promise; its own is not counted, nor are the weaker ones.
        None: nowhere. Asked of a gang that its queue and its user may start. `for_ms`: if it stays for so long only."""
        own = self.standing.get(gang.id)
        wanted = wanted if for_ms is None else wanted.lasting(for_ms)
        with self.laid.lifted([*weaker, *([own] if own else [])]):
            if not self.standing:
                return placed(self.state, wanted)
            stays_ms = self._stays_ms(gang) if for_ms is None else for_ms
            kept = self.laid.kept_until(self.now_ms + stays_ms, gang.shape.parts)
            with self.state.nodes.keeping(kept):
                found = placed(self.state, wanted)
            found = found if found and self._is_beside(kept, wanted.shape, found) else None
            delayed = self.laid.delayed(gang, found, (self.now_ms, self.now_ms + stays_ms)) if found else []
            if for_ms is None and not weaker:
                self.others_ms = self._for_others_ms(stays_ms, delayed)
            return None if delayed else found

    def _is_beside(self, kept: Kept, shape: Shape, shares: Shares) -> bool:
        """Whether each of its devices is there beside what is kept when the others on it have left. Each part is placed
        so; several parts may need more together."""
        if not shape.more or not has_share(shape.parts):
            return True
        nodes = self.state.nodes
        mine = {(nodes.index[share.node], device): None for share in shares for device in share.devices}
        many = np.bincount([at for at, _ in mine], minlength=len(nodes.nodes))[kept.at]
        return bool((many <= np.maximum(0, nodes.free_gpus[kept.at] - kept.gpus)).all())

    def _for_others_ms(self, stays_ms: int, delayed: list[str]) -> int:
        """How long others of its kind may stay at most, where a gang may not start that stays for so long."""
        if not delayed:
            return stays_ms - 1
        if not isinstance(self.laid.quota(), FlatQuotaForecast):
            return NEVER_MS  # it is for its own queue or its own user that it waits
        return min(self.standing[name].start_ms for name in delayed) - self.now_ms

    def shortened(self, gang: Gang, wanted: StartRequest) -> tuple[Shares, int] | None:
        """Where a gang may start that could not with all its time, and for how long at most: until the last promise, or
        the last maintenance, before which it can end. None: not even with the least that will do for it."""
        begin_ms, end_ms = self.now_ms + gang.least_ms, self.now_ms + gang.runs_for_ms
        if begin_ms >= end_ms:
            return None
        moments = [window.from_ms for window in self.state.windows.values()]
        moments += self.laid.nearby().edges.tolist() if self.standing else []
        ends = [begin_ms, *sorted({ms: None for ms in moments if begin_ms < ms < end_ms})]
        found, low, high = self.start(gang, wanted, for_ms=begin_ms - self.now_ms), 0, len(ends)
        while found and high - low > 1:
            middle = (low + high) // 2
            longer = self.start(gang, wanted, for_ms=ends[middle] - self.now_ms)
            found, low, high = (longer, middle, high) if longer else (found, low, middle)
        return (found, ends[low] - self.now_ms) if found else None

    def keep_out(self, gang: Gang) -> bool:
        """Whether they keep a gang that has not run yet from starting now, wherever that were; False: they may, too."""
        if gang.passes_reservations or (gang.id in self.standing and self.laid.has_room(gang.id)):
            return False  # its own promise is not in its way, nor are weaker ones
        return gang.least_ms > self.laid.longest_ms(gang.shape.parts)

    def began(self, name: str, gang: Gang, shares: Shares) -> None:
        """The gang starts in this round; `name`: under which it was promised."""
        own = self.standing.get(name)
        if own is not None:
            self.laid.drop(own)
        self.decided.pop(name, None)
        self.laid.begin(gang, shares)

    def in_the_way_of(self, gang: Gang, shares: Shares) -> tuple[Gang, ...]:
        """Who is promised something that a start on these shares would take, for as long as it must stay; in the order
        of their promises."""
        stays_ms = self._stays_ms(gang) if gang.time_ms is None else gang.least_ms
        when, there = (self.now_ms, self.now_ms + stays_ms), {share.node: None for share in shares}
        soon = [each for each in self.laid.in_order() if each.start_ms < when[1] and each.gang is not gang]
        delayed = self.laid.delayed(gang, shares, when)
        bars = [each for each in soon if each.gang.id in delayed or any(node in there for node in each.nodes)]
        return tuple(each.gang for each in bars or soon)

    def give_way(self, promise: Reservation, cause: Moved) -> None:
        """A gang that is stronger has begun: what it took is promised no more."""
        if promise.gang.id in self.standing and not self.laid.stands(promise):
            self.laid.drop(promise)
            self._renew(promise.gang, promise.told, cause)

    def _stays_ms(self, gang: Gang) -> int:
        """How long a gang that starts is taken to stay. A promise that a prediction has moved back is put at risk by no
        other: who has no limit counts as staying for ever while it stands, but for those whose start is promised."""
        by_guess = gang.time_ms is None and gang.id not in self.state.promises
        if by_guess and any(each.cause is Moved.PREDICTED for each in self.standing.values()):
            return NEVER_MS
        return gang.runs_for_ms

    # -- who is promised a start -------------------------------------------------------------------------------------

    def reserve(self, gang: Gang) -> bool:
        """Promise it the first moment at which it can start; False where none can be told."""
        found = self._found(gang, Moved.RESERVED)
        if found is None:
            return False
        self.laid.put(found)
        self.decided[gang.id] = found.told
        return True

    def _lay(self) -> None:
        """What was promised, as far as it still can be; the rest for the first moment at which that is possible."""
        gangs, broken = self.state.gangs, list[tuple[Gang, ReservedStart, Moved]]()
        for fact in sorted(self.state.promises.values(), key=lambda fact: (fact.start_ms, gangs[fact.gang].number)):
            gang = gangs[fact.gang]
            if gang.id in self._ending or fact.start_ms is None:
                continue
            if all(node in self.state.nodes.index for node in fact.nodes):
                self.laid.put(self.laid.promise(gang, fact.start_ms, fact.nodes, fact.cause))
            else:
                broken.append((gang, fact, Moved.NODE_OUT))
        order = self.laid.in_order()
        if not self.laid.all_stand() and not all(map(self.laid.stands, order)):
            for promise in order:
                self.laid.drop(promise)
            broken += self._lay_again(order)
        for gang, fact, cause in broken:
            self._renew(gang, fact, cause)

    def _lay_again(self, order: list[Reservation]) -> Iterator[tuple[Gang, ReservedStart, Moved]]:
        """One by one, and which of them cannot be kept. One that is due, and waits for those who are leaving, goes
        before those that come after it: a moment's delay does not put it behind them."""
        is_late = False
        for promise in order:
            self.laid.put(promise)
            if all(map(self.laid.stands, self.laid.in_order())):
                continue
            cause = self._why_broken(promise, is_late=is_late)
            self.laid.drop(promise)
            is_due = cause is Moved.OVERRUN and promise.start_ms <= self.now_ms
            found = self._found(promise.gang, cause, self.now_ms + LINGER_MS + 1) if is_due else None
            if found is None:
                yield promise.gang, promise.told, cause
            else:
                is_late = True
                self._keep(promise.told, found)

    def _renew(self, gang: Gang, fact: ReservedStart, cause: Moved) -> None:
        found = self._found(gang, cause)
        if found is None:
            self.decided[gang.id] = ReservedStart(gang=gang.id, start_ms=None, cause=cause)
        else:
            self._keep(fact, found)

    def _keep(self, fact: ReservedStart, found: Reservation) -> None:
        start_ms, gang = fact.start_ms or 0, found.gang
        if found.cause is Moved.OVERRUN and start_ms <= self.now_ms and found.start_ms <= self.now_ms + LINGER_MS:
            found = replace(found, start_ms=start_ms)  # late already: it starts as soon as those in its way are gone
        if found.start_ms < start_ms:
            found = replace(found, cause=Moved.EARLIER)
        self.laid.put(found)
        if found.told != self.state.promises.get(gang.id):
            self.decided[gang.id] = found.told

    def _why_broken(self, promise: Reservation, *, is_late: bool) -> Moved:
        """`is_late`: another one is, that goes before it."""
        nodes = self.state.nodes
        if not all(nodes.ready[nodes.index[node]] for node in promise.nodes):
            return Moved.NODE_OUT
        if self.laid.is_maintained(promise):
            return Moved.MAINTENANCE
        if self._is_outlived(promise):
            return Moved.PREDICTED
        if is_late or promise.start_ms <= self.now_ms:
            return Moved.OVERRUN
        return Moved.POLICY_CHANGED if self.laid.fits(promise) else Moved.NODE_OUT

    def _is_outlived(self, promise: Reservation) -> bool:
        """Whether somebody is there, or anywhere where it is quota that it lacks, for longer than was predicted."""
        state = self.state
        there = map(state.gangs.__getitem__, state.shares) if self.laid.fits(promise) else state.on_nodes(promise.nodes)
        return any(gang.time_ms is None and gang.expected is not None and gang.expected.outlived for gang in there)

    def _move_earlier(self) -> None:
        """To an earlier moment, where there is one: each in its order."""
        order = [each for each in self.laid.in_order() if each.gang.id not in self.decided]
        may_know = not (self._ending or self.state.windows or self.state.undo.is_trying)
        for promise in self._in_turn(order):
            if promise.start_ms <= self.now_ms:
                continue
            name = promise.gang.id
            if may_know and self.state.soonest.get(name, NEVER_MS) <= self.now_ms:
                self.standing[name] = self.standing.pop(name)  # in turn, as those that are looked at
                continue
            self.laid.drop(promise)
            found = self._found(promise.gang, Moved.EARLIER, promise.start_ms)
            if may_know and found is None and self._has_none_before(promise):
                self.state.soonest[name] = self.now_ms
            self.laid.put(found or promise)
            if found is not None:
                self.decided[promise.gang.id] = found.told

    def _in_turn(self, order: list[Reservation]) -> list[Reservation]:
        """Return those that this round tries to move earlier, in order: others whenever something was free sooner than
        was known, since only that makes an earlier moment; on a large cluster one, and none after most releases."""
        turn, count = self.state.early_releases, MOST_MOVED
        if is_large_cluster(self.state):
            turn, rest = divmod(turn, RELEASES_A_MOVE)
            count = int(rest == 0)
        begin = turn * count % len(order) if len(order) > count else 0
        return sorted((order[begin:] + order[:begin])[:count], key=by_start)

    def _has_none_before(self, promise: Reservation) -> bool:
        """Whether until a promise, which is not laid down, too few nodes have room: then there are too few as long as
        nothing is freed sooner than is known now."""
        profile, wanted = self.laid.whole(), ask(promise.gang)
        able = slots(profile, wanted, promise.gang.runs_for_ms, self._usable(wanted), profile.slot(self.now_ms))
        first = next(able, None)
        return (first is None or int(profile.edges[first]) >= promise.start_ms) and self.laid.knows_all()

    # -- finding -----------------------------------------------------------------------------------------------------

    def _found(self, gang: Gang, cause: Moved, before_ms: int = NEVER_MS) -> Reservation | None:
        """The first moment after now, and before another, at which the gang could start and stay."""
        if any(part.selector.devices for part in gang.shape.parts):
            return None  # which devices are free when is not kept
        profile, allowance = self.laid.whole(), self.laid.quota()
        wanted, for_ms = ask(gang), gang.runs_for_ms
        tried = self._tried_of(gang, pooled=isinstance(allowance, FlatQuotaForecast))
        size = gang.shape.nodes, for_ms
        known = [] if profile.exact else [at for (nodes, ms), at in tried.items() if nodes <= size[0] and ms <= for_ms]
        first, at_all = max(profile.slot(self.now_ms) + 1, *known, 0), self._usable(wanted)
        for slot in slots(profile, wanted, for_ms, at_all, first):
            start_ms = int(profile.edges[slot])
            if start_ms >= before_ms:
                return None
            usable, end_ms = at_all.copy(), start_ms + for_ms
            if self.state.windows and gang.time_ms is None:  # what is predicted is not enough for maintenance
                usable[self.state.windows.away(self.state.nodes, NEVER_MS, start_ms)] = False
            if allowance is not None:
                if allowance.bars(wanted, start_ms):
                    continue
                usable &= self._open_types(allowance, wanted, start_ms)
            shares = placed_from(self.state, profile, wanted, (slot, for_ms), usable)
            if shares is None or self.laid.delayed(gang, shares, (start_ms, end_ms)):
                continue
            tried[size] = slot
            return self.laid.promise(gang, start_ms, tuple(share.node for share in shares), cause)
        return None

    def _tried_of(self, gang: Gang, *, pooled: bool) -> dict[tuple[int, int], int]:
        """Of gangs that differ in their nodes and their time alone: what is too early for less is for more."""
        alike = replace(gang.shape, nodes=1), gang.avoids, *(() if pooled else (gang.queue, gang.job.user))
        return self.laid.tried.setdefault(alike, {})

    def _usable(self, wanted: StartRequest) -> NDArray[np.bool_]:
        nodes = self.state.nodes
        usable: NDArray[np.bool_] = nodes.ready & ~nodes.held
        usable[[nodes.index[name] for name in wanted.avoids if name in nodes.index]] = False
        return usable

    def _open_types(
        self, allowance: QuotaForecast | FlatQuotaForecast, wanted: StartRequest, at_ms: int
    ) -> NDArray[np.bool_]:
        """(N,) nodes of types that its queue may have as much of, then."""
        nodes = self.state.nodes
        found: NDArray[np.bool_] = np.ones(len(nodes.nodes), dtype=bool)
        if isinstance(allowance, FlatQuotaForecast):
            return found  # no types have figures
        closed = allowance.at(wanted.user, at_ms).closed_types(wanted.queue, wanted.shape)
        for kind in closed:
            found &= ~nodes.of_type(kind)
        return found
