"""Time for a server: the wall's, but never behind what the log has, never standing still, and never running away.

Called by `engine.loop`, from its own thread and from those that ask it for the time. What passes is measured by a clock
that nobody sets and that counts on while the machine sleeps (CLOCK_BOOTTIME of clock_gettime(2)). When the wall is put
back, time goes on from where it was until the wall has caught up. When it is put forward by more than a correction,
limits on time must not strike early: time goes on a hundredth faster, and follows at once when it measures nothing.
"""

import threading
import time
from typing import Final

CORRECTION_MS: Final = 5_000
"""How far the wall may jump ahead, as when it is set by a time server, and be followed at once."""
_CATCHES_UP: Final = 100
"""Of a larger jump, the part of the time that passes which is made good meanwhile: one in so many."""
_MS: Final = 1_000_000


class WallClock:
    """Unix ms that only grow. `start_ms` is the time of the newest event in the log."""

    def __init__(self, start_ms: int = 0) -> None:
        """Begin at the wall's time, or at the log's if that is later."""
        self._lock = threading.Lock()
        self._now_ns = max(start_ms * _MS, time.time_ns())
        self._seen_ns = _passed_ns()

    def now_ms(self) -> int:
        """Now."""
        with self._lock:
            passed_ns, ahead_ns = self._advance()
            if ahead_ns > CORRECTION_MS * _MS:
                self._now_ns += min(passed_ns // _CATCHES_UP, ahead_ns)
            elif ahead_ns > 0:
                self._now_ns += ahead_ns
            return self._now_ns // _MS

    def behind_ms(self) -> int:
        """How far the wall clock is behind this one; negative where it is ahead."""
        return self.now_ms() - time.time_ns() // _MS

    def catch_up(self) -> None:
        """Nobody's time is measured now: be where the wall is, if that is ahead."""
        with self._lock:
            _, ahead_ns = self._advance()
            self._now_ns += max(ahead_ns, 0)

    def _advance(self) -> tuple[int, int]:
        """Add the time since the last reading of both clocks; return it, and how far the wall is then ahead, in ns."""
        # The wall is read first: what passes between the readings, as when the process is stopped there, is then seen
        # by the other clock alone. In the other order it would be added once more at the next reading.
        wall_ns, seen_ns = time.time_ns(), _passed_ns()
        passed_ns, self._seen_ns = seen_ns - self._seen_ns, seen_ns
        self._now_ns += passed_ns
        return passed_ns, wall_ns - self._now_ns


def _passed_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
