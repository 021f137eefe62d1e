"""One round as it goes: what it is about, and what is kept for gangs that cannot start yet from those after them.

Made by `core.cycle.plan`, handed to `core.cycle.preemption` and `core.cycle.pending_reasons`. A gang that starves, or
is the head of its queue, is promised a start (`core.reservations.reservations`). Where no moment can be told, since
somebody in the way has no limit, and for one that others are stopped for, room is kept as long as the round lasts: a
gang keeps what it would use of each limit it is within, and of the one that binds whatever there is: its owner's
allowance, then quota, then nodes. So what ends goes to it, and nobody is kept from what it cannot use yet. That it owns
the room from the moment of the decision is HiveD's idea (reference: scheduling, section 2). A promise goes before room
that is kept."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ganger.core.nodes.fragmentation import kinds_of
from ganger.core.placement.start_check import StartRequest, ask, barred, fit, is_maintained, where
from ganger.core.queue_order.policy_interface import Policy, large_after_ms, reservations, starves_after_ms
from ganger.core.queues.quota import Vector, need
from ganger.core.reservations.capacity_forecast import Reservation
from ganger.core.reservations.earliest_start import earliest
from ganger.core.reservations.queue_rotation import QueueRotation, is_large_cluster
from ganger.core.reservations.reservations import CycleReservations
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.decision import Moved
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.policy import FRAGMENTATION
from ganger.model.shape import Shape

CURABLE: Final = (
    ReasonCode.USER_GPUS,
    ReasonCode.USER_JOBS,
    ReasonCode.USER_NODE_TIME,
    ReasonCode.OVER_QUOTA,
    ReasonCode.NO_CAPACITY,
    ReasonCode.MAINTENANCE,
    ReasonCode.HELD,
)
"""Reasons that end when other gangs do, or maintenance."""
MOST_CLAIMS: Final = 20
"""For how many gangs room is kept at a time; for the others when these have started."""
MOST_IN_QUEUE: Final = 5
"""Of these, how many of one queue."""
HEADS_TRIED: Final = 3
"""For how many gangs of a queue that has no promise a round looks for one; and for how many large ones."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Room kept for a gang: its owner's allowance, that much of each resource of its queue, these nodes."""

    gang: Gang
    quota: Vector
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Cycle:
    """state (inside a trial), now_ms, policy: what is planned; ending: gangs that the round stops, for whatever reason;
    victims: those of them that give way to another; begun: gangs that it starts; elements: how many of each array;
    granted: the time limits of gangs that start with less than they ask for, by the gang whose turn it is; claims: room
    kept, by gang; promises: starts that are promised; tried: gangs of each queue, large and others, that no start could
    be promised to; next_ones: how many of each queue starve, and are promised one when others of it have started;
    pushed: promises that do not keep a gang from starting that has run before, by that gang; nobody_gives_way: of those
    that run none comes after whoever was tried last, nor after those that are tried later, and none is leaving;
    rotation: on a large cluster, the queue whose first gang may be given a reservation."""

    state: State
    now_ms: int
    policy: Policy
    ending: dict[str, None] = field(default_factory=dict)
    victims: list[Gang] = field(default_factory=list)
    begun: dict[str, Gang] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    granted: dict[str, int] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    tried: dict[tuple[str, bool], int] = field(default_factory=dict)
    pushed: dict[str, list[Reservation]] = field(default_factory=dict)
    next_ones: dict[str, int] = field(default_factory=dict)
    nobody_gives_way: bool = False
    promises: CycleReservations = field(init=False)
    rotation: QueueRotation | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.state.rules.gpu_shares.score == FRAGMENTATION:
            self.state.nodes.set_kinds(kinds_of(_live_shapes(self.state)))
        self.promises = CycleReservations(self.state, self.now_ms, self.ending)
        if is_large_cluster(self.state) and reservations(self.policy, self.state.rules) is not None:
            lines = self.state.lines(self.policy)
            self.rotation = QueueRotation(self.state, lines, self._awaits_reservation, self._may_be_next)

    # -- who starts --------------------------------------------------------------------------------------------------

    def start(self, gang: Gang) -> Shares | ReasonCode:
        """Where it starts, or what binds: its own limits, the nodes, or what is kept for others. With how much time is
        in `granted`, where it is less than the gang asks for."""
        self.granted.pop(gang.id, None)
        self.pushed.pop(gang.id, None)
        if gang.id in self.promises.standing:
            with self._lifted(list(self.claims.values())):
                return self._start(gang)
        return self._start(gang)

    def _start(self, gang: Gang) -> Shares | ReasonCode:
        wanted = ask(gang)
        why = barred(self.state, wanted)
        if why is not None:
            return why
        found = self.promises.start(gang, wanted)
        if found:
            # Without the node on which it failed again and again, if it can.
            shy = replace(wanted, avoids=(*wanted.avoids, *gang.shuns))
            return (self.promises.start(gang, shy) if gang.shuns else None) or found
        if not (self.promises.standing or self.state.windows) or not where(self.state, wanted.at_least):
            return ReasonCode.MAINTENANCE if is_maintained(self.state, wanted.at_least) else ReasonCode.NO_CAPACITY
        weaker = self._weaker(gang)
        found = self.promises.start(gang, wanted, weaker) if weaker else None
        if found:
            # Noted now: when it has begun, what it uses may put it behind them.
            self.pushed[gang.id] = weaker
        return found or self._shortened(gang, wanted) or ReasonCode.HELD

    def _shortened(self, gang: Gang, wanted: StartRequest) -> Shares | None:
        """Where it starts with less time than it asks for, if that will do: how much is noted."""
        found = self.promises.shortened(gang, wanted)
        if found is None:
            return None
        self.granted[gang.id] = gang.ran_ms + found[1]
        return found[0]

    def took(self, gang: Gang, name: str, shares: Shares) -> None:
        """It has started; `name`: under which it waited. Weaker promises that it was in the way of move back."""
        self.nobody_gives_way = False  # what its owner uses now may put others of his behind those that wait
        self.promises.began(name, gang, shares)
        for promise in self.pushed.pop(name, ()):
            self.promises.give_way(promise, Moved.RESTARTED)

    def _weaker(self, gang: Gang) -> list[Reservation]:
        """Promises that do not keep it from starting again, where it has run before: of gangs that come after it."""
        if not gang.passes_reservations:
            return []
        mine, standing = self._key(gang), self.promises.standing.values()
        return [each for each in standing if each.gang.id != gang.id and mine < self._key(each.gang)]

    # -- what is kept ------------------------------------------------------------------------------------------------

    def reserve(self, gang: Gang, why: ReasonCode) -> None:
        """A gang that waits because of `why` is promised a start, or room is kept for it, as far as that may be."""
        if gang.id in self.promises.standing:
            return
        if self.policy.BLOCKS:
            self._block(gang, why)
            return
        may_promise = self._may_promise(gang)
        if may_promise and self.promises.reserve(gang):
            if self.rotation is not None and gang.queue == self.rotation.current:
                self.rotation.has_reserved = True
            return
        which = gang.queue, self.is_large(gang)
        self.tried[which] = self.tried.get(which, 0) + 1
        if self.rotation is not None and which == (self.rotation.current, False) and self.tried[which] >= HEADS_TRIED:
            self.rotate()
        if why is ReasonCode.MAINTENANCE or not self.starves(gang) or not self.may_keep(gang.queue):
            return
        if may_promise or not gang.has_moment:
            opening = (
                earliest(self.state, ask(gang), self.now_ms)
                if why in (ReasonCode.NO_CAPACITY, ReasonCode.HELD)
                else None
            )
            self.keep(gang, why, opening.shares if opening else ())
        else:
            self.next_ones[gang.queue] = self.next_ones.get(gang.queue, 0) + 1

    def _block(self, gang: Gang, why: ReasonCode) -> None:
        """Nobody that comes after it starts: it keeps all nodes or, where that binds, what its queue has left. One that
        waits for its owner's allowance is in nobody's way."""
        if why is ReasonCode.OVER_QUOTA and not self.is_blocked(gang.queue):
            self.keep(gang, why, ())
        elif why in (ReasonCode.NO_CAPACITY, ReasonCode.HELD, ReasonCode.MAINTENANCE):
            nothing = (0,) * len(self.state.tree.counted(gang.shape))
            self._claim(Claim(gang, nothing, tuple(self.state.nodes.index)))

    def is_blocked(self, queue: str) -> bool:
        """Whether somebody waits that all others of that queue come after."""
        return self.is_shut or (self.policy.BLOCKS and any(each.gang.queue == queue for each in self.claims.values()))

    @property
    def is_shut(self) -> bool:
        """Whether somebody waits for nodes that all others come after."""
        return self.policy.BLOCKS and any(claim.nodes for claim in self.claims.values())

    def starves(self, gang: Gang) -> bool:
        """Whether it has waited beyond the policy's threshold."""
        after_ms = starves_after_ms(self.policy, self.state.rules, gang.job.spec.priority)
        return after_ms is not None and self.now_ms - gang.since_ms >= after_ms

    def is_large(self, gang: Gang) -> bool:
        """Whether it is on many nodes, and has waited for so long that it is promised a start beside the first."""
        after_ms = large_after_ms(self.policy, self.state.rules, gang)
        return after_ms is not None and self.now_ms - gang.since_ms >= after_ms

    def may_promise(self, queue: str, *, large: bool) -> bool:
        """Whether one more gang may be promised a start, of that queue. `large`: one for which that is so of
        `is_large`."""
        most = reservations(self.policy, self.state.rules)
        if most is None or not _is_below(len(self.promises.standing), most.total):
            return False
        if most.per_queue is None or (large and most.large.per_queue is None):
            return True
        there = self.promises.laid.of_queue.get(queue, {})
        own = sum(map(self.is_large, there.values()))
        if large and _is_below(own, most.large.per_queue):
            return True
        beyond = 0 if most.large.per_queue is None else max(0, own - most.large.per_queue)
        return len(there) - own + beyond < most.per_queue

    @property
    def bounds(self) -> tuple[bool, bool, bool, int]:
        """The facts of all queues together that decide who is urgent: whether one more gang of any may be promised a
        start, or have room kept, whether nobody gives way, and the turn of the rotation."""
        most = reservations(self.policy, self.state.rules)
        may_promise = most is not None and _is_below(len(self.promises.standing), most.total)
        turn = 0 if self.rotation is None else self.rotation.moves
        return may_promise, len(self.claims) < MOST_CLAIMS, self.nobody_gives_way, turn

    def may_be_head(self, queue: str, *, large: bool = False) -> bool:
        """Whether the next gang of the queue may be promised a start, though it has not waited for long; `large`: the
        next of the large ones that have."""
        if self.tried.get((queue, large), 0) >= HEADS_TRIED or not self.may_promise(queue, large=large):
            return False
        return large or self.rotation is None or self.rotation.queue == queue

    def rotate(self) -> bool:
        """Let the first gang of another queue have a reservation, where none was given to that of the queue whose turn
        it is; return whether there is such a queue."""
        return self.rotation is not None and self.bounds[0] and self.rotation.move_on()

    @property
    def is_unfinished(self) -> bool:
        """True if the first gang of another queue may have a reservation, too, in the next cycle."""
        return self.rotation is not None and self.bounds[0] and self.rotation.is_unfinished()

    def _awaits_reservation(self, gang: Gang) -> bool:
        is_out = gang.id in self.ending or gang.id in self.begun or gang.id in self.promises.standing
        return gang.has_moment and not gang.unadmitted and not is_out and gang.not_before_ms <= self.now_ms

    def _may_be_next(self, queue: str) -> bool:
        return self.may_promise(queue, large=False)

    def _may_promise(self, gang: Gang) -> bool:
        return gang.has_moment and self.may_promise(gang.queue, large=self.is_large(gang))

    def keep(self, gang: Gang, why: ReasonCode, shares: Shares) -> None:
        """Keep room for a gang that waits because of `why` and would start on `shares`, until the round is over."""
        tree, wanted = self.state.tree, self.state.tree.counted(gang.shape)
        quota, nodes = (0,) * len(wanted), tuple(share.node for share in shares)
        if why in (ReasonCode.OVER_QUOTA, ReasonCode.NO_CAPACITY, ReasonCode.HELD):
            at = tree.index[gang.queue]
            quota = tuple(min(amount, max(0, tree.available(at, r))) for r, amount in enumerate(wanted))
        self._claim(Claim(gang, quota, nodes if why in (ReasonCode.NO_CAPACITY, ReasonCode.HELD) else ()))

    def _claim(self, claim: Claim) -> None:
        self.claims[claim.gang.id] = claim
        self._count(claim, +1)

    def may_starve(self, queue: str, *, large: bool) -> bool:
        """Whether anything is done for one more gang of that queue because it starves: it may be promised a start, or
        there are such as can only have room kept."""
        if not self.may_keep(queue):
            return False
        return self.may_promise(queue, large=large) or self.state.lines(self.policy).queues[queue].untold > 0

    def may_keep(self, queue: str) -> bool:
        """Whether room may be kept for one more gang, of that queue."""
        there = sum(claim.gang.queue == queue for claim in self.claims.values()) + self.next_ones.get(queue, 0)
        return len(self.claims) < MOST_CLAIMS and there < MOST_IN_QUEUE

    # -- what those who wait are told --------------------------------------------------------------------------------

    def fit(self, gang: Gang) -> Shares | PendingReason:
        """Where it may start as the round stands, or what binds; what is kept for itself is not in its way."""
        with self.state.trial():
            if gang.id in self.promises.standing:
                self._lift(self.claims.values())
            elif gang.id in self.claims:
                self._count(self.claims[gang.id], -1)
            found = fit(self.state, ask(gang), self.now_ms)
            return found if isinstance(found, PendingReason) else self.held_back(gang, found) or found

    def held_back(self, gang: Gang, found: Shares) -> PendingReason | None:
        """The answer for a gang that has room but for what is promised to others; None: it has room beside that."""
        for_ms = None if gang.time_ms is None else gang.least_ms
        if not self.promises.standing:
            return None
        if not self.promises.keep_out(gang) and self.promises.start(gang, ask(gang), for_ms=for_ms):
            return None
        return PendingReason(
            why=ReasonCode.HELD, holders=tuple(each.id for each in self.promises.in_the_way_of(gang, found))
        )

    def bars(self, gang: Gang) -> tuple[Gang, ...]:
        """Those for whom room is kept that keep a gang from starting; none where it would not start without, either.
        The same for all that ask for the same in one queue, and have the same limits."""
        others = [claim for claim in self.claims.values() if claim.gang is not gang]
        if not others:
            return ()
        found: list[Gang] = []
        with self.state.trial():
            self._lift(self.claims.values())
            if self._bars(gang):
                return ()
            for claim in others:
                mark = self.state.undo.mark()
                self._count(claim, +1)
                if self._bars(gang):
                    self.state.undo.back_to(mark)
                    found.append(claim.gang)
        return tuple(found)

    def behind(self, gang: Gang, bars: tuple[Gang, ...]) -> PendingReason | None:
        """The answer for a gang that room kept for others keeps from starting: those of them that go before it."""
        mine = self._key(gang)
        before = [other for other in bars if self._key(other) < mine] or bars
        return PendingReason(why=ReasonCode.HELD, holders=tuple(other.id for other in before)) if before else None

    def _key(self, gang: Gang) -> tuple[Any, ...]:
        return self.policy.key(gang, self.state, self.now_ms)

    def _bars(self, gang: Gang) -> bool:
        return not where(self.state, ask(gang).at_least)

    @contextmanager
    def _lifted(self, claims: list[Claim]) -> Iterator[None]:
        if not claims:
            yield
            return
        with self.state.trial():
            self._lift(claims)
            yield

    def _lift(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._count(claim, -1)

    def _count(self, claim: Claim, sign: int) -> None:
        gang, tree = claim.gang, self.state.tree
        tree.charge_user(gang.queue, gang.job.user, sign * need(gang.shape)[0], sign * gang.node_ms, sign)
        tree.charge(gang.queue, tuple(sign * amount for amount in claim.quota))
        self.state.nodes.hold(claim.nodes, held=sign > 0)
        if sign > 0:
            self.state.undo.put(self.state.meant, gang.id, +1)
        else:
            self.state.undo.drop(self.state.meant, gang.id)


def _live_shapes(state: State) -> Iterator[tuple[Shape, int]]:
    """Shapes that live gangs ask for, with numbers of gangs. O(classes that wait + gangs that hold something)."""
    yield from ((members[0].shape, len(members)) for members in state.classes.values())
    yield from ((state.gangs[name].shape, 1) for name in state.shares)


def _is_below(count: int, most: int | None) -> bool:
    return most is None or count < most
