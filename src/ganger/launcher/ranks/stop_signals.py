"""Schedule of a stop: notice, then SIGTERM, then SIGKILL."""

from __future__ import annotations

import signal


class StopSignals:
    """Deadlines of a stop in monotonic seconds; a repeated request can only bring them forward."""

    def __init__(self, now: float, notice_s: float, kill_after_s: float) -> None:
        self.began_at = now
        self.term_at = now + notice_s
        self.kill_at = self.term_at + kill_after_s
        self.sent: signal.Signals | None = None

    @property
    def due(self) -> float:
        """Time of the next `step`."""
        if self.sent is None:
            return self.term_at
        return self.kill_at if self.sent == signal.SIGTERM else float("inf")

    @property
    def grace_s(self) -> float:
        """Length of the notice."""
        return self.term_at - self.began_at

    @property
    def gave_time(self) -> bool:
        """True if there was any time between the first notice and SIGKILL."""
        return self.kill_at > self.began_at

    def hasten(self, now: float, notice_s: float, kill_after_s: float) -> bool:
        """Bring the deadlines forward; return True if the notice ends earlier than announced."""
        is_earlier = self.sent is None and now + notice_s < self.term_at
        self.term_at = min(self.term_at, now + notice_s)
        self.kill_at = min(self.kill_at, now + notice_s + kill_after_s)
        return is_earlier

    def step(self, now: float) -> signal.Signals | None:
        """Return the signal to send now, each once."""
        if now < self.due:
            return None
        self.sent = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        return self.sent
