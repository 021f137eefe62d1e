"""First starts of gangs: the time since which a pending gang has been passed over.

A gang is passed over while gangs start that were submitted after it, and none that was submitted before it. So a long
queue that is served in some order passes no gang over, however long it is, and each gang waits for finitely many older
ones: what grows with this time starves no gang, and keeps any order otherwise.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.undo import Undo

MAX_STEPS: Final = 1_024
"""Steps that are kept: a gang older than all of them has been passed over by at least as many."""
Steps = tuple[tuple[int, ...], tuple[int, ...]]
"""(numbers of gangs, times of their first start), both rising."""


class FirstStarts:
    """By number of a gang, the time of the latest first start of an older one."""

    def __init__(self, starts: Iterable[tuple[int, int]], undo: Undo) -> None:
        """Restore the (number, time) of `image`."""
        numbers, times_ms = zip(*starts, strict=True) if (starts := tuple(starts)) else ((), ())
        self._steps: list[Steps] = [(numbers, times_ms)]
        self._undo = undo

    @classmethod
    def of_running(cls, gangs: Iterable[tuple[int, int]], undo: Undo) -> "FirstStarts":
        """Return what follows from the (start, number) of running gangs: a controller that restarts has no more."""
        starts = cls((), undo)
        for began_ms, number in sorted(gangs):
            starts.record(number, began_ms)
        return starts

    def image(self) -> list[tuple[int, int]]:
        """Return what a snapshot keeps."""
        return list(zip(*self._steps[0], strict=True))

    def record(self, number: int, at_ms: int) -> None:
        """Record a first start now; undone with a trial."""
        numbers, times_ms = self._steps[0]
        # For gangs younger than this one, starts of still younger ones until now no longer matter.
        kept = bisect_left(numbers, number)
        steps = (*numbers[:kept], number)[-MAX_STEPS:], (*times_ms[:kept], at_ms)[-MAX_STEPS:]
        self._undo.put(self._steps, 0, steps)

    def since_ms(self, number: int) -> int:
        """Return the time of the latest first start of a gang older than that number; 0 where none is known."""
        numbers, times_ms = self._steps[0]
        older = bisect_left(numbers, number)
        return times_ms[older - 1] if older else 0

    def all_since_ms(self, numbers: Ints) -> Ints:
        """Return (L,) the same for each of these numbers."""
        known, times_ms = self._steps[0]
        older = np.searchsorted(np.array(known, dtype=np.int64), numbers)
        since_ms: Ints = np.array((0, *times_ms), dtype=np.int64)[older]
        return since_ms
