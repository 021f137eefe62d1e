"""Promised starts in one round: which stand, which move, who gets one, and what is kept from everybody else.

Made by `core.round`. A promise is a fact of the state (`Reserve`): a moment, and nodes. A round lays them all down on
the profile of what runs, in their order; that fits, as long as everybody ends by their limit. One that does not fit any
more moves back, for a cause that is recorded; the others move to an earlier moment where there is one. A gang starts
beside them only where each of its nodes has what it needs, and its queue and its user may have it, for as long as its
limit says; without a limit for ever. The real start is placed by `core.place` like any other: the promised nodes are
those on which it is sure to be possible. Source of the rule: conservative backfill (Slurm), with as many reservations
as the policy says: one is EASY, all is conservative.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.allowance import Allowance, Charge
from ganger.core.fit import Ask, ask, placed
from ganger.core.foresight import LINGER_MS, Foresight, Promise
from ganger.core.gang import Gang
from ganger.core.later import placed_from, shares_on, slots
from ganger.core.nodes import Kept
from ganger.core.pooled import Pooled
from ganger.core.profile import Profile
from ganger.core.runtime import NEVER_MS, least_ms, runs_for_ms
from ganger.core.state import Shares, State
from ganger.core.topology import Ints
from ganger.model.decision import Moved, Reserve
from ganger.model.shape import Shape

MOST_MOVED: Final = 8
"""Promises for which one round looks for an earlier moment."""
LARGE: Final = 500
"""Nodes beyond which a round looks at one of them at most, and not every round does."""
TURNS: Final = 8
"""Which ones do: by the number of the newest event."""


class Promises:
    """standing: promises in force, by gang; of_queue: the gangs, by queue; decided: what the round changes of them;
    others_ms: how long others of the kind of a gang that was refused a `start` may stay, at most."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, None]) -> None:
        """Lay down what was promised. `ending`: gangs that end with this round."""
        self.state, self.now_ms = state, now_ms
        self.standing: dict[str, Promise] = {}
        self.of_queue: dict[str, dict[str, Gang]] = {}
        self.decided: dict[str, Reserve] = {}
        self._ending, self._seen = ending, Foresight(state, now_ms, ending)
        self._profile: Profile | None = None
        self._near: Profile | None = None
        self._allowance: Allowance | Pooled | None = None
        self._knows_quota = False
        self.others_ms = NEVER_MS
        self._kept: dict[tuple[int, bool], Kept] = {}
        self._longest: dict[tuple[Shape, ...], tuple[int, int]] = {}
        """What was found of kinds, and how far the journal of the nodes had come by then."""
        self._tried: dict[tuple[object, ...], dict[tuple[int, int], int]] = {}
        """By (nodes, ms) the slots before which gangs have no place, as long as promises are only added."""
        if state.promises:
            self._lay()
            self._move_earlier()

    # -- who may start beside them -----------------------------------------------------------------------------------

    def start(
        self, gang: Gang, wanted: Ask, weaker: Iterable[Promise] = (), *, for_ms: int | None = None
    ) -> Shares | None:
        """Where it may start without being in the way of any promise; its own is not counted, nor are the weaker ones.
        None: nowhere. Asked of a gang that its queue and its user may start. `for_ms`: if it stays for so long only."""
        own = self.standing.get(gang.id)
        wanted = wanted if for_ms is None else wanted.lasting(for_ms)
        with self._lifted([*weaker, *([own] if own else [])]):
            if not self.standing:
                return placed(self.state, wanted)
            stays_ms = self._stays_ms(gang) if for_ms is None else for_ms
            kept = self._kept_until(self.now_ms + stays_ms, gang.shape.parts)
            with self.state.nodes.keeping(kept):
                found = placed(self.state, wanted)
            found = found if found and self._is_beside(kept, wanted.shape, found) else None
            delayed = self._delayed(gang, found, (self.now_ms, self.now_ms + stays_ms)) if found else []
            if for_ms is None and not weaker:
                self.others_ms = self._for_others_ms(stays_ms, delayed)
            return None if delayed else found

    def _is_beside(self, kept: Kept, shape: Shape, shares: Shares) -> bool:
        """Whether each of its devices is there beside what is kept when the others on it have left. Each part is placed
        so; several parts may need more together."""
        if not shape.more or not _has_share(shape.parts):
            return True
        nodes = self.state.nodes
        mine = {(nodes.index[share.node], device): None for share in shares for device in share.devices}
        many = np.bincount([at for at, _ in mine], minlength=len(nodes.nodes))[kept.at]
        return bool((many <= np.maximum(0, nodes.free_gpus[kept.at] - kept.gpus)).all())

    def _for_others_ms(self, stays_ms: int, delayed: list[str]) -> int:
        """How long others of its kind may stay at most, where a gang may not start that stays for so long."""
        if not delayed:
            return stays_ms - 1
        if not isinstance(self._quota(), Pooled):
            return NEVER_MS  # it is for its own queue or its own user that it waits
        return min(self.standing[name].start_ms for name in delayed) - self.now_ms

    def shortened(self, gang: Gang, wanted: Ask) -> tuple[Shares, int] | None:
        """Where a gang may start that could not with all its time, and for how long at most: until the last promise, or
        the last maintenance, before which it can end. None: not even with the least that will do for it."""
        begin_ms, end_ms = self.now_ms + least_ms(gang), self.now_ms + runs_for_ms(gang)
        if begin_ms >= end_ms:
            return None
        moments = [window.from_ms for window in self.state.windows.values()]
        moments += self._nearby().edges.tolist() if self.standing else []
        ends = [begin_ms, *sorted({ms: None for ms in moments if begin_ms < ms < end_ms})]
        found, low, high = self.start(gang, wanted, for_ms=begin_ms - self.now_ms), 0, len(ends)
        while found and high - low > 1:
            middle = (low + high) // 2
            longer = self.start(gang, wanted, for_ms=ends[middle] - self.now_ms)
            found, low, high = (longer, middle, high) if longer else (found, low, middle)
        return (found, ends[low] - self.now_ms) if found else None

    def has_room(self, name: str) -> bool:
        """Whether a node that is promised to a gang has room for one of it now."""
        promise, columns = self.standing[name], self.state.nodes.columns
        choices = [columns.of(choice).times for part in promise.gang.shape.parts for choice in part.choices]
        return any(times[stay.at].any() for stay in promise.stays for times in choices)

    def keep_out(self, gang: Gang) -> bool:
        """Whether they keep a gang that has not run yet from starting now, wherever that were; False: they may, too."""
        if gang.generation or (gang.id in self.standing and self.has_room(gang.id)):
            return False  # its own promise is not in its way, nor are weaker ones
        return least_ms(gang) > self.longest_ms(gang.shape.parts)

    def longest_ms(self, parts: tuple[Shape, ...]) -> int:
        """How long gangs of such parts may stay that start now: one that stays longer would be in the way of a promise
        on any nodes. Quota and levels may say less."""
        as_of = len(self.state.nodes.journal.entries)
        known = self._longest.get(parts)
        if known is not None and known[0] == as_of:
            return known[1]
        near = self._nearby()
        low, high = 0, len(near.edges) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has_room(parts, middle) else (low, middle)
        found = NEVER_MS if low == len(near.edges) else int(near.edges[low]) - self.now_ms
        self._longest[parts] = as_of, found
        return found

    def began(self, name: str, gang: Gang, shares: Shares) -> None:
        """The gang starts in this round; `name`: under which it was promised."""
        own = self.standing.get(name)
        if own is not None:
            self._drop(own)
        self.decided.pop(name, None)
        when = self.now_ms, self.now_ms + runs_for_ms(gang)
        if self._profile is not None:
            for stay in self._seen.stays(gang, shares, when):
                self._profile.add(stay)
        if self._knows_quota and self._allowance is not None:
            self._allowance.begin(self._seen.charge(gang, shares, when))
        if self._near is not None and _has_share(gang.shape.parts):
            self._near = None  # a device is taken once, however many are on it
        elif self._near is not None:
            for stay in self._seen.stays(gang, shares, when):
                self._near.add(replace(stay, at=stay.at[self._near.has(stay.at)]))
        self._kept.clear()
        self._longest.clear()

    def in_the_way_of(self, gang: Gang, shares: Shares) -> tuple[Gang, ...]:
        """Who is promised something that a start on these shares would take, for as long as it must stay; in the order
        of their promises."""
        stays_ms = self._stays_ms(gang) if gang.time_ms is None else least_ms(gang)
        when, there = (self.now_ms, self.now_ms + stays_ms), {share.node: None for share in shares}
        soon = [each for each in self._in_order() if each.start_ms < when[1] and each.gang is not gang]
        delayed = self._delayed(gang, shares, when)
        bars = [each for each in soon if each.gang.id in delayed or any(node in there for node in each.nodes)]
        return tuple(each.gang for each in bars or soon)

    def give_way(self, promise: Promise, cause: Moved) -> None:
        """A gang that is stronger has begun: what it took is promised no more."""
        if promise.gang.id in self.standing and not self._stands(promise):
            self._drop(promise)
            self._renew(promise.gang, promise.told, cause)

    def _stays_ms(self, gang: Gang) -> int:
        """How long a gang that starts is taken to stay. A promise that a prediction has moved back is put at risk by no
        other: who has no limit counts as staying for ever while it stands, but for those whose start is promised."""
        by_guess = gang.time_ms is None and gang.id not in self.state.promises
        if by_guess and any(each.cause is Moved.PREDICTED for each in self.standing.values()):
            return NEVER_MS
        return runs_for_ms(gang)

    # -- who is promised a start -------------------------------------------------------------------------------------

    def reserve(self, gang: Gang) -> bool:
        """Promise it the first moment at which it can start; False where none can be told."""
        found = self._found(gang, Moved.RESERVED)
        if found is None:
            return False
        self._put(found)
        self.decided[gang.id] = found.told
        return True

    def _lay(self) -> None:
        """What was promised, as far as it still can be; the rest for the first moment at which that is possible."""
        gangs, broken = self.state.gangs, list[tuple[Gang, Reserve, Moved]]()
        for fact in sorted(self.state.promises.values(), key=lambda fact: (fact.start_ms, gangs[fact.gang].number)):
            gang = gangs[fact.gang]
            if gang.id in self._ending or fact.start_ms is None:
                continue
            promise = self._promise(gang, fact.start_ms, fact.nodes, fact.cause)
            if promise is None:
                broken.append((gang, fact, Moved.NODE_OUT))
            else:
                self._put(promise)
        order = self._in_order()
        if not self._all_stand() and not all(map(self._stands, order)):
            for promise in order:
                self._drop(promise)
            broken += self._lay_again(order)
        for gang, fact, cause in broken:
            self._renew(gang, fact, cause)

    def _lay_again(self, order: list[Promise]) -> Iterator[tuple[Gang, Reserve, Moved]]:
        """One by one, and which of them cannot be kept. One that is due, and waits for those who are leaving, goes
        before those that come after it: a moment's delay does not put it behind them."""
        is_late = False
        for promise in order:
            self._put(promise)
            if all(map(self._stands, self._in_order())):
                continue
            cause = self._why_broken(promise, is_late=is_late)
            self._drop(promise)
            is_due = cause is Moved.OVERRUN and promise.start_ms <= self.now_ms
            found = self._found(promise.gang, cause, self.now_ms + LINGER_MS + 1) if is_due else None
            if found is None:
                yield promise.gang, promise.told, cause
            else:
                is_late = True
                self._keep(promise.told, found)

    def _renew(self, gang: Gang, fact: Reserve, cause: Moved) -> None:
        found = self._found(gang, cause)
        if found is None:
            self.decided[gang.id] = Reserve(gang=gang.id, start_ms=None, cause=cause)
        else:
            self._keep(fact, found)

    def _keep(self, fact: Reserve, found: Promise) -> None:
        start_ms, gang = fact.start_ms or 0, found.gang
        if found.cause is Moved.OVERRUN and start_ms <= self.now_ms and found.start_ms <= self.now_ms + LINGER_MS:
            found = replace(found, start_ms=start_ms)  # late already: it starts as soon as those in its way are gone
        if found.start_ms < start_ms:
            found = replace(found, cause=Moved.EARLIER)
        self._put(found)
        if found.told != self.state.promises.get(gang.id):
            self.decided[gang.id] = found.told

    def _why_broken(self, promise: Promise, *, is_late: bool) -> Moved:
        """`is_late`: another one is, that goes before it."""
        nodes = self.state.nodes
        if not all(nodes.ready[nodes.index[node]] for node in promise.nodes):
            return Moved.NODE_OUT
        if self._is_maintained(promise):
            return Moved.MAINTENANCE
        if self._is_outlived(promise):
            return Moved.PREDICTED
        if is_late or promise.start_ms <= self.now_ms:
            return Moved.OVERRUN
        return Moved.POLICY_CHANGED if self._fits(promise) else Moved.NODE_OUT

    def _is_outlived(self, promise: Promise) -> bool:
        """Whether somebody is there, or anywhere where it is quota that it lacks, for longer than was predicted."""
        state = self.state
        there = map(state.gangs.__getitem__, state.shares) if self._fits(promise) else state.on_nodes(promise.nodes)
        return any(gang.time_ms is None and gang.expected is not None and gang.expected.outlived for gang in there)

    def _move_earlier(self) -> None:
        """To an earlier moment, where there is one: each in its order; on a large cluster one now and then."""
        order = [each for each in self._in_order() if each.gang.id not in self.decided]
        count, turn = MOST_MOVED, self.state.seq
        if order and len(self.state.nodes.nodes) > LARGE:
            count, turn = int(self.state.seq % TURNS == 0), self.state.seq // TURNS
        begin = turn * count % len(order) if len(order) > count else 0
        for promise in sorted((order[begin:] + order[:begin])[:count], key=_order):
            if promise.start_ms <= self.now_ms:
                continue
            self._drop(promise)
            found = self._found(promise.gang, Moved.EARLIER, promise.start_ms)
            self._put(found or promise)
            if found is not None:
                self.decided[promise.gang.id] = found.told

    # -- finding -----------------------------------------------------------------------------------------------------

    def _found(self, gang: Gang, cause: Moved, before_ms: int = NEVER_MS) -> Promise | None:
        """The first moment after now, and before another, at which the gang could start and stay."""
        if any(part.selector.devices for part in gang.shape.parts):
            return None  # which devices are free when is not kept
        profile, allowance = self._whole(), self._quota()
        wanted, for_ms = ask(gang), runs_for_ms(gang)
        tried = self._tried_of(gang, pooled=isinstance(allowance, Pooled))
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
            if shares is None or self._delayed(gang, shares, (start_ms, end_ms)):
                continue
            nodes = tuple(share.node for share in shares)
            stays = tuple(self._seen.stays(gang, shares, (start_ms, end_ms)))
            tried[size] = slot
            return Promise(gang, start_ms, min(NEVER_MS, end_ms), nodes, cause, stays)
        return None

    def _tried_of(self, gang: Gang, *, pooled: bool) -> dict[tuple[int, int], int]:
        """Of gangs that differ in their nodes and their time alone: what is too early for less is for more."""
        alike = replace(gang.shape, nodes=1), gang.avoids, *(() if pooled else (gang.queue, gang.job.user))
        return self._tried.setdefault(alike, {})

    def _usable(self, wanted: Ask) -> NDArray[np.bool_]:
        nodes = self.state.nodes
        usable: NDArray[np.bool_] = nodes.ready & ~nodes.held
        usable[[nodes.index[name] for name in wanted.avoids if name in nodes.index]] = False
        return usable

    def _open_types(self, allowance: Allowance | Pooled, wanted: Ask, at_ms: int) -> NDArray[np.bool_]:
        """(N,) nodes of types that its queue may have as much of, then."""
        nodes = self.state.nodes
        found: NDArray[np.bool_] = np.ones(len(nodes.nodes), dtype=bool)
        if isinstance(allowance, Pooled):
            return found  # no types have figures
        closed = allowance.at(wanted.user, at_ms).closed_types(wanted.queue, wanted.shape)
        for kind in closed:
            found &= ~nodes.of_type(kind)
        return found

    def _delayed(self, gang: Gang, shares: Shares, when: tuple[int, int]) -> list[str]:
        """Gangs that its quota, or its user's limits, would keep from starting as promised."""
        allowance = self._quota() if self.standing else None
        return [] if allowance is None else allowance.delayed(self._seen.charge(gang, shares, when))

    # -- what is laid down -------------------------------------------------------------------------------------------

    def _promise(self, gang: Gang, start_ms: int, nodes: tuple[str, ...], cause: Moved) -> Promise | None:
        """What was promised, with what it takes; None where one of the nodes is not there."""
        if any(node not in self.state.nodes.index for node in nodes):
            return None
        end_ms = min(NEVER_MS, max(start_ms, self.now_ms) + runs_for_ms(gang))
        stays = tuple(self._seen.stays(gang, shares_on(gang.shape, nodes), (start_ms, end_ms)))
        return Promise(gang, start_ms, end_ms, nodes, cause, stays)

    def _all_stand(self) -> bool:
        """Whether all can be kept, at a look at all of them together; False: each has to be looked at."""
        nodes, allowance = self.state.nodes, self._quota()
        if not self.standing or self.state.windows:
            return not self.standing
        on: dict[Shape, list[Ints]] = {}
        for promise in self.standing.values():
            for stay in promise.stays:
                on.setdefault(stay.part, []).append(stay.at)
        there = {part: np.concatenate(every) for part, every in on.items()}
        ready = all(bool(nodes.ready[at].all() and self._suits(part, at).all()) for part, at in there.items())
        return ready and self._nearby().is_kept() and (allowance is None or not allowance.breaks_any())

    def _stands(self, promise: Promise) -> bool:
        """Whether it can be kept beside the others that are laid down."""
        nodes, allowance = self.state.nodes, self._quota()
        ready = all(bool(nodes.ready[stay.at].all()) for stay in promise.stays) and not self._is_maintained(promise)
        return ready and self._fits(promise) and (allowance is None or not allowance.breaks(promise.gang.id))

    def _is_maintained(self, promise: Promise) -> bool:
        """Whether one of its nodes is not there for all of its time."""
        begin_ms = max(self.now_ms, promise.start_ms)
        end_ms = NEVER_MS if promise.gang.time_ms is None else promise.end_ms
        return bool(self.state.windows) and bool(self.state.windows.meeting(promise.nodes, begin_ms, end_ms))

    def _fits(self, promise: Promise) -> bool:
        """Whether its nodes have what it needs, from its moment on."""
        near, fits = self._nearby(), True
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

    @contextmanager
    def _lifted(self, promises: list[Promise]) -> Iterator[None]:
        """Inside it nothing is kept by them."""
        for promise in promises:
            self._drop(promise)
        try:
            yield
        finally:
            for promise in promises:
                self._put(promise)

    def _put(self, promise: Promise) -> None:
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

    def _drop(self, promise: Promise) -> None:
        del self.standing[promise.gang.id], self.of_queue[promise.gang.queue][promise.gang.id]
        self._tried.clear()
        for profile in filter(None, (self._profile, self._near)):
            for stay in promise.stays:
                profile.add(stay, -1)
        if self._knows_quota and self._allowance is not None:
            self._allowance.withdraw(promise.gang.id)
        self._kept.clear()
        self._longest.clear()

    def _add_near(self, promise: Promise) -> bool:
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

    def _nearby(self) -> Profile:
        if self._near is None:
            self._near = self._seen.near(self.standing.values())
        return self._near

    def _whole(self) -> Profile:
        if self._profile is None:
            self._profile = self._seen.whole(self.standing.values())
        return self._profile

    def _quota(self) -> Allowance | Pooled | None:
        if not self._knows_quota:
            self._allowance, self._knows_quota = self._seen.allowance(), True
            if self._allowance is not None:
                for promise in self.standing.values():
                    self._allowance.promise(self._charge(promise))
        return self._allowance

    def _charge(self, promise: Promise) -> Charge:
        shares, begin_ms = shares_on(promise.gang.shape, promise.nodes), max(self.now_ms, promise.start_ms)
        return self._seen.charge(promise.gang, shares, (begin_ms, promise.end_ms))

    def _in_order(self) -> list[Promise]:
        return sorted(self.standing.values(), key=_order)

    def _kept_until(self, end_ms: int, parts: Iterable[Shape]) -> Kept:
        """What a gang of such parts that ends then must leave."""
        return self._kept_in(max(1, self._nearby().upto(end_ms)), has_share=_has_share(parts))

    def _kept_in(self, slots: int, *, has_share: bool) -> Kept:
        """The same of one that stays for so many slots."""
        kept = self._kept.get((slots, has_share))
        if kept is None:
            kept = self._where_some_begin(slots) if has_share else self._where_any_is_promised(slots)
            self._kept[slots, has_share] = kept
        return kept

    def _where_any_is_promised(self, slots: int) -> Kept:
        near, nodes = self._nearby(), self.state.nodes
        at = near.at
        there = near.window(at, 0, slots)
        has: tuple[Ints, ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
        gpus, cpu_milli, memory_bytes = (
            np.maximum(0, amount[at] - least) for amount, least in zip(has, there[:3], strict=True)
        )
        return Kept(at, gpus, cpu_milli, memory_bytes, there.guests > 0, there.alone > 0)

    def _where_some_begin(self, slots: int) -> Kept:
        """The same where a promise begins in these slots: on other nodes a share may stay alone on its device."""
        near, kept = self._nearby(), self._kept_in(slots, has_share=False)
        soon = [each for each in self.standing.values() if near.slot(max(self.now_ms, each.start_ms)) < slots]
        mine = np.isin(kept.at, [at for each in soon for stay in each.stays for at in stay.at.tolist()])
        return kept.of(mine)

    def _has_room(self, parts: tuple[Shape, ...], slots: int) -> bool:
        """Whether there are enough nodes for each part by itself, for so many slots."""
        nodes = self.state.nodes
        with nodes.keeping(self._kept_in(slots, has_share=_has_share(parts))):
            return all(any(nodes.room(choice) >= part.nodes for choice in part.choices) for part in parts)


def _has_share(parts: Iterable[Shape]) -> bool:
    """Whether one of these is to have a share of a device."""
    return any(part.has_share for part in parts)


def _order(promise: Promise) -> tuple[int, int]:
    return promise.start_ms, promise.gang.number
