"""Node time that the jobs of each user have used, for limits of a sliding period (`model.queue.NodeTimeUsed`).

What an attempt used is known when it ends, and is added to sums by hour and by day, whether or not a limit exists:
one that is introduced later counts it. Until then the attempt is charged for all that it may use within the period
(`QueueTree.charge_period`). A period begins with a whole bucket, an hour or a day: the one that contains the time
`per` ago. So what was used leaves a period on the hour, or at midnight (UTC), and the sum of a period is recomputed
only then, or when an attempt ends, from as many sums as the period has buckets: never from the jobs themselves.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ganger.model.queue import HOURLY_PERIOD_MS, MAX_PERIOD_MS, NodeTimeUsed, slide_ms
from ganger.model.units import DAY_MS, HOUR_MS

KEPT_MS: Final = {HOUR_MS: HOURLY_PERIOD_MS, DAY_MS: MAX_PERIOD_MS}
"""By length of the buckets, the longest period that is summed from them."""
Buckets = dict[int, int]
"""Node-milliseconds by number of the hour or day since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimeRecord:
    """Node-milliseconds that ended attempts of a user in a queue used, by hour and by day since 1970."""

    queue: str
    user: str
    hours: tuple[tuple[int, int], ...]
    days: tuple[tuple[int, int], ...]


class PeriodSum(NamedTuple):
    """Node time that a user used from a bucket on, after so many additions."""

    version: int
    first: int
    node_ms: int


class NodeTimeUsage:
    """Node time of ended attempts by queue and user.

    now_ms: the time of the current cycle, at which periods end.
    """

    def __init__(self, records: Iterable[NodeTimeRecord] = (), now_ms: int = 0) -> None:
        """Restore the records of `image`."""
        self.now_ms = now_ms
        self._accounts: dict[tuple[str, str], dict[int, Buckets]] = {}
        self._filled: dict[int, list[int]] = {bucket_ms: [] for bucket_ms in KEPT_MS}
        """By length of the buckets, those in which an account used something, sorted."""
        self._versions: dict[str, int] = {}
        """By user, how often something was added."""
        for record in records:
            self.restore(record)

    def restore(self, record: NodeTimeRecord) -> None:
        """Add what a record says that a user used."""
        account = self._accounts.setdefault((record.queue, record.user), {bucket_ms: {} for bucket_ms in KEPT_MS})
        for bucket_ms, rows in ((HOUR_MS, record.hours), (DAY_MS, record.days)):
            self._add(account, bucket_ms, rows)
        self._versions[record.user] = self._versions.get(record.user, 0) + 1

    def add(self, queue: str, user: str, nodes: int, interval_ms: tuple[int, int]) -> None:
        """Add what an attempt on that many nodes used from its start to its end, which is now."""
        began_ms, ended_ms = interval_ms
        account = self._accounts.setdefault((queue, user), {bucket_ms: {} for bucket_ms in KEPT_MS})
        for bucket_ms, kept_ms in KEPT_MS.items():
            first = _first_bucket(ended_ms, kept_ms, bucket_ms)
            del self._filled[bucket_ms][: bisect_left(self._filled[bucket_ms], first)]
            account[bucket_ms] = {bucket: amount for bucket, amount in account[bucket_ms].items() if bucket >= first}
            parts = by_period(max(began_ms, first * bucket_ms), ended_ms, bucket_ms)
            self._add(account, bucket_ms, ((bucket, nodes * part_ms) for bucket, part_ms in parts))
        self._versions[user] = self._versions.get(user, 0) + 1

    def _add(self, account: dict[int, Buckets], bucket_ms: int, rows: Iterable[tuple[int, int]]) -> None:
        filled, buckets = self._filled[bucket_ms], dict(account[bucket_ms])
        for bucket, amount in rows:
            buckets[bucket] = buckets.get(bucket, 0) + amount
            position = bisect_left(filled, bucket)
            if filled[position : position + 1] != [bucket]:
                filled.insert(position, bucket)
        account[bucket_ms] = buckets

    def move(self, queue: str, target: str) -> None:
        """Move what a removed queue has used to another."""
        for record in self.records(0):
            if record.queue == queue:
                del self._accounts[queue, record.user]
                self.restore(replace(record, queue=target))

    def used(self, queues: Sequence[str], user: str, limit: NodeTimeUsed, known: PeriodSum | None) -> PeriodSum:
        """Return what ended attempts of a user used within the period in these queues; `known` if that still holds."""
        version, first = self._versions.get(user, 0), _first_bucket(self.now_ms, limit.per_ms, slide_ms(limit.per_ms))
        if known is not None and known[:2] == (version, first):
            return known
        return PeriodSum(version, first, sum(amount for _, amount in self.leaving(queues, user, limit)))

    def leaving(self, queues: Sequence[str], user: str, limit: NodeTimeUsed) -> Iterator[tuple[int, int]]:
        """Yield (time, amount) of what leaves the period, if nothing else is used, in no order."""
        bucket_ms = slide_ms(limit.per_ms)
        first = _first_bucket(self.now_ms, limit.per_ms, bucket_ms)
        for queue in queues:
            for bucket, amount in self._accounts.get((queue, user), {}).get(bucket_ms, {}).items():
                if bucket >= first:
                    yield leaves_ms(bucket, limit), amount

    def next_leave_ms(self, now_ms: int, limits: Iterable[NodeTimeUsed]) -> int | None:
        """Return when the first of these periods slides past something that was used; None if none does."""
        times_ms = list[int]()
        for limit in limits:
            filled = self._filled[slide_ms(limit.per_ms)]
            position = bisect_left(filled, _first_bucket(now_ms, limit.per_ms, slide_ms(limit.per_ms)))
            times_ms += (leaves_ms(bucket, limit) for bucket in filled[position : position + 1])
        return min(times_ms, default=None)

    def records(self, at_ms: int) -> list[NodeTimeRecord]:
        """Return what a snapshot keeps, which is what some period could still contain."""
        hours, days = (_first_bucket(at_ms, KEPT_MS[bucket_ms], bucket_ms) for bucket_ms in (HOUR_MS, DAY_MS))
        records = (
            NodeTimeRecord(
                queue=queue,
                user=user,
                hours=_rows(account[HOUR_MS], hours),
                days=_rows(account[DAY_MS], days),
            )
            for (queue, user), account in sorted(self._accounts.items())
        )
        return [record for record in records if record.days]

    def copy(self) -> "NodeTimeUsage":
        """Return a copy, to be read while this one goes on."""
        # The buckets of an account are replaced, never changed.
        other = copy(self)
        other._accounts = {key: dict(account) for key, account in self._accounts.items()}  # noqa: SLF001 - its own kind
        other._filled = {length: list(filled) for length, filled in self._filled.items()}  # noqa: SLF001 - the same
        other._versions = dict(self._versions)  # noqa: SLF001 - the same
        return other


def by_period(began_ms: int, ended_ms: int, period_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the periods of the calendar that an interval touches, by number, and the milliseconds in each."""
    while began_ms < ended_ms:
        period = began_ms // period_ms
        until_ms = min(ended_ms, (period + 1) * period_ms)
        yield period, until_ms - began_ms
        began_ms = until_ms


def leaves_ms(bucket: int, limit: NodeTimeUsed) -> int:
    """Return when what was used in a bucket leaves the period."""
    return (bucket + 1) * slide_ms(limit.per_ms) + limit.per_ms


def _first_bucket(now_ms: int, per_ms: int, bucket_ms: int) -> int:
    return (now_ms - per_ms) // bucket_ms


def _rows(buckets: Buckets, first: int) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((bucket, amount) for bucket, amount in buckets.items() if bucket >= first))
