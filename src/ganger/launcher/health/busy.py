"""How much of its steps a rank is at work, by the first thread of the process that reports them. Called by `lookout`.

In training that is in step, all ranks take the same time for a step: whoever is held up sleeps, and whom they wait for
does not. What is concluded from it: docs/reference/failures.md, "Straggler". Pure: what was seen comes in.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLES = 32
"""So many of the newest samples count; each is of one step, or of those between two looks."""
TENTH = SAMPLES // 10
FRESH_S = 5.0


class BusySamples:
    """Of one rank."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)  # ran, ran or queued, in permille of the time
        self._steps = 0
        self._since: tuple[object, float, tuple[int, int]] | None = None  # of what, when, its times
        self._fresh_s = 0.0

    def is_due(self, steps: int) -> bool:
        """Whether a step was made since the last sample."""
        return self._since is None or steps > self._steps

    def interrupted(self) -> None:
        """Something else than steps is done: what was used since the last sample does not count."""
        self._since = None

    def seen(self, of: object, steps: int, times_ns: tuple[int, int] | None, at_s: float) -> None:
        """How long its thread has run so far, and how long it has waited for a processor; None when that cannot be
        seen. When `of` differs, it is of another process, or after an interruption."""
        since, self._since = self._since, None if times_ns is None else (of, at_s, times_ns)
        self._steps = steps
        if since is None or times_ns is None or since[0] != of or at_s <= since[1]:
            return
        passed_s = at_s - since[1]
        ran, queued = (max(0, now - then) / passed_s / 1e6 for now, then in zip(times_ns, since[2]))
        self._samples.append((min(1000, int(ran)), min(1000, int(ran + queued))))
        self._fresh_s = at_s + FRESH_S + 2 * passed_s

    def shares(self, at_s: float) -> list[int] | None:
        """In permille of the time: how much it ran, how much it ran or waited for a processor, both in the median; and
        the latter, of which nine samples in ten have as much. None until there are enough samples, and when they are
        old."""
        if len(self._samples) < SAMPLES or at_s > self._fresh_s:
            return None
        busy = sorted(busy for _, busy in self._samples)
        return [_median(sorted(ran for ran, _ in self._samples)), _median(busy), busy[TENTH]]


def _median(ordered: Sequence[int]) -> int:
    return ordered[len(ordered) // 2]
