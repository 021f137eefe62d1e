"""Time for a server: the wall clock's, but never behind the log, never standing still, and never jumping far ahead.

Elapsed time is measured by a clock that cannot be set and that counts on while the machine sleeps (CLOCK_BOOTTIME of
clock_gettime(2)). When the wall clock is set back, time continues from where it was until the wall clock has caught up.
When it is set forward by more than a correction, time limits must not strike early: time runs a hundredth faster, and
follows at once when it measures nothing.
"""

import threading
import time
from typing import Final

CORRECTION_MS: Final = 5_000
"""A jump ahead of up to this, as by a time server, is followed at once."""
_CATCH_UP_DIVISOR: Final = 100
"""Of a larger jump, one part in so many of the elapsed time is made up."""
_MS: Final = 1_000_000


class WallClock:
    """Unix ms that only grow. `start_ms` is the time of the newest event in the log."""

    def __init__(self, start_ms: int = 0) -> None:
        """Begin at the wall clock's time, or at the log's if that is later."""
        self._lock = threading.Lock()
        self._now_ns = max(start_ms * _MS, time.time_ns())
        self._last_boot_ns = _boot_ns()

    def now_ms(self) -> int:
        """Return the time in Unix ms."""
        with self._lock:
            elapsed_ns, ahead_ns = self._advance()
            if ahead_ns > CORRECTION_MS * _MS:
                self._now_ns += min(elapsed_ns // _CATCH_UP_DIVISOR, ahead_ns)
            elif ahead_ns > 0:
                self._now_ns += ahead_ns
            return self._now_ns // _MS

    def behind_ms(self) -> int:
        """Return how far the wall clock is behind this one; negative where it is ahead."""
        return self.now_ms() - time.time_ns() // _MS

    def catch_up(self) -> None:
        """Jump to the wall clock, if that is ahead: no time is being measured."""
        with self._lock:
            _, ahead_ns = self._advance()
            self._now_ns += max(ahead_ns, 0)

    def _advance(self) -> tuple[int, int]:
        """Add the time since the last reading of both clocks; return it, and how far the wall clock is ahead, in ns."""
        # The wall clock is read first: time that passes between the readings, as when the process is stopped there, is
        # then in the boot clock alone. In the other order it would be added once more at the next reading.
        wall_ns, boot_ns = time.time_ns(), _boot_ns()
        elapsed_ns, self._last_boot_ns = boot_ns - self._last_boot_ns, boot_ns
        self._now_ns += elapsed_ns
        return elapsed_ns, wall_ns - self._now_ns


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
