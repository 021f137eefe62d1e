"""Where a job's time goes. The parts add up to wall time, to the millisecond, because each moment is booked once.

Kept with each gang by `core.fold.fold`, shown by `engine.service`. Work counts as productive once it is saved: what was
done after the newest checkpoint is lost when the attempt fails. A job that reports no steps is taken to work from the
moment it runs; for one that does, the time before an attempt's first step belongs to starting, or to recovery after
what ended the attempt before. Source of the parts: reference/reliability.md, "ETTR accounting".
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from ganger.model.units import DEVICE_MILLI
from ganger.model.views.service_views import PARTS, Ledger, Loss

Part = Literal["queued", "starting", "working", "recovery", "lost"]

AMOUNTS: Final = (*(f"{part}_ms" for part in PARTS), "total_ms", "held_ms")
"""Of a ledger: what can be added up."""
SAVED: Final = 16
"""Checkpoints of which an account knows what they saved: so many are hardly ever broken in a row."""
COSTS: Final = ("failures", "restarts", "detect_ms", "recovery_ms", "lost_ms", "held_ms")
"""Of a loss."""


@dataclass(slots=True, kw_only=True)
class Account:
    """Open account of one gang: time since `since_ms` belongs to `part`, and nodes are held in it if `holds`.

    unsaved_ms: work since the last save; cause: what ended the newest attempt that ended before the job did; losses:
    what each such cause has cost, in the order they first came; saved: of the newest checkpoints, step and what was
    productive by then.
    """

    opened_ms: int
    since_ms: int
    part: Part = "queued"
    holds: bool = False
    queued_ms: int = 0
    starting_ms: int = 0
    productive_ms: int = 0
    checkpoint_ms: int = 0
    unsaved_ms: int = 0
    held_ms: int = 0
    cause: str = ""
    losses: tuple[Loss, ...] = ()
    saved: tuple[tuple[int, int], ...] = ()

    def turn(self, at_ms: int, part: Part, *, holds: bool) -> None:
        """Book the time up to now; from now on it belongs to `part`."""
        self._book(self.part, at_ms - self.since_ms, holds=self.holds)
        self.held_ms += (at_ms - self.since_ms) * self.holds
        self.part, self.since_ms, self.holds = part, at_ms, holds

    def first_step(self, at_ms: int, part: Part) -> None:
        """The attempt's first step is done: what was taken for work so far was getting there."""
        self._book_now(at_ms)
        self.part = "working"
        self._book(part, self.unsaved_ms, holds=True)
        self.unsaved_ms = 0

    def save(self, at_ms: int, step: int, took_ms: int = 0) -> None:
        """All work up to now is kept by a checkpoint of `step`; to save it took `took_ms` of the time, as the ranks
        said."""
        self._book_now(at_ms)
        took_ms = min(max(0, took_ms), self.unsaved_ms)
        self.checkpoint_ms += took_ms
        self.productive_ms += self.unsaved_ms - took_ms
        self.unsaved_ms = 0
        self.saved = (*self.saved, (step, self.productive_ms))[-SAVED:]

    def fail(self, at_ms: int, cause: str, since_ms: int | None) -> None:
        """The attempt failed, of what went wrong at `since_ms` by some node's clock, None where nobody knows. The time
        from there is taken out of the work that is to be lost."""
        self._book_now(at_ms)
        detect_ms = 0 if since_ms is None else min(max(0, at_ms - since_ms), self.unsaved_ms)
        self.unsaved_ms -= detect_ms
        self.cause = cause
        self._charge(failures=1, detect_ms=detect_ms)

    def give_way(self, cause: str) -> None:
        """The attempt ends for a reason that is no failure, and the job is to go on later."""
        self.cause = cause

    def go_back(self, step: int | None) -> None:
        """An attempt begins from the checkpoint of `step`, or from none, though a newer one was saved: what was done
        between the two is to be done again."""
        self.saved = tuple(each for each in self.saved if step is not None and each[0] <= step)
        kept_ms = self.saved[-1][1] if self.saved else 0
        self._book("lost", self.productive_ms - kept_ms, holds=True)
        self.productive_ms = kept_ms

    def restart(self) -> None:
        """Another attempt begins."""
        self._charge(restarts=1)

    def lose(self, at_ms: int) -> None:
        """Work since the newest checkpoint is to be done again."""
        self._book_now(at_ms)
        self._book("lost", self.unsaved_ms, holds=True)
        self.unsaved_ms = 0

    def ledger(self, now_ms: int) -> Ledger:
        """The parts up to now; work that is not saved yet counts as productive until it is lost."""
        now = replace(self)
        now.turn(now_ms, self.part, holds=self.holds)
        return Ledger(
            queued_ms=now.queued_ms,
            starting_ms=now.starting_ms,
            productive_ms=now.productive_ms + now.unsaved_ms,
            checkpoint_ms=now.checkpoint_ms,
            detect_ms=sum(loss.detect_ms for loss in now.losses),
            recovery_ms=sum(loss.recovery_ms for loss in now.losses),
            lost_ms=sum(loss.lost_ms for loss in now.losses),
            total_ms=now_ms - self.opened_ms,
            held_ms=now.held_ms,
            losses=now.losses,
        )

    def _book_now(self, at_ms: int) -> None:
        self.turn(at_ms, self.part, holds=self.holds)

    def _book(self, part: Part, passed_ms: int, *, holds: bool) -> None:
        match part:
            case "queued":
                self.queued_ms += passed_ms
            case "starting":
                self.starting_ms += passed_ms
            case "working":
                self.unsaved_ms += passed_ms
            case "recovery":
                self._charge(recovery_ms=passed_ms, held_ms=passed_ms * holds)
            case "lost":
                self._charge(lost_ms=passed_ms)

    def _charge(self, **more: int) -> None:
        """Put amounts down to the cause of the newest end of an attempt."""
        if not any(more.values()):
            return
        before = next((loss for loss in self.losses if loss.cause == self.cause), None)
        now = before or Loss(cause=self.cause)
        now = replace(now, **{name: getattr(now, name) + amount for name, amount in more.items()})
        others = [now if loss is before else loss for loss in self.losses]
        self.losses = tuple(others if before else [*others, now])


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """All of them added up; causes in alphabetical order."""
    amounts = dict.fromkeys(AMOUNTS, 0)
    losses: dict[str, dict[str, int]] = {}
    for ledger in ledgers:
        for name in AMOUNTS:
            amounts[name] += getattr(ledger, name)
        for loss in ledger.losses:
            cost = losses.setdefault(loss.cause, dict.fromkeys(COSTS, 0))
            for name in COSTS:
                cost[name] += getattr(loss, name)
    return Ledger(**amounts, losses=tuple(Loss(cause=cause, **losses[cause]) for cause in sorted(losses)))


def in_gpus(ledger: Ledger) -> Ledger:
    """Thousandths of GPUs as GPUs, in whole milliseconds: rounded down part by part, so that it still adds up."""
    times = ("detect_ms", "recovery_ms", "lost_ms", "held_ms")
    losses = tuple(
        replace(loss, **{name: getattr(loss, name) // DEVICE_MILLI for name in times}) for loss in ledger.losses
    )
    parts = {f"{part}_ms": getattr(ledger, f"{part}_ms") // DEVICE_MILLI for part in PARTS}
    parts |= {name: sum(getattr(loss, name) for loss in losses) for name in times[:3]}
    held_ms = sum(parts.values())
    return Ledger(**parts, total_ms=held_ms, held_ms=held_ms, losses=losses)


def held_by(ledger: Ledger, devices: int) -> Ledger:
    """The ledger of so many devices, or thousandths of them, each for as long as the job held it: no time of waiting is
    in it."""
    losses = tuple(
        replace(
            loss,
            detect_ms=loss.detect_ms * devices,
            recovery_ms=loss.held_ms * devices,
            lost_ms=loss.lost_ms * devices,
            held_ms=loss.held_ms * devices,
        )
        for loss in ledger.losses
    )
    scaled = {name: getattr(ledger, name) * devices for name in AMOUNTS}
    recovery_ms = sum(loss.held_ms for loss in losses)
    return Ledger(**scaled | {"queued_ms": 0, "recovery_ms": recovery_ms, "total_ms": scaled["held_ms"]}, losses=losses)
