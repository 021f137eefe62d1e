"""When a stop turns from a notice to SIGTERM and from SIGTERM to SIGKILL. Called by `generation`."""

from __future__ import annotations

import signal


class StopSignals:
    """Deadlines in monotonic seconds. Asking again can only bring them nearer."""

    def __init__(self, now: float, notice_s: float, kill_after_s: float) -> None:
        self.began_at = now
        self.term_at = now + notice_s
        self.kill_at = self.term_at + kill_after_s
        self.sent: signal.Signals | None = None

    @property
    def due(self) -> float:
        """When `step` has something to do."""
        if self.sent is None:
            return self.term_at
        return self.kill_at if self.sent == signal.SIGTERM else float("inf")

    @property
    def grace_s(self) -> float:
        """How long the notice was."""
        return self.term_at - self.began_at

    @property
    def gave_time(self) -> bool:
        """Whether there was any time between the first word of it and SIGKILL."""
        return self.kill_at > self.began_at

    def hasten(self, now: float, notice_s: float, kill_after_s: float) -> bool:
        """True when the notice ends earlier than was said."""
        earlier = self.sent is None and now + notice_s < self.term_at
        self.term_at = min(self.term_at, now + notice_s)
        self.kill_at = min(self.kill_at, now + notice_s + kill_after_s)
        return earlier

    def step(self, now: float) -> signal.Signals | None:
        """The signal to send now, each once."""
        if now < self.due:
            return None
        self.sent = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        return self.sent
