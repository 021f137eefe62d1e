"""Timers: which gangs the next scheduling cycle must examine, and when time alone changes a gang.

Derived from the gangs alone, and updated for each gang that an event touches, so that no cycle visits all gangs.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ganger.core.state.elastic_gangs import ElasticGangs
from ganger.core.state.gang import ACTIVE, LEAVING, STAYING, Gang
from ganger.model.job import GangState

Timer = tuple[int, int, str]
"""(time, number of the gang, its id)"""
STOPPING: Final = (*LEAVING, GangState.RESIZING)


class Timers:
    """The timers of all live gangs.

    in_transition: gangs, by id, that are being stopped or are to be stopped; all others change by timers only.
    elastic: elastic gangs that may get more nodes, or give some up.
    lenders: gangs, by id, whose jobs have spare nodes: they may lend them, or lack some.
    borrowers: gangs, by id, on spare nodes of others.
    """

    def __init__(self) -> None:
        """Start without gangs."""
        self.in_transition: dict[str, Gang] = {}
        self.elastic = ElasticGangs()
        self.lenders: dict[str, Gang] = {}
        self.borrowers: dict[str, Gang] = {}
        self._timers: list[Timer] = []
        self._timers_of: dict[str, tuple[Timer, ...]] = {}

    def note(self, gang: Gang, *, live: bool) -> None:
        """Update the timers of a gang that changed, or remove them when it has left the state."""
        for timer in self._timers_of.pop(gang.id, ()):
            del self._timers[bisect_left(self._timers, timer)]
        for gangs in (self.in_transition, self.lenders, self.borrowers):
            gangs.pop(gang.id, None)
        if gang.is_elastic:
            self.elastic.note(gang, live=live)
        if not live:
            return
        if gang.job.spec.spares and may_lend(gang):
            self.lenders[gang.id] = gang
        if gang.attempt.lent:
            self.borrowers[gang.id] = gang
        if (
            gang.end_cause
            or gang.attempt.recalled_by
            or gang.attempt.failure
            or gang.suspends
            or gang.goes_back
            or gang.attempt.vacates
            or (gang.state in ACTIVE and gang.size > gang.max_nodes)
            or gang.state in STOPPING
            or gang.has_used_its_time
        ):
            self.in_transition[gang.id] = gang
        timers = tuple((at_ms, gang.number, gang.id) for at_ms in timer_times_ms(gang))
        if timers:
            self._timers_of[gang.id] = timers
            for timer in timers:
                insort(self._timers, timer)

    def validate(self, rebuilt: "Timers") -> None:
        """Raise AssertionError naming the difference from timers that were rebuilt from the gangs."""
        assert self.in_transition.keys() == rebuilt.in_transition.keys(), "gangs in transition differ"
        assert self._timers == rebuilt._timers, "timers differ"  # noqa: SLF001 - the same class
        assert self.lenders.keys() == rebuilt.lenders.keys(), "gangs that may lend spares differ"
        assert self.borrowers.keys() == rebuilt.borrowers.keys(), "gangs on spares of others differ"
        assert self.elastic.by_unit == rebuilt.elastic.by_unit, "gangs that may grow differ"
        assert self.elastic.surplus.keys() == rebuilt.elastic.surplus.keys(), "gangs with surplus differ"

    def expired(self, now_ms: int) -> Iterator[str]:
        """Iterate over the ids of gangs with an expired timer, earliest first; a gang may occur twice."""
        return (name for _, _, name in islice(self._timers, bisect_right(self._timers, (now_ms + 1,))))

    def next_ms(self, now_ms: int) -> int | None:
        """Return the time of the first timer after `now_ms`."""
        position = bisect_right(self._timers, (now_ms + 1,))
        return self._timers[position][0] if position < len(self._timers) else None


def may_lend(gang: Gang) -> bool:
    """Return whether a gang goes on to hold the spares that no attempt of it needs."""
    return gang.state in STAYING and not (gang.end_cause or gang.suspends)


def deadline_ms(gang: Gang) -> int | None:
    """Return when one of the gang's own limits ends it if it stays as it is."""
    limits = gang.job.spec.limits
    if gang.state is GangState.PENDING:
        if gang.awaits:
            return None
        return None if limits.queue_time_ms is None else gang.since_ms + limits.queue_time_ms
    return gang.limit_ms(gang.attempt.began_ms) if gang.state in ACTIVE else None


def timer_times_ms(gang: Gang) -> Iterator[int]:
    """Iterate over the times at which time alone changes the gang, or at which it outlives its estimate."""
    end_ms = deadline_ms(gang)
    if end_ms is not None:
        yield end_ms
    if gang.state is GangState.RESIZING and gang.retries.kept_until_ms is not None:
        yield gang.retries.kept_until_ms
    if gang.state is GangState.PENDING and gang.retries.not_before_ms:
        yield gang.retries.not_before_ms
    if gang.state in ACTIVE and gang.time_ms is None and gang.expected is not None:
        yield gang.attempt.began_ms + gang.expected.run_ms - gang.ran_ms
