"""Who needs a look in the next round, and what time alone does and when: nobody walks over all gangs to find out.

Owned by `core.state.state`, told of every gang that an event touched; read by `core.cycle.plan`. Derived from the gangs
alone."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ganger.core.state.gang import LEAVING, RUNS, Gang
from ganger.model.job import GangState

Moment = tuple[int, int, str]
"""(when, number, id)"""
BUSY: Final = (*LEAVING, GangState.FINISHING)


class Timers:
    """restless: gangs that are being stopped or are to be, by id; the others change by time alone, if at all."""

    def __init__(self) -> None:
        """Nobody."""
        self.restless: dict[str, Gang] = {}
        self._moments: list[Moment] = []
        self._of: dict[str, tuple[Moment, ...]] = {}

    def note(self, gang: Gang, *, lives: bool) -> None:
        """A gang was touched, or has left the state."""
        for moment in self._of.pop(gang.id, ()):
            del self._moments[bisect_left(self._moments, moment)]
        self.restless.pop(gang.id, None)
        if not lives:
            return
        if gang.end_cause or gang.failure or gang.suspends or gang.drains or gang.state in BUSY or gang.is_worn:
            self.restless[gang.id] = gang
        moments = tuple((at_ms, gang.number, gang.id) for at_ms in moments_ms(gang))
        if moments:
            self._of[gang.id] = moments
            for moment in moments:
                insort(self._moments, moment)

    def validate(self, anew: "Timers") -> None:
        """Compare with one that was told of every live gang. AssertionError names what differs."""
        assert self.restless.keys() == anew.restless.keys(), "who needs a look differs"
        assert self._moments == anew._moments, "moments differ"  # noqa: SLF001 - its own kind

    def over(self, now_ms: int) -> Iterator[str]:
        """Ids of gangs with a moment that has come, earliest first. A gang may be named twice."""
        return (name for _, _, name in islice(self._moments, bisect_right(self._moments, (now_ms + 1,))))

    def next_ms(self, now_ms: int) -> int | None:
        """The first moment after now."""
        at = bisect_right(self._moments, (now_ms + 1,))
        return self._moments[at][0] if at < len(self._moments) else None


def deadline_ms(gang: Gang) -> int | None:
    """When one of the gang's own limits ends it, if it stays as it is."""
    limits = gang.job.spec.limits
    if gang.state is GangState.PENDING:
        if gang.awaits:
            return None
        return None if limits.queue_time_ms is None else gang.since_ms + limits.queue_time_ms
    return gang.limit_ms(gang.began_ms) if gang.state in RUNS else None


def moments_ms(gang: Gang) -> Iterator[int]:
    """When time alone does something to it, or tells that it runs for longer than was expected."""
    end_ms = deadline_ms(gang)
    if end_ms is not None:
        yield end_ms
    if gang.state is GangState.PENDING and gang.not_before_ms:
        yield gang.not_before_ms
    if gang.state in RUNS and gang.time_ms is None and gang.expected is not None:
        yield gang.began_ms + gang.expected.run_ms - gang.ran_ms
