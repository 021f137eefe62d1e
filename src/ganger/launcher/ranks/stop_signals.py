"""Schedules of a stop: notice, then SIGTERM, then SIGKILL; and of an eviction, whose stop the server decides."""

from __future__ import annotations

import signal

REPLY_S = 2.0  # for the server to stop the whole gang
END_S = 2.0  # between SIGKILL for the ranks and that for the launcher: to report what happened


class StopSignals:
    """Deadlines of a stop in monotonic seconds; a repeated request can only bring them forward."""

    def __init__(self, now: float, notice_s: float, kill_after_s: float) -> None:
        self.began_at = now
        self.term_at = now + notice_s
        self.kill_at = self.term_at + kill_after_s
        self.leave_at = self.kill_at  # until then the node is the generation's, for copies of what the ranks saved
        self.is_early = False  # the ranks end before the notice does: they have saved
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
        self.leave_at = min(self.leave_at, now + notice_s + kill_after_s)
        return is_earlier

    def end_ranks(self, now: float) -> None:
        """End the ranks now, which have done what the notice asked for; the node is left when it was to be."""
        if self.sent is None and now < self.term_at:
            self.is_early, self.kill_at, self.term_at = True, now + self.kill_at - self.term_at, now

    def step(self, now: float) -> signal.Signals | None:
        """Return the signal to send now, each once."""
        if now < self.due:
            return None
        self.sent = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        return self.sent


class Eviction:
    """Schedule of an eviction, or of the shutdown of the node, in monotonic seconds.

    `grace_period_s` is the text of the container's grace period, empty without one; `kill_after_s` the time that ranks
    have between SIGTERM and SIGKILL. `notice_s`, what is left of the grace period, is the notice that ranks get.
    """

    def __init__(self, grace_period_s: str, kill_after_s: float) -> None:
        try:
            self.notice_s = max(0.0, float(grace_period_s or 0) - kill_after_s - END_S)
        except ValueError:
            self.notice_s = 0.0
        self.due = float("inf")
        self._leave_by = float("inf")

    def begin(self, now: float, *, has_server: bool) -> bool:
        """Begin the notice; return False if there is no time for one, or it has begun.

        With a server it is due, without that server's help, only after the time for its reply.
        """
        if self.notice_s <= 0 or self._leave_by != float("inf"):
            return False
        self._leave_by, self.due = now + self.notice_s, now + (REPLY_S if has_server else 0)
        return True

    @property
    def awaits_server(self) -> bool:
        """True while the server may still stop the whole gang; that ends when it does, or after the time for it."""
        return self._leave_by != float("inf") and self.due != float("inf")

    def step(self, now: float) -> float | None:
        """Return the rest of the notice when it is due, once."""
        if now < self.due:
            return None
        self.due = float("inf")
        return max(0.0, self._leave_by - now)
