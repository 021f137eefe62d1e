"""Where a job's time goes. The parts add up to wall time, to the millisecond, because each moment is booked once.

Kept with each gang by `core.apply`, shown by `engine.service`. Work counts as productive once it is saved: what was
done after the newest checkpoint is lost when the attempt fails. A job that reports no steps is taken to work from the
moment it runs; for one that does, the time before an attempt's first step belongs to starting, or to recovery after a
failure.
"""

from dataclasses import dataclass
from typing import Literal

from ganger.model.view import Ledger

Part = Literal["queued", "starting", "working", "recovery", "lost"]


@dataclass(slots=True, kw_only=True)
class Account:
    """Open account of one gang: time since `since_ms` belongs to `part`; unsaved_ms is work since the last save."""

    opened_ms: int
    since_ms: int
    part: Part = "queued"
    queued_ms: int = 0
    starting_ms: int = 0
    productive_ms: int = 0
    lost_ms: int = 0
    recovery_ms: int = 0
    unsaved_ms: int = 0

    def turn(self, at_ms: int, part: Part) -> None:
        """Book the time up to now; from now on it belongs to `part`."""
        self._book(self.part, at_ms - self.since_ms)
        self.part, self.since_ms = part, at_ms

    def first_step(self, at_ms: int, part: Part) -> None:
        """The attempt's first step is done: what was taken for work so far was getting there."""
        self.turn(at_ms, "working")
        self._book(part, self.unsaved_ms)
        self.unsaved_ms = 0

    def save(self, at_ms: int) -> None:
        """All work up to now is kept."""
        self.turn(at_ms, self.part)
        self.productive_ms += self.unsaved_ms
        self.unsaved_ms = 0

    def lose(self, at_ms: int) -> None:
        """Work since the newest checkpoint is to be done again."""
        self.turn(at_ms, self.part)
        self.lost_ms += self.unsaved_ms
        self.unsaved_ms = 0

    def ledger(self, now_ms: int) -> Ledger:
        """The parts up to now; work that is not saved yet counts as productive until it is lost."""
        open_ms = {"queued": 0, "starting": 0, "working": 0, "recovery": 0, "lost": 0}
        open_ms[self.part] = now_ms - self.since_ms
        return Ledger(
            queued_ms=self.queued_ms + open_ms["queued"],
            starting_ms=self.starting_ms + open_ms["starting"],
            productive_ms=self.productive_ms + self.unsaved_ms + open_ms["working"],
            lost_ms=self.lost_ms + open_ms["lost"],
            recovery_ms=self.recovery_ms + open_ms["recovery"],
            total_ms=now_ms - self.opened_ms,
        )

    def _book(self, part: Part, passed_ms: int) -> None:
        match part:
            case "queued":
                self.queued_ms += passed_ms
            case "starting":
                self.starting_ms += passed_ms
            case "working":
                self.unsaved_ms += passed_ms
            case "recovery":
                self.recovery_ms += passed_ms
            case "lost":
                self.lost_ms += passed_ms
