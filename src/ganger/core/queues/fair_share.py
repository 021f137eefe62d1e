"""Fair share: what queues and the users in them hold of the cluster, and have held in the past.

Shares are dominant: the largest, over resources, of what an account holds over what the cluster has. An account's value
is what is held now plus the decayed average of what was held, which counts half as much after every half-life. Sources:
dominant resource fairness (Ghodsi et al., NSDI 2011); Slurm's decay and Fair Tree (reference: scheduling, section 2).

Usage is exact, without rounding (docs/explanation/decisions/scheduling.md, "Usage is an exact integer"). Instead of
letting sums decay with time, what is added grows with time: holding `a` from t1 to t2 adds a * (growth(t2) -
growth(t1)), where `growth` doubles with every half-life, and dividing a sum by growth(t) gives the average as it counts
at t. So sums change only when a gang starts or ends, and comparing two accounts needs no division. Numbers stay short
because periods older than REMEMBERED half-lives are forgotten.

`account_points` and `gang_points` add up to the points of a job in the order `dynamic`; more points go first.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Final, NamedTuple

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.queues.node_time import by_period
from ganger.core.queues.quota import QueueTree, Vector
from ganger.core.queues.share_bounds import SLACK, ZERO_VECTOR, AccountKey, AccountShares, Floats, ShareBounds
from ganger.model.policy import Weights
from ganger.model.units import HOUR_MS, MINUTE_MS

REMEMBERED: Final = 32
"""Half-lives after which what was held may be forgotten: it counts less than one part in four thousand million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecayedUsage:
    """Past usage of a user in a queue: by half-life of the calendar, amount times milliseconds of each resource.

    `periods` are exact sums of what ended starts have held of gpus, cpu_milli and memory_bytes; nothing in them decays.
    """

    queue: str
    user: str
    periods: tuple[tuple[int, Vector], ...]


def first_remembered_period(at_ms: int, half_life_ms: int) -> int:
    """Return the first half-life that is remembered at a time, with at least REMEMBERED and less than twice as many.

    It moves in steps, so that sums are seldom recomputed, and depends on the time alone.
    """
    return (at_ms // half_life_ms // REMEMBERED - 1) * REMEMBERED


def growth(at_ms: int, half_life_ms: int, base: int) -> int:
    """Return how much a millisecond held until `at_ms` counts, summed from the beginning.

    It doubles with every half-life, to the millisecond, and is linear between, so that it is an integer. However an
    interval is cut, the sum is the same.
    """
    period, into_ms = divmod(at_ms, half_life_ms)
    return half_life_ms if period < base else (half_life_ms + into_ms) << (period - base)


def recut_usage(
    usage: Iterable[DecayedUsage], old_half_life_ms: int, half_life_ms: int, at_ms: int
) -> list[DecayedUsage]:
    """Return the usage by half-lives of another length, from `at_ms` on.

    Of each half-life only the sum is known, which is taken as held evenly over the part that has passed. Nothing is
    lost to rounding: the parts of a half-life add up to its sum.
    """
    base = first_remembered_period(at_ms, half_life_ms)
    recut = (
        replace(record, periods=_recut(record.periods, old_half_life_ms, half_life_ms, (base, at_ms)))
        for record in usage
    )
    return [record for record in recut if record.periods]


def _recut(
    periods: Iterable[tuple[int, Vector]], old_half_life_ms: int, half_life_ms: int, span: tuple[int, int]
) -> tuple[tuple[int, Vector], ...]:
    base, at_ms = span
    recut: dict[int, Vector] = {}
    for period, amounts in periods:
        began_ms, ended_ms = period * old_half_life_ms, min((period + 1) * old_half_life_ms, at_ms)
        cut_ms = min(ended_ms, max(began_ms, base * half_life_ms))
        passed_ms, assigned = cut_ms - began_ms, _fraction(amounts, cut_ms - began_ms, ended_ms - began_ms)
        for new_period, part_ms in by_period(cut_ms, ended_ms, half_life_ms):
            passed_ms += part_ms
            assigned_until = _fraction(amounts, passed_ms, ended_ms - began_ms)
            part = _add(assigned_until, _scale_vector(assigned, -1))
            recut[new_period] = _add(recut.get(new_period, ZERO_VECTOR), part)
            assigned = assigned_until
    return tuple(sorted(recut.items()))


class UsageRatio(NamedTuple):
    """used / capacity of the cluster, of which fair_part / fair_whole is fair."""

    used: int
    fair_part: int
    fair_whole: int
    capacity: int

    def points(self, max_points: int) -> int:
        """Return all points for no usage, half of them at the fair part, none at infinity; rounded down."""
        fair = self.fair_part * self.capacity
        return max_points * fair // (fair + self.used * self.fair_whole)


PAID_LAG_MS: Final = 2 * HOUR_MS
"""Lag for which a queue has as many points as without any usage. 5,000 points an hour: half an hour of lag outweighs
that a queue holds its fair part twice, so shares come right within a few jobs of ten minutes. With a fifth of that the
shares of such jobs were 4 points of a hundred from the weights after 20 of them."""
MAX_GAP_MS: Final = 24 * MINUTE_MS
"""Lag that counts between two queues that follow each other: 2,000 points. With half of that, jobs of one and two GPUs
on 16 kept shares of 1:4 three points off; with much more, a queue that comes back after a week has the cluster alone
until it has caught up."""
_OWN_JOBS: Final = -1
"""Stands for the jobs of a queue with children that are in the queue itself, beside the children."""
Basis = tuple[int | AccountShares, ...]
_NO_SHARES: Final = AccountShares()


class FairShares:
    """Shares that every queue, with all below it, and every user in a queue holds and has held.

    An account's value at a time is the dominant one of (held + average held before), in parts of `_capacity_unit`, a
    common multiple of the capacities. Figures change with `add_held`, `begin` and `end`; nothing is summed when a value
    is read.
    """

    def __init__(
        self, tree: QueueTree, capacity: Vector, usage: Iterable[DecayedUsage], at_ms: int, half_life_ms: int
    ) -> None:
        """Restore past usage, with nothing held; `capacity` is that of all nodes. Usage too old at `at_ms` is lost."""
        self._tree, self._undo, self.half_life_ms = tree, tree.undo, half_life_ms
        self.base = first_remembered_period(at_ms, half_life_ms)
        self.queues = [AccountShares()] * len(tree.queues)
        self.users: dict[AccountKey, AccountShares] = {}
        """Accounts that hold or have held something."""
        self._share_bounds = ShareBounds()
        self._usage: dict[tuple[str, str], Mapping[int, Vector]] = {}
        self._cached_growth = (at_ms, growth(at_ms, half_life_ms, self.base))
        self._ranks: dict[int, tuple[Basis, tuple[int, ...]]] = {}
        self._queue_usages: dict[int, tuple[Basis, UsageRatio]] = {}
        """The usage of queues, as last computed."""
        self._lags: dict[int, tuple[int, dict[int, int]]] = {}
        """By queue, a time and the lags of its children then; dropped when what is metered or the capacity changes."""
        self.set_capacity(capacity)
        self._scale = [1] * len(tree.queues)
        self._fair = [(1, 1)] * len(tree.queues)
        for index, children in enumerate(tree.children):
            self._set_fair_parts(index, children)
        for record in usage:
            self._restore_usage(record)

    def set_capacity(self, capacity: Vector) -> None:
        """Set the capacity of all nodes, of which the shares are parts."""
        self._capacity_unit = lcm(*(amount for amount in capacity if amount))
        self._unit_parts = tuple(self._capacity_unit // amount if amount else 0 for amount in capacity)
        self._ranks.clear()
        self._queue_usages.clear()
        self._lags.clear()

    @property
    def until_ms(self) -> int:
        """The time at which the shares must be rebuilt, so that old usage is forgotten."""
        return (self.base + 2 * REMEMBERED) * self.half_life_ms

    def decayed_usage(self) -> list[DecayedUsage]:
        """Return past usage for a snapshot; the rest is derived from this and from the allocations."""
        return [
            DecayedUsage(queue=queue, user=user, periods=tuple(sorted(periods.items())))
            for (queue, user), periods in sorted(self._usage.items())
        ]

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_held(self, queue: str, user: str, demand: Vector, sign: int) -> None:
        """Add to what is held, or subtract with sign -1; undone with a trial."""
        index = self._tree.index[queue]
        self.add_queue_held(queue, demand, sign)
        self._add_account_held((index, user), demand, sign)

    def add_queue_held(self, queue: str, demand: Vector, sign: int) -> None:
        """Add to what a queue holds, or subtract, without naming a user; undone with a trial."""
        index = self._tree.index[queue]
        for ancestor in self._tree.path(index):
            shares = self.queues[ancestor]
            held = _add(shares.held, _scale_vector(demand, sign))
            self._undo.put(self.queues, ancestor, shares._replace(held=held))
        if self._tree.children[index]:
            self._add_account_held((index, ""), demand, sign)

    def _add_account_held(self, account: AccountKey, demand: Vector, sign: int) -> None:
        shares = self.users.get(account, AccountShares())
        self._set_account(account, shares._replace(held=_add(shares.held, _scale_vector(demand, sign))))

    def begin(self, queue: str, user: str, demand: Vector, began_ms: int) -> None:
        """Meter the held demand from `began_ms` on."""
        self._meter(queue, user, demand, _scale_vector(demand, -growth(began_ms, self.half_life_ms, self.base)))

    def end(self, queue: str, user: str, demand: Vector, interval_ms: tuple[int, int]) -> None:
        """Stop metering the demand held for (began_ms, ended_ms); it becomes past usage."""
        began_ms, ended_ms = interval_ms
        half_life_ms = self.half_life_ms
        past = _scale_vector(demand, growth(ended_ms, half_life_ms, self.base))
        self._meter(queue, user, _scale_vector(demand, -1), past)
        for period, passed_ms in by_period(max(began_ms, self.base * half_life_ms), ended_ms, half_life_ms):
            self._add_usage((queue, user), {period: _scale_vector(demand, passed_ms)})

    def move_usage_to_parent(self, queue: str, parent: str) -> None:
        """Move a removed queue's past usage to its parent. The caller rebuilds the shares afterwards."""
        for (name, user), periods in list(self._usage.items()):
            if name == queue:
                self._add_usage((parent, user), periods)
                del self._usage[name, user]

    def copy(self, tree: QueueTree) -> "FairShares":
        """Return a copy over another tree of the same queues."""
        other = copy(self)
        other._tree, other._undo = tree, tree.undo  # noqa: SLF001 - its own kind
        other.queues, other.users = list(self.queues), dict(self.users)
        other._usage = dict(self._usage)  # noqa: SLF001 - the same
        other._ranks, other._queue_usages, other._lags = {}, {}, {}  # noqa: SLF001 - the same
        other._share_bounds = ShareBounds()  # noqa: SLF001 - the same
        for account in self.users:
            other._share_bounds[account] = None  # noqa: SLF001 - the same
        return other

    def _add_usage(self, account: tuple[str, str], usage: Mapping[int, Vector]) -> None:
        before = self._usage.get(account, {})
        # A new dictionary: a copy of these shares refers to the old one.
        added = {period: _add(before.get(period, ZERO_VECTOR), held) for period, held in usage.items()}
        self._usage[account] = {**before, **added}

    def _restore_usage(self, record: DecayedUsage) -> None:
        kept = {period: amounts for period, amounts in record.periods if period >= self.base}
        if kept:
            self._usage[record.queue, record.user] = kept
        for period, amounts in kept.items():
            # Within a half-life growth is linear: all its milliseconds count the same.
            self._meter(record.queue, record.user, ZERO_VECTOR, _scale_vector(amounts, 1 << (period - self.base)))

    def _meter(self, queue: str, user: str, metered: Vector, past: Vector) -> None:
        index = self._tree.index[queue]
        self._lags.clear()
        for ancestor in self._tree.path(index):
            self.queues[ancestor] = _add_metered(self.queues[ancestor], metered, past)
        for account in self._accounts(index, user):
            self._set_account(account, _add_metered(self.users.get(account, AccountShares()), metered, past))

    def _accounts(self, index: int, user: str) -> tuple[AccountKey, ...]:
        return ((index, user), (index, "")) if self._tree.children[index] else ((index, user),)

    def _set_account(self, account: AccountKey, shares: AccountShares) -> None:
        self._undo.put(self._share_bounds, account, None)
        if shares != AccountShares():
            self._undo.put(self.users, account, shares)
        elif account in self.users:
            self._undo.drop(self.users, account)

    def _set_fair_parts(self, index: int, children: list[int]) -> None:
        """Set the fair parts of a queue's children by their weights; the queue's own jobs, beside them, weigh 1."""
        weights = [self._tree.queues[child].weight for child in children]
        weight_multiple = lcm(1, *weights)
        part, of = self._fair[index]
        for child, weight in zip(children, weights, strict=True):
            self._scale[child] = weight_multiple // weight
            self._fair[child] = (part * weight, of * sum(weights))

    # -- queries -------------------------------------------------------------------------------------------------------

    def rank(self, queue: str, user: str, now_ms: int) -> tuple[int, ...]:
        """Return the place of a user in a queue among all, smaller first.

        Queues below their guarantee precede their siblings, then those with less value over weight, then names; inside
        a queue users with less value. So all users of one queue precede all of another (Fair Tree).
        """
        index = self._tree.index[queue]
        basis = self._basis(index, now_ms)
        if (cached := self._ranks.get(index)) is None or cached[0] != basis:
            cached = self._ranks[index] = basis, self._queue_rank(index, self._growth(now_ms))
        return (*cached[1], self._value(self.users.get((index, user), _NO_SHARES), self._growth(now_ms)))

    def _queue_rank(self, index: int, g: int) -> tuple[int, ...]:
        tree, rank = self._tree, list[int]()
        for ancestor in tree.path_below_root[index]:
            shares = self.queues[ancestor]
            rank += (not self._is_below_guarantee(ancestor), self._value(shares, g) * self._scale[ancestor], ancestor)
        if tree.children[index]:
            weight = lcm(*(tree.queues[child].weight for child in tree.children[index]))
            rank += (1, self._value(self.users.get((index, ""), _NO_SHARES), g) * weight, -1)
        return tuple(rank)

    def _basis(self, index: int, now_ms: int) -> Basis:
        """Return all that a queue's rank and usage follow from; it is the same for all its users until one starts."""
        own = self.users.get((index, ""), _NO_SHARES) if self._tree.children[index] else _NO_SHARES
        return (now_ms, own, *[self.queues[ancestor] for ancestor in self._tree.path_below_root[index]])

    def _growth(self, now_ms: int) -> int:
        if self._cached_growth[0] != now_ms:
            self._cached_growth = now_ms, growth(now_ms, self.half_life_ms, self.base)
        return self._cached_growth[1]

    def _value(self, shares: AccountShares, g: int) -> int:
        """Return the dominant one of (held + average held before), in parts of `_capacity_unit` times growth."""
        (h0, h1, h2), (m0, m1, m2), (p0, p1, p2) = shares
        r0, r1, r2 = self._unit_parts
        return max(((h0 + m0) * g + p0) * r0, ((h1 + m1) * g + p1) * r1, ((h2 + m2) * g + p2) * r2)

    def is_below_guarantee(self, queue: str) -> bool:
        """Return whether a queue, with all below it, holds less than its guarantee of each resource that has one."""
        return self._is_below_guarantee(self._tree.index[queue])

    def _is_below_guarantee(self, index: int) -> bool:
        guaranteed = self._tree.guaranteed[index][: len(ZERO_VECTOR)]
        figures = zip(self.queues[index].held, guaranteed, strict=True)
        return index > 0 and any(guaranteed) and all(held < guarantee for held, guarantee in figures if guarantee)

    def queue_usage(self, queue: str, now_ms: int) -> UsageRatio:
        """Return the usage of the level of a queue's path that is worst off: the queue's or an ancestor's.

        Below its guarantee a queue counts as using nothing.
        """
        index = self._tree.index[queue]
        basis = self._basis(index, now_ms)
        if (cached := self._queue_usages.get(index)) is None or cached[0] != basis:
            cached = self._queue_usages[index] = basis, self._queue_usage(index, self._growth(now_ms))
        return cached[1]

    def _queue_usage(self, index: int, g: int) -> UsageRatio:
        tree = self._tree
        if self._is_below_guarantee(index):
            return UsageRatio(0, *self._fair[index], capacity=self._capacity_unit * g)
        uses = [
            UsageRatio(self._value(self.queues[ancestor], g), *self._fair[ancestor], self._capacity_unit * g)
            for ancestor in tree.path_below_root[index]
        ]
        if tree.children[index]:
            own_value = self._value(self.users.get((index, ""), _NO_SHARES), g)
            uses.append(UsageRatio(own_value, *self._fair_part_of_own_jobs(index), self._capacity_unit * g))
        worst = uses[0] if uses else UsageRatio(0, 1, 1, self._capacity_unit * g)
        for use in uses[1:]:
            if use.used * use.fair_whole * worst.fair_part > worst.used * worst.fair_whole * use.fair_part:
                worst = use
        return worst

    def queue_lag_ms(self, queue: str, now_ms: int) -> int:
        """Return how far a queue lags behind, as the time for which it would have to get twice its fair share.

        That is the sum, over the levels of its path, of the lag behind the sibling that has had most of its fair part.
        What counts of a queue's past is what it held, by weight and halved with every half-life. Of the gap between two
        siblings that follow each other at most MAX_GAP_MS count: so a queue that was away for long does not get the
        whole cluster until it has caught up, and two that lag far behind a third are still told apart.

        Points for usage alone (`queue_usage`) do not suffice: what was held counts there as its average over the
        half-life, so that with a week an hour too little is one part in 240, less than a GPU's worth. Shares that
        follow from the service which each queue lacks are the idea of fair queueing (Demers et al., SIGCOMM 1989).
        """
        index, lag_ms = self._tree.index[queue], 0
        for ancestor in self._tree.path_below_root[index]:
            lag_ms += self._lags_of_children(self._tree.parent[ancestor], now_ms)[ancestor]
        return lag_ms + (self._lags_of_children(index, now_ms)[_OWN_JOBS] if self._tree.children[index] else 0)

    def _lags_of_children(self, parent: int, now_ms: int) -> dict[int, int]:
        known = self._lags.get(parent)
        if known is None or known[0] != now_ms:
            g, period = self._growth(now_ms), now_ms // self.half_life_ms
            unit = self._capacity_unit << max(0, period - self.base)
            served = [
                (self._past(self.queues[child], g), *self._fair[child], child) for child in self._tree.children[parent]
            ]
            own_shares = self.users.get((parent, ""), _NO_SHARES)
            served.append((self._past(own_shares, g), *self._fair_part_of_own_jobs(parent), _OWN_JOBS))
            order = sorted(((used * of // (part * unit), child) for used, part, of, child in served), reverse=True)
            max_gap_ms = min(MAX_GAP_MS, PAID_LAG_MS // (len(order) - 1))  # so that PAID_LAG_MS bounds every lag
            lags, lag_ms, before_ms = dict[int, int](), 0, order[0][0]
            for served_ms, child in order:
                lag_ms += min(max_gap_ms, before_ms - served_ms)
                lags[child], before_ms = lag_ms, served_ms
            known = self._lags[parent] = now_ms, lags
        return known[1]

    def _past(self, shares: AccountShares, g: int) -> int:
        """Return the dominant one of what was held before, in parts of `_capacity_unit` times milliseconds."""
        (m0, m1, m2), (p0, p1, p2), (r0, r1, r2) = shares.metered, shares.past, self._unit_parts
        return max((m0 * g + p0) * r0, (m1 * g + p1) * r1, (m2 * g + p2) * r2)

    def user_usage(self, queue: str, user: str, now_ms: int) -> UsageRatio:
        """Return the usage of a user in a queue; the queue's fair share is also that of each user."""
        g, index = self._growth(now_ms), self._tree.index[queue]
        value = self._value(self.users.get((index, user), _NO_SHARES), g)
        fair = self._fair_part_of_own_jobs(index) if self._tree.children[index] else self._fair[index]
        return UsageRatio(value, *fair, self._capacity_unit * g)

    def weighted_dominant_share(self, queue: str, held: Vector) -> Fraction:
        """Return the dominant share of the cluster that an amount is, over the weight of the queue."""
        parts = max(amount * part for amount, part in zip(held, self._unit_parts, strict=True))
        return Fraction(parts, self._capacity_unit * self._tree.queues[self._tree.index[queue]].weight)

    def user_usage_over_fair(self, owners: Iterable[tuple[str, str]], now_ms: int) -> Floats:
        """Return (A,) for each queue and user about the part of the cluster that the user has, over the fair part."""
        accounts = [(self._tree.index[queue], user) for queue, user in owners]
        capacity = np.array([parts / self._capacity_unit for parts in self._unit_parts])
        used = self._share_bounds.used(accounts, self.users, self._growth(now_ms), capacity)
        fair = [
            self._fair_part_of_own_jobs(index) if self._tree.children[index] else fair
            for index, fair in enumerate(self._fair)
        ]
        ratios: Floats = used * np.array([of / part for part, of in fair])[[index for index, _ in accounts]]
        return ratios

    def validate(self, fresh: "FairShares") -> None:
        """Compare with newly built shares; the AssertionError names what differs."""
        for name in ("base", "half_life_ms", "queues", "users", "_capacity_unit", "_unit_parts"):
            assert getattr(self, name) == getattr(fresh, name), f"shares of {name} differ"
        own, other = (shares._share_bounds.rows(shares.users) for shares in (self, fresh))  # noqa: SLF001 - its own kind
        assert own == other, "shares of users, as columns, differ"

    def _fair_part_of_own_jobs(self, index: int) -> tuple[int, int]:
        part, of = self._fair[index]
        return part, of * (1 + sum(self._tree.queues[child].weight for child in self._tree.children[index]))


def account_points(shares: FairShares, weights: Weights, queue: str, user: str, now_ms: int) -> int:
    """Return the points of every job of a user in a queue. They only fall while usage only grows."""
    return queue_points(shares, weights, queue, now_ms) + shares.user_usage(queue, user, now_ms).points(weights.user)


def queue_points(shares: FairShares, weights: Weights, queue: str, now_ms: int) -> int:
    """Return the points of every job in a queue: for what it has not used, and for its lag."""
    return shares.queue_usage(queue, now_ms).points(weights.queue) + lag_points(shares, weights, queue, now_ms)


def lag_points(shares: FairShares, weights: Weights, queue: str, now_ms: int) -> int:
    """Return the points of every job in a queue for its lag: for PAID_LAG_MS as many as for no usage at all."""
    return weights.queue * shares.queue_lag_ms(queue, now_ms) // PAID_LAG_MS


def gang_points(weights: Weights, priority: int, passed_over_ms: int) -> int:
    """Return the points of a job that do not depend on usage: of two with equal priority the older never has fewer."""
    late = max(0, passed_over_ms - weights.passed_over_after_ms) // MINUTE_MS
    return weights.priority * priority + weights.passed_over * late


def max_account_points(shares: FairShares, weights: Weights, owners: list[tuple[str, str]], now_ms: int) -> Floats:
    """Return (A,) close upper bounds of `account_points` for each queue and user."""
    by_queue = {queue: queue_points(shares, weights, queue, now_ms) for queue in dict.fromkeys(q for q, _ in owners)}
    bound: Floats = weights.user * (1 + SLACK) / (1 + shares.user_usage_over_fair(owners, now_ms)) + 1
    return bound + np.array([by_queue[queue] for queue, _ in owners], dtype=np.float64)


def max_gang_points(weights: Weights, priority: Ints, passed_over_ms: Ints) -> Floats:
    """Return (L,) close upper bounds of `gang_points` for each job."""
    late = np.maximum(0, passed_over_ms - weights.passed_over_after_ms) // MINUTE_MS
    by_time = weights.passed_over * late.astype(np.float64)
    by_priority = weights.priority * priority.astype(np.float64)
    bound: Floats = by_priority + by_time + SLACK * (np.abs(by_priority) + by_time)
    return bound


def _add(left: Vector, right: Vector) -> Vector:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def _scale_vector(vector: Vector, factor: int) -> Vector:
    return vector[0] * factor, vector[1] * factor, vector[2] * factor


def _fraction(vector: Vector, part: int, whole: int) -> Vector:
    """Return the fraction part / whole of a vector, rounded down."""
    return vector[0] * part // whole, vector[1] * part // whole, vector[2] * part // whole


def _add_metered(shares: AccountShares, metered: Vector, past: Vector) -> AccountShares:
    return AccountShares(shares.held, _add(shares.metered, metered), _add(shares.past, past))
