"""Measurement of how busy a rank is within its steps, on the first thread of the process that reports them.

Ranks that train in step take the same time per step: a rank that waits for others sleeps, and the one they wait for
does not. docs/how-to/failures.md, "Straggler", has the conclusions drawn from it. Pure: samples are passed in.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLES = 32
"""Number of newest samples that count; each covers one step, or the steps between two polls."""
TENTH = SAMPLES // 10
FRESH_S = 5.0


class BusySamples:
    """The samples of one rank."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)  # ran, ran or queued, in permille of the time
        self._steps = 0
        self._since: tuple[object, float, tuple[int, int]] | None = None  # process, time, its run times
        self._fresh_s = 0.0

    def is_due(self, steps: int) -> bool:
        """Return True if a step was made since the last sample."""
        return self._since is None or steps > self._steps

    def discard_interval(self) -> None:
        """Discard the time since the last sample, which was not spent in steps."""
        self._since = None

    def add(self, source: object, steps: int, times_ns: tuple[int, int] | None, at_s: float) -> None:
        """Add a sample: how long the thread has run, and has waited for a processor; None if that is unknown.

        A different `source` means another process, or an interruption since the last sample.
        """
        since, self._since = self._since, None if times_ns is None else (source, at_s, times_ns)
        self._steps = steps
        if since is None or times_ns is None or since[0] != source or at_s <= since[1]:
            return
        passed_s = at_s - since[1]
        ran, queued = (
            max(0, time_ns - previous_ns) / passed_s / 1e6 for time_ns, previous_ns in zip(times_ns, since[2])
        )
        self._samples.append((min(1000, int(ran)), min(1000, int(ran + queued))))
        self._fresh_s = at_s + FRESH_S + 2 * passed_s

    def shares(self, at_s: float) -> list[int] | None:
        """Return shares of the time in permille: running, running or queued, and the latter's lowest tenth.

        The first two are medians; nine samples in ten reach the third. None until there are enough samples, and when
        they are old.
        """
        if len(self._samples) < SAMPLES or at_s > self._fresh_s:
            return None
        busy = sorted(busy for _, busy in self._samples)
        return [_median(sorted(ran for ran, _ in self._samples)), _median(busy), busy[TENTH]]


def _median(ordered: Sequence[int]) -> int:
    return ordered[len(ordered) // 2]
