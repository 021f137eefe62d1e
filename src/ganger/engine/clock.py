"""Time for a server: the wall's, but never behind what the log has, and never standing still.

Called by `engine.loop`, from its own thread and from those that ask it for the time. When the wall clock is put back,
time goes on from where it was by the monotonic clock until the wall has caught up; `behind_ms` says by how much.
"""

import threading
import time


class WallClock:
    """Unix ms that only grow. `start_ms` is the time of the newest event in the log."""

    def __init__(self, start_ms: int = 0) -> None:
        """Begin at the wall's time, or at the log's if that is later."""
        self._lock = threading.Lock()
        self._last_ms = max(start_ms, _wall_ms())
        self._last_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """Now."""
        with self._lock:
            passed_ms = (time.monotonic_ns() - self._last_ns) // 1_000_000
            self._last_ns += passed_ms * 1_000_000
            self._last_ms = max(_wall_ms(), self._last_ms + passed_ms)
            return self._last_ms

    def behind_ms(self) -> int:
        """How far the wall clock is behind this one."""
        return max(0, self.now_ms() - _wall_ms())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
