"""Time accounting of a job, and the failures of all.

The parts add up to wall time, to the millisecond, because no time is booked twice.

Work counts as productive once it is saved: what was done after the newest checkpoint is lost when the attempt fails, or
unobserved if the job has reported no step and no checkpoint. A job that reports no steps is taken to work as soon as it
runs; for one that does, the time before an attempt's first step belongs to starting, or to recovery after whatever
ended the previous attempt. Source of the parts: reference/reliability.md, "ETTR accounting".
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from ganger.model.units import DEVICE_MILLI
from ganger.model.views.service_views import PARTS, Ledger, Loss

Part = Literal["queued", "starting", "working", "recovery", "lost", "unobserved"]

AMOUNTS: Final = (*(f"{part}_ms" for part in PARTS), "total_ms", "held_ms")
"""The fields of a ledger that can be added up."""
SAVED: Final = 16
"""Checkpoints for which an account records what they saved: this many are hardly ever broken in a row."""
COSTS: Final = ("failures", "restarts", "detect_ms", "recovery_ms", "lost_ms", "unobserved_ms", "held_ms")
"""The fields of a loss that can be added up."""


@dataclass(slots=True)
class FailureRecord:
    """The failures of all gangs, and the node time in which they occurred.

    failures: those that are not blamed on a program.
    node_ms: node time of stays that are over.
    nodes, began_node_ms: nodes that are held now, and the sum of the times from which on they are.
    """

    failures: int = 0
    node_ms: int = 0
    nodes: int = 0
    began_node_ms: int = 0

    def begin(self, nodes: int, began_ms: int) -> None:
        """Count a stay on that many nodes, until it ends."""
        self.nodes += nodes
        self.began_node_ms += nodes * began_ms

    def end(self, nodes: int, began_ms: int, ended_ms: int) -> None:
        """Count the node time of a stay that has ended."""
        self.begin(-nodes, began_ms)
        self.node_ms += nodes * (ended_ms - began_ms)

    def node_time_ms(self, now_ms: int) -> int:
        """Return the node time up to now."""
        return self.node_ms + self.nodes * now_ms - self.began_node_ms


@dataclass(slots=True, kw_only=True)
class Account:
    """The open account of a gang: time since `since_ms` belongs to `part`, and nodes are held in it if `holds`.

    unsaved_ms: work since the last checkpoint.
    worked_until_ms: end of that work.
    cause: what ended the newest attempt that ended before the job did.
    losses: what each such cause has cost, in order of first occurrence.
    saved: (step, productive time by then) of the newest checkpoints.
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
    worked_until_ms: int = 0
    held_ms: int = 0
    cause: str = ""
    losses: tuple[Loss, ...] = ()
    saved: tuple[tuple[int, int], ...] = ()

    def switch(self, at_ms: int, part: Part, *, holds: bool) -> None:
        """Book the time up to `at_ms`; from then on time belongs to `part`."""
        self._book(self.part, at_ms - self.since_ms, holds=self.holds)
        if self.part == "working" and at_ms > self.since_ms:
            self.worked_until_ms = at_ms
        self.held_ms += (at_ms - self.since_ms) * self.holds
        self.part, self.since_ms, self.holds = part, at_ms, holds

    def held_until_ms(self, now_ms: int) -> int:
        """Return for how long nodes have been held."""
        return self.held_ms + (now_ms - self.since_ms) * self.holds

    def first_step(self, at_ms: int, part: Part) -> None:
        """Book the time before the attempt's first step, so far taken for work, to `part`."""
        self._book_until(at_ms)
        self.part = "working"
        self._book(part, self.unsaved_ms, holds=True)
        self.unsaved_ms = 0

    def save(self, at_ms: int, step: int, took_ms: int = 0, saved_ms: int | None = None) -> None:
        """Count the work so far as saved by a checkpoint of `step`; writing it took `took_ms` of that time.

        The work since `saved_ms`, by some node's clock, is not in it: the report came later, perhaps after a failure.
        """
        self._book_until(at_ms)
        later_ms = 0 if saved_ms is None else min(max(0, self.worked_until_ms - saved_ms), self.unsaved_ms)
        covered_ms = self.unsaved_ms - later_ms
        took_ms = min(max(0, took_ms), covered_ms)
        self.checkpoint_ms += took_ms
        self.productive_ms += covered_ms - took_ms
        self.unsaved_ms = later_ms
        self.saved = (*self.saved, (step, self.productive_ms))[-SAVED:]

    def fail(self, at_ms: int, cause: str, since_ms: int | None) -> None:
        """Record a failed attempt, going back to `since_ms` by some node's clock, or None if unknown.

        The time from `since_ms` counts as detection, not as lost work.
        """
        self._book_until(at_ms)
        detect_ms = 0 if since_ms is None else min(max(0, at_ms - since_ms), self.unsaved_ms)
        self.unsaved_ms -= detect_ms
        self.worked_until_ms -= detect_ms
        self.cause = cause
        self._charge(failures=1, detect_ms=detect_ms)

    def requeue(self, cause: str) -> None:
        """Record the cause for which an attempt ends without a failure while the job is to continue later."""
        self.cause = cause

    def go_back(self, step: int | None) -> None:
        """Book as lost the productive time after the checkpoint of `step`, or all of it without one.

        The attempt resumes from an older checkpoint than the newest, so that this work must be done again.
        """
        self.saved = tuple(saved for saved in self.saved if step is not None and saved[0] <= step)
        kept_ms = self.saved[-1][1] if self.saved else 0
        self._book("lost", self.productive_ms - kept_ms, holds=True)
        self.productive_ms = kept_ms

    def restart(self) -> None:
        """Count another attempt."""
        self._charge(restarts=1)

    def lose(self, at_ms: int, *, is_observed: bool = True) -> None:
        """Book the work since the newest checkpoint as lost; as unobserved, if nothing of its progress is known."""
        self._book_until(at_ms)
        self._book("lost" if is_observed else "unobserved", self.unsaved_ms, holds=True)
        self.unsaved_ms = 0

    def ledger(self, now_ms: int) -> Ledger:
        """Return the parts up to `now_ms`; work that is not saved yet counts as productive until it is lost."""
        account = replace(self)
        account.switch(now_ms, self.part, holds=self.holds)
        return Ledger(
            queued_ms=account.queued_ms,
            starting_ms=account.starting_ms,
            productive_ms=account.productive_ms + account.unsaved_ms,
            checkpoint_ms=account.checkpoint_ms,
            detect_ms=sum(loss.detect_ms for loss in account.losses),
            recovery_ms=sum(loss.recovery_ms for loss in account.losses),
            lost_ms=sum(loss.lost_ms for loss in account.losses),
            unobserved_ms=sum(loss.unobserved_ms for loss in account.losses),
            total_ms=now_ms - self.opened_ms,
            held_ms=account.held_ms,
            losses=account.losses,
        )

    def _book_until(self, at_ms: int) -> None:
        self.switch(at_ms, self.part, holds=self.holds)

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
            case "unobserved":
                self._charge(unobserved_ms=passed_ms)

    def _charge(self, **more: int) -> None:
        """Add amounts to the loss of the newest cause."""
        if not any(more.values()):
            return
        losses = {loss.cause: loss for loss in self.losses}
        loss = losses.get(self.cause) or Loss(cause=self.cause)
        losses[self.cause] = replace(loss, **{name: getattr(loss, name) + amount for name, amount in more.items()})
        self.losses = tuple(losses.values())


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """Return the sum of all ledgers, with causes in alphabetical order."""
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
    """Convert thousandths of GPUs to GPUs: round every part down and sum the rounded parts."""
    times = ("detect_ms", "recovery_ms", "lost_ms", "unobserved_ms", "held_ms")
    losses = tuple(
        replace(loss, **{name: getattr(loss, name) // DEVICE_MILLI for name in times}) for loss in ledger.losses
    )
    parts = {f"{part}_ms": getattr(ledger, f"{part}_ms") // DEVICE_MILLI for part in PARTS}
    parts |= {name: sum(getattr(loss, name) for loss in losses) for name in times[:4]}
    held_ms = sum(parts.values())
    return Ledger(**parts, total_ms=held_ms, held_ms=held_ms, losses=losses)


def for_devices(ledger: Ledger, devices: int) -> Ledger:
    """Return the ledger multiplied by a number of devices, or of their thousandths, without queue time."""
    losses = tuple(
        replace(
            loss,
            detect_ms=loss.detect_ms * devices,
            recovery_ms=loss.held_ms * devices,
            lost_ms=loss.lost_ms * devices,
            unobserved_ms=loss.unobserved_ms * devices,
            held_ms=loss.held_ms * devices,
        )
        for loss in ledger.losses
    )
    scaled = {name: getattr(ledger, name) * devices for name in AMOUNTS}
    recovery_ms = sum(loss.held_ms for loss in losses)
    return Ledger(**scaled | {"queued_ms": 0, "recovery_ms": recovery_ms, "total_ms": scaled["held_ms"]}, losses=losses)
