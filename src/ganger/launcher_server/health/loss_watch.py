"""The loss watch: finds a loss that is not finite, spikes or does not fall any more, and steps that became slow.

A pure automaton over what is reported of each step, at a constant cost. `core.failure.rollback` has what follows from
a finding.

Usual values and their spread are the median and the median absolute deviation (MAD) of a window, which a few outliers
do not move; 1.4826 MAD estimates the standard deviation of a normal distribution, and a value is judged by its distance
from the median in that unit (Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers"). Values that stand out do
not enter the window, unless they last for so long that they are the new level. docs/how-to/failures.md, "Loss watch",
documents the thresholds.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Final

from ganger.model.watch.watch_event import Anomaly
from ganger.model.watch.watch_rules import Finding

WINDOW: Final = 64
"""Newest usual values that a new one is compared with."""
KNOWN: Final = 32
"""Values after which the usual ones count as known; also those in a row after which something has passed."""
DEVIATION: Final = 1.4826
SPIKE_DEVIATIONS: Final = 6
SPIKE_SHARE: Final = 0.05
"""Least distance of a spike from the median, as a share of that: where the loss hardly varies, the MAD is about 0."""
SPIKE_VALUES: Final = 3
"""Values in a row that make a spike: one alone may be a hard batch."""
NEW_LEVEL: Final = 4 * WINDOW
"""Unusual values in a row that are the new usual ones."""
STALL_BLOCKS: Final = 16
"""Medians of `WINDOW` values in a row of which none is below the least one before: that is a stall of the loss."""
FALL_SHARE: Final = 0.001
"""Least fall of a median, as a share of it, that is progress."""
SLOW_FACTOR: Final = 1.5
SLOW_VALUES: Final = 9
"""Newest step times whose median is compared: single long steps evaluate or save."""
SLOW_MS: Final = 60_000
"""Time for which steps must be slow: short disturbances are usual."""


class UsualValues:
    """The newest usual values of a figure."""

    def __init__(self) -> None:
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Add a value, the oldest one goes."""
        if len(self._values) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()
        self._sorted.clear()

    @property
    def is_known(self) -> bool:
        """True if there are enough to compare with."""
        return len(self._values) >= KNOWN

    @property
    def median(self) -> float:
        """The median; the greater of two, so that it is one of the values."""
        return self._sorted[len(self._sorted) // 2]

    @property
    def deviation(self) -> float:
        """The standard deviation, estimated by the MAD."""
        middle = self.median
        return DEVIATION * median(abs(value - middle) for value in self._sorted)


class Episode:
    """Values in a row that stand out, and whether that was reported."""

    def __init__(self) -> None:
        self.first_step = 0
        self.count = 0
        self._normal = KNOWN
        self._is_reported = False

    def extend(self, step: int) -> None:
        """Count a value that stands out."""
        self.first_step = self.first_step if self.count else step
        self.count, self._normal = self.count + 1, 0

    def interrupt(self) -> None:
        """Count a value that does not."""
        self.count, self._normal = 0, self._normal + 1
        self._is_reported = self._is_reported and self._normal < KNOWN

    def report(self) -> bool:
        """Return whether it is to be reported now, which is once until it has passed."""
        is_new = not self._is_reported
        self._is_reported = True
        return is_new


class LossWatch:
    """The watch over one generation of a gang."""

    def __init__(self, gang: str, generation: int) -> None:
        self._gang = gang
        self._generation = generation
        self._losses = UsualValues()
        self._nan, self._spike, self._slow = Episode(), Episode(), Episode()
        self._block: list[float] = []
        self._least: float | None = None
        self._blocks_without_fall = 0
        self._step_ms = UsualValues()
        self._recent_ms: deque[float] = deque(maxlen=SLOW_VALUES)
        self._last: tuple[int, int] | None = None
        self._slow_since_ms = 0

    def observe(self, step: int, at_ms: int, loss: float | None) -> tuple[Anomaly, ...]:
        """Return what a report of a step shows; a loss of None is not a finite number."""
        found = tuple(self._watch_loss(step, None if loss is None or not math.isfinite(loss) else loss))
        return (*found, *self._watch_step_time(step, at_ms))

    def _watch_loss(self, step: int, loss: float | None) -> Iterator[Anomaly]:
        if loss is None:
            self._nan.extend(step)
            if self._nan.report():
                yield self._anomaly(Finding.NAN, step, usual=self._losses.median if self._losses.is_known else None)
            return
        self._nan.interrupt()
        yield from self._watch_spike(step, loss)
        yield from self._watch_stall(step, loss)

    def _watch_spike(self, step: int, loss: float) -> Iterator[Anomaly]:
        if not self._losses.is_known or not self._is_spike(loss):
            self._spike.interrupt()
            self._losses.add(loss)
            return
        self._spike.extend(step)
        if self._spike.count == NEW_LEVEL:
            self._losses.clear()
        elif self._spike.count == SPIKE_VALUES and self._spike.report():
            yield self._anomaly(Finding.SPIKE, self._spike.first_step, loss, self._losses.median)

    def _is_spike(self, loss: float) -> bool:
        middle = self._losses.median
        return loss - middle > max(SPIKE_DEVIATIONS * self._losses.deviation, SPIKE_SHARE * abs(middle))

    def _watch_stall(self, step: int, loss: float) -> Iterator[Anomaly]:
        self._block.append(loss)
        if len(self._block) < WINDOW:
            return
        middle = median(self._block)
        self._block.clear()
        if self._least is None or middle < self._least - FALL_SHARE * abs(self._least):
            self._least, self._blocks_without_fall = middle, 0
            return
        self._blocks_without_fall += 1
        if self._blocks_without_fall == STALL_BLOCKS:
            yield self._anomaly(Finding.STALL, step, middle, self._least, STALL_BLOCKS * WINDOW)

    def _watch_step_time(self, step: int, at_ms: int) -> Iterator[Anomaly]:
        before, self._last = self._last, (step, at_ms)
        if before is None or step <= before[0] or at_ms <= before[1]:
            return
        leaves = self._recent_ms[0] if len(self._recent_ms) == SLOW_VALUES else None
        self._recent_ms.append((at_ms - before[1]) / (step - before[0]))
        if not self._is_slow():
            self._slow.interrupt()
            if leaves is not None:
                self._step_ms.add(leaves)
            return
        self._slow_since_ms = self._slow_since_ms if self._slow.count else at_ms
        self._slow.extend(step)
        if self._slow.count == NEW_LEVEL:
            self._step_ms.clear()
        elif at_ms - self._slow_since_ms >= SLOW_MS and self._slow.report():
            yield self._anomaly(Finding.SLOW, self._slow.first_step, median(self._recent_ms), self._step_ms.median)

    def _is_slow(self) -> bool:
        if not self._step_ms.is_known:
            return False
        middle, recent_ms = self._step_ms.median, median(self._recent_ms)
        return recent_ms > SLOW_FACTOR * middle and recent_ms - middle > 3 * self._step_ms.deviation

    def _anomaly(
        self, finding: Finding, step: int, value: float | None = None, usual: float | None = None, lasted: int = 0
    ) -> Anomaly:
        gang, generation = self._gang, self._generation
        return Anomaly(
            gang=gang, generation=generation, finding=finding, step=step, value=value, usual=usual, lasted=lasted
        )
