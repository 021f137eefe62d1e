"""Judges by what is seen of ranks whether they stand still. Pure: times come in with what was seen. Called by
`lookout`.
"""

from __future__ import annotations

LATE_S = 2.0
"""A look that comes later than this says nothing of the time before it: the machine slept, or this process did."""
DESERTED_AFTER_S = 5.0


class Attention:
    """A clock that runs only while somebody looks, so that time in which nothing could be seen proves nothing."""

    def __init__(self, now: float) -> None:
        self._seen_at = now
        self._attended_s = 0.0

    def look(self, now: float) -> float:
        """Seconds of attention, at a look at `now` (monotonic seconds)."""
        passed_s = now - self._seen_at
        self._seen_at = now
        if 0 < passed_s <= LATE_S:
            self._attended_s += passed_s
        return self._attended_s


class Desertion:
    """Whether all that mpirun or its like had started here is gone, though it has not noticed."""

    def __init__(self) -> None:
        self.has_run = False
        self._since_s: float | None = None

    def look(self, attended_s: float, *, has_ranks: bool, has_starter: bool) -> float | None:
        """Since when, once that is long enough to be told."""
        self.has_run = self.has_run or has_ranks
        if not self.has_run or has_ranks or not has_starter:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = attended_s
        if self._since_s is None or attended_s - self._since_s < DESERTED_AFTER_S:
            return None
        return self._since_s
