"""Whose turn it is by share: what queues, and the users in them, have of the cluster now and have had of late.

Owned by `core.state.state`, asked by policies. Shares are dominant: the largest, over resources, of what somebody has
over what the cluster has. What somebody has is what is held now and what was held, which counts half as much after
every half-life. Sources: dominant resource fairness (Ghodsi et al., NSDI 2011); Slurm's decay and Fair Tree (reference:
scheduling, section 2), here without rounding: see `growth`, and docs/explanation/decisions/scheduling.md, "Usage is an
exact integer".

`account_points` and `own_points` are the order `dynamic`: added up, the points of a job. More points go first.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Final, NamedTuple

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.queues.quota import QueueTree, Vector
from ganger.core.queues.share_bounds import NOTHING, SLACK, Account, Figures, Floats, ShareBounds
from ganger.model.policy import Weights
from ganger.model.units import MINUTE_MS

REMEMBERED: Final = 32
"""Half-lives after which what was held may be forgotten: it counts less than one part in four thousand million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecayedUsage:
    """What ended starts of a user's jobs in a queue have held: by half-life of the calendar, amount times milliseconds
    of each of gpus, cpu_milli, memory_bytes. Whole numbers of what happened, no sums that decay."""

    queue: str
    user: str
    periods: tuple[tuple[int, Vector], ...]


def base_of(at_ms: int, half_life_ms: int) -> int:
    """The first half-life that is remembered at a time: at least REMEMBERED and less than twice as many are. It moves
    in steps, so that sums are made anew seldom, and depends on nothing but the time."""
    return (at_ms // half_life_ms // REMEMBERED - 1) * REMEMBERED


def growth(at_ms: int, half_life_ms: int, base: int) -> int:
    """How much a millisecond counts that was held until `at_ms`, summed from for ever: it doubles with every half-life,
    to the millisecond, and is linear between, so that it is an integer.

    Holding `a` from t1 to t2 adds a * (growth(t2) - growth(t1)); the sum of that over growth(t) is the average that was
    held, as it counts at t. However an interval is cut, the sum is the same.
    """
    period, into_ms = divmod(at_ms, half_life_ms)
    return half_life_ms if period < base else (half_life_ms + into_ms) << (period - base)


def by_period(began_ms: int, ended_ms: int, half_life_ms: int) -> Iterator[tuple[int, int]]:
    """The half-lives of the calendar that an interval touches, and how many of its milliseconds are in each."""
    while began_ms < ended_ms:
        period = began_ms // half_life_ms
        until_ms = min(ended_ms, (period + 1) * half_life_ms)
        yield period, until_ms - began_ms
        began_ms = until_ms


def respent(spent: Iterable[DecayedUsage], was_ms: int, half_life_ms: int, at_ms: int) -> list[DecayedUsage]:
    """What was held, by half-lives of another length, from `at_ms` on. Of each half-life only the sum is known: it is
    taken as held evenly over it, as far as it has passed. Nothing is lost to rounding: what is remembered of a
    half-life has its sum."""
    base = base_of(at_ms, half_life_ms)
    found = (replace(each, periods=_recut(each.periods, was_ms, half_life_ms, (base, at_ms))) for each in spent)
    return [each for each in found if each.periods]


def _recut(
    periods: Iterable[tuple[int, Vector]], was_ms: int, half_life_ms: int, span: tuple[int, int]
) -> tuple[tuple[int, Vector], ...]:
    base, at_ms = span
    found: dict[int, Vector] = {}
    for period, amounts in periods:
        began_ms, ended_ms = period * was_ms, min((period + 1) * was_ms, at_ms)
        cut_ms = min(ended_ms, max(began_ms, base * half_life_ms))
        passed_ms, given = cut_ms - began_ms, _fraction(amounts, cut_ms - began_ms, ended_ms - began_ms)
        for at, part_ms in by_period(cut_ms, ended_ms, half_life_ms):
            passed_ms += part_ms
            until = _fraction(amounts, passed_ms, ended_ms - began_ms)
            found[at] = _plus(found.get(at, NOTHING), _plus(until, _times(given, -1)))
            given = until
    return tuple(sorted(found.items()))


class Use(NamedTuple):
    """used / whole of the cluster, where part / of it is fair."""

    used: int
    part: int
    of: int
    whole: int

    def points(self, most: int) -> int:
        """All points for nothing, half of them at the fair part, none at infinity; rounded down."""
        fair = self.part * self.whole
        return most * fair // (fair + self.used * self.of)


Basis = tuple[int | Figures, ...]
_NONE: Final = Figures()


class FairShares:
    """What every queue, with all below it, and every user in a queue holds, and has held.

    An account's value at a time is the dominant one of (held + average held of late), in parts of `whole` of the
    cluster. Figures change with `hold`, `begin` and `end`; nothing is summed when a value is asked for.
    """

    def __init__(
        self, tree: QueueTree, capacity: Vector, spent: Iterable[DecayedUsage], at_ms: int, half_life_ms: int
    ) -> None:
        """Nothing held now; `capacity` is what all nodes have. What is too old at `at_ms` is forgotten."""
        self._tree, self._undo, self.half_life_ms = tree, tree.undo, half_life_ms
        self.base = base_of(at_ms, half_life_ms)
        self.queues = [Figures()] * len(tree.queues)
        self.users: dict[Account, Figures] = {}
        """Accounts of which there is anything to say."""
        self._rough = ShareBounds()
        self._spent: dict[tuple[str, str], Mapping[int, Vector]] = {}
        self._whole = lcm(*(amount for amount in capacity if amount))
        self._parts = tuple(self._whole // amount if amount else 0 for amount in capacity)
        self._grown = (at_ms, growth(at_ms, half_life_ms, self.base))
        self._ranks: dict[int, tuple[Basis, tuple[int, ...]]] = {}
        self._uses: dict[int, tuple[Basis, Use]] = {}
        """Of queues, as last computed."""
        self._scale = [1] * len(tree.queues)
        self._fair = [(1, 1)] * len(tree.queues)
        for at, children in enumerate(tree.children):
            self._divide(at, children)
        for each in spent:
            self._remember(each)

    @property
    def until_ms(self) -> int:
        """From when on it is to be made anew, so that what is too old is forgotten."""
        return (self.base + 2 * REMEMBERED) * self.half_life_ms

    def spent(self) -> list[DecayedUsage]:
        """What a snapshot keeps; all else follows from it and from what is held."""
        return [
            DecayedUsage(queue=queue, user=user, periods=tuple(sorted(periods.items())))
            for (queue, user), periods in sorted(self._spent.items())
        ]

    # -- what changes them -------------------------------------------------------------------------------------------

    def hold(self, queue: str, user: str, wanted: Vector, sign: int) -> None:
        """So much more is held from now on, or less; undone with a trial."""
        held = _times(wanted, sign)
        at = self._tree.index[queue]
        for each in self._tree.path(at):
            now = self.queues[each]
            self._undo.put(self.queues, each, now._replace(held=_plus(now.held, held)))
        for account in self._accounts(at, user):
            now = self.users.get(account, Figures())
            self._put(account, now._replace(held=_plus(now.held, held)))

    def begin(self, queue: str, user: str, wanted: Vector, began_ms: int) -> None:
        """What is held so is metered since `began_ms`."""
        self._meter(queue, user, wanted, _times(wanted, -growth(began_ms, self.half_life_ms, self.base)))

    def end(self, queue: str, user: str, wanted: Vector, interval_ms: tuple[int, int]) -> None:
        """What was metered since the first of two moments is over with the second."""
        began_ms, ended_ms = interval_ms
        half_life_ms = self.half_life_ms
        self._meter(queue, user, _times(wanted, -1), _times(wanted, growth(ended_ms, half_life_ms, self.base)))
        for period, passed_ms in by_period(max(began_ms, self.base * half_life_ms), ended_ms, half_life_ms):
            self._book((queue, user), {period: _times(wanted, passed_ms)})

    def pass_on(self, queue: str, parent: str) -> None:
        """A queue goes: what was held in it was held in its parent. To be made anew afterwards."""
        for (name, user), periods in list(self._spent.items()):
            if name == queue:
                self._book((parent, user), periods)
                del self._spent[name, user]

    def copy(self, tree: QueueTree) -> "FairShares":
        """The same over another tree of the same queues."""
        other = copy(self)
        other._tree, other._undo = tree, tree.undo  # noqa: SLF001 - its own kind
        other.queues, other.users = list(self.queues), dict(self.users)
        other._spent, other._ranks, other._uses = dict(self._spent), {}, {}  # noqa: SLF001 - the same
        other._rough = ShareBounds()  # noqa: SLF001 - the same
        for account in self.users:
            other._rough[account] = None  # noqa: SLF001 - the same
        return other

    def _book(self, account: tuple[str, str], more: Mapping[int, Vector]) -> None:
        before = self._spent.get(account, {})
        # Anew, not in place: a copy of these standings has the one before.
        self._spent[account] = {**before, **{at: _plus(before.get(at, NOTHING), held) for at, held in more.items()}}

    def _remember(self, spent: DecayedUsage) -> None:
        kept = {period: amounts for period, amounts in spent.periods if period >= self.base}
        if kept:
            self._spent[spent.queue, spent.user] = kept
        for period, amounts in kept.items():
            # Within one half-life growth is linear: a millisecond counts as much as any other.
            self._meter(spent.queue, spent.user, NOTHING, _times(amounts, 1 << (period - self.base)))

    def _meter(self, queue: str, user: str, metered: Vector, past: Vector) -> None:
        at = self._tree.index[queue]
        for each in self._tree.path(at):
            self.queues[each] = _more(self.queues[each], metered, past)
        for account in self._accounts(at, user):
            self._put(account, _more(self.users.get(account, Figures()), metered, past))

    def _accounts(self, at: int, user: str) -> tuple[Account, ...]:
        return ((at, user), (at, "")) if self._tree.children[at] else ((at, user),)

    def _put(self, account: Account, now: Figures) -> None:
        self._undo.put(self._rough, account, None)
        if now != Figures():
            self._undo.put(self.users, account, now)
        elif account in self.users:
            self._undo.drop(self.users, account)

    def _divide(self, at: int, children: list[int]) -> None:
        """The parts of the cluster that are fair to a queue's children, by their weights; the queue's own jobs, beside
        them, weigh 1."""
        weights = [self._tree.queues[child].weight for child in children]
        together = lcm(1, *weights)
        part, of = self._fair[at]
        for child, weight in zip(children, weights, strict=True):
            self._scale[child] = together // weight
            self._fair[child] = (part * weight, of * sum(weights))

    # -- what is asked -----------------------------------------------------------------------------------------------

    def rank(self, queue: str, user: str, now_ms: int) -> tuple[int, ...]:
        """The place of a user in a queue among all: smaller is earlier. Queues go before their siblings below their
        guarantee, then by value over weight, then by name; inside a queue users by value. So all users of one queue go
        before all of another (Fair Tree)."""
        at = self._tree.index[queue]
        basis = self._basis(at, now_ms)
        if (seen := self._ranks.get(at)) is None or seen[0] != basis:
            seen = self._ranks[at] = basis, self._queue_rank(at, self._growth(now_ms))
        return (*seen[1], self._value(self.users.get((at, user), _NONE), self._growth(now_ms)))

    def _queue_rank(self, at: int, g: int) -> tuple[int, ...]:
        tree, found = self._tree, list[int]()
        for each in tree.below_root[at]:
            held = self.queues[each]
            found += (not self._is_below_guarantee(each), self._value(held, g) * self._scale[each], each)
        if tree.children[at]:
            weight = lcm(*(tree.queues[child].weight for child in tree.children[at]))
            found += (1, self._value(self.users.get((at, ""), _NONE), g) * weight, -1)
        return tuple(found)

    def _basis(self, at: int, now_ms: int) -> Basis:
        """All that what is said of a queue follows from: the same for all its users, until one of them starts."""
        own = self.users.get((at, ""), _NONE) if self._tree.children[at] else _NONE
        return (now_ms, own, *[self.queues[each] for each in self._tree.below_root[at]])

    def _growth(self, now_ms: int) -> int:
        if self._grown[0] != now_ms:
            self._grown = now_ms, growth(now_ms, self.half_life_ms, self.base)
        return self._grown[1]

    def _value(self, of: Figures, g: int) -> int:
        """The dominant one of (held + average held of late), in parts of `whole` times growth."""
        (h0, h1, h2), (m0, m1, m2), (p0, p1, p2) = of
        r0, r1, r2 = self._parts
        return max(((h0 + m0) * g + p0) * r0, ((h1 + m1) * g + p1) * r1, ((h2 + m2) * g + p2) * r2)

    def is_below_guarantee(self, queue: str) -> bool:
        """Whether a queue, with all below it, holds less than it is guaranteed, of each resource with a guarantee."""
        return self._is_below_guarantee(self._tree.index[queue])

    def _is_below_guarantee(self, at: int) -> bool:
        promised = self._tree.promised[at][: len(NOTHING)]
        return at > 0 and any(promised) and all(h < p for h, p in zip(self.queues[at].held, promised, strict=True) if p)

    def queue_use(self, queue: str, now_ms: int) -> Use:
        """What a queue uses, at the level of its path that is worst off: it, or a queue above it; below its guarantee
        nothing counts."""
        at = self._tree.index[queue]
        basis = self._basis(at, now_ms)
        if (seen := self._uses.get(at)) is None or seen[0] != basis:
            seen = self._uses[at] = basis, self._queue_use(at, self._growth(now_ms))
        return seen[1]

    def _queue_use(self, at: int, g: int) -> Use:
        tree = self._tree
        if self._is_below_guarantee(at):
            return Use(0, *self._fair[at], whole=self._whole * g)
        uses = [
            Use(self._value(self.queues[each], g), *self._fair[each], self._whole * g) for each in tree.below_root[at]
        ]
        if tree.children[at]:
            uses.append(Use(self._value(self.users.get((at, ""), _NONE), g), *self._own_part(at), self._whole * g))
        worst = uses[0] if uses else Use(0, 1, 1, self._whole * g)
        for use in uses[1:]:
            if use.used * use.of * worst.part > worst.used * worst.of * use.part:
                worst = use
        return worst

    def user_use(self, queue: str, user: str, now_ms: int) -> Use:
        """What a user uses in a queue; what is fair to the queue is fair to one user of it."""
        g, at = self._growth(now_ms), self._tree.index[queue]
        value = self._value(self.users.get((at, user), _NONE), g)
        fair = self._own_part(at) if self._tree.children[at] else self._fair[at]
        return Use(value, *fair, self._whole * g)

    def dominant(self, queue: str, held: Vector) -> Fraction:
        """The dominant share of the cluster that so much is, over the weight of the queue it is held in."""
        parts = max(amount * part for amount, part in zip(held, self._parts, strict=True))
        return Fraction(parts, self._whole * self._tree.queues[self._tree.index[queue]].weight)

    def user_uses(self, owners: Iterable[tuple[str, str]], now_ms: int) -> Floats:
        """(A,) for each queue and user about what part of the cluster the user has there, over what is fair to him."""
        accounts = [(self._tree.index[queue], user) for queue, user in owners]
        capacity = np.array([parts / self._whole for parts in self._parts])
        used = self._rough.used(accounts, self.users, self._growth(now_ms), capacity)
        fair = [self._own_part(at) if self._tree.children[at] else fair for at, fair in enumerate(self._fair)]
        each: Floats = used * np.array([of / part for part, of in fair])[[at for at, _ in accounts]]
        return each

    def validate(self, anew: "FairShares") -> None:
        """Compare with one that was made anew. AssertionError names what differs."""
        for name in ("base", "half_life_ms", "queues", "users"):
            assert getattr(self, name) == getattr(anew, name), f"standings of {name} differ"
        mine, other = (each._rough.rows(each.users) for each in (self, anew))  # noqa: SLF001 - its own kind
        assert mine == other, "standings of users, as columns, differ"

    def _own_part(self, at: int) -> tuple[int, int]:
        part, of = self._fair[at]
        return part, of * (1 + sum(self._tree.queues[child].weight for child in self._tree.children[at]))


def account_points(standings: FairShares, weights: Weights, queue: str, user: str, now_ms: int) -> int:
    """The points of every job of a user in a queue. They only fall while usage only grows."""
    unused = standings.queue_use(queue, now_ms).points(weights.queue)
    return unused + standings.user_use(queue, user, now_ms).points(weights.user)


def own_points(weights: Weights, priority: int, age_ms: int, starves_after_ms: int) -> int:
    """The points of a job that do not depend on usage: of two of one priority the older never has fewer."""
    aged = min(age_ms, weights.age_cap_ms) // MINUTE_MS
    starved = max(0, age_ms - starves_after_ms) // MINUTE_MS
    return weights.priority * priority + weights.age * aged + weights.starvation * starved


def most_points(standings: FairShares, weights: Weights, owners: list[tuple[str, str]], now_ms: int) -> Floats:
    """(A,) for each queue and user what `account_points` are at most: a little more than they are."""
    queues = dict.fromkeys(queue for queue, _ in owners)
    unused = {queue: standings.queue_use(queue, now_ms).points(weights.queue) for queue in queues}
    found: Floats = weights.user * (1 + SLACK) / (1 + standings.user_uses(owners, now_ms)) + 1
    return found + np.array([unused[queue] for queue, _ in owners], dtype=np.float64)


def most_own_points(weights: Weights, priority: Ints, age_ms: Ints, starves_after_ms: Ints) -> Floats:
    """(L,) for each job what `own_points` are at most: a little more than they are."""
    aged = weights.age * (np.minimum(age_ms, weights.age_cap_ms) // MINUTE_MS).astype(np.float64)
    late_ms = np.maximum(0, age_ms - starves_after_ms)
    starved = weights.starvation * (late_ms // MINUTE_MS).astype(np.float64)
    first = weights.priority * priority.astype(np.float64)
    found: Floats = first + aged + starved + SLACK * (np.abs(first) + aged + starved)
    return found


def _plus(one: Vector, other: Vector) -> Vector:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _times(vector: Vector, factor: int) -> Vector:
    return vector[0] * factor, vector[1] * factor, vector[2] * factor


def _fraction(vector: Vector, part: int, of: int) -> Vector:
    """Rounded down."""
    return vector[0] * part // of, vector[1] * part // of, vector[2] * part // of


def _more(of: Figures, metered: Vector, past: Vector) -> Figures:
    return Figures(of.held, _plus(of.metered, metered), _plus(of.past, past))
