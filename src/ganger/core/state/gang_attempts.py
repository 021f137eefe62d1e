"""The attempts of a gang: the newest one, and what all of them leave to the next, checkpoints and retries.

A start replaces the newest attempt by a new one. Checkpoints and retries are immutable, so that copies of a gang may
share them.
"""

from dataclasses import dataclass, replace

from ganger.model.decision import Cause, Start
from ganger.model.event import Failed
from ganger.model.evidence import FlawedCheckpoint


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of a gang and what followed from it. Times are Unix ms.

    generation: its number, 0 for a gang that has not started yet.
    start: the decision to start, kept until the gang is pending again.
    began_ms: when that was decided.
    left: nodes on which something of it may still run.
    started, finished: nodes that have reported so.
    stepped: it has reported a step.
    stepped_before: an earlier attempt had.
    failure: its first failure.
    stop_sent: the cause of its newest stop.
    notice_until_ms: until when that stop lets it save its work.
    killed: ranks that had to be killed after the grace period.
    grace_ms: the length of that period.
    vacates: node of it that is to be vacated, empty for none.
    leave_by_ms: when that node is taken away, None for a drain without a deadline.
    """

    generation: int = 0
    start: Start | None = None
    began_ms: int = 0
    left: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    stepped: bool = False
    stepped_before: bool = False
    failure: Failed | None = None
    stop_sent: Cause | None = None
    notice_until_ms: int = 0
    killed: tuple[int, ...] = ()
    grace_ms: int = 0
    vacates: str = ""
    leave_by_ms: int | None = None

    def next(self, start: Start, at_ms: int) -> "Attempt":
        """Return the attempt that follows this one: it has begun, and nothing of it has been reported."""
        return Attempt(
            generation=start.generation,
            start=start,
            began_ms=at_ms,
            left=start.nodes,
            stepped_before=self.stepped_before or self.stepped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFallback:
    """The checkpoints besides the one from which a gang resumes.

    older_step: the newest complete checkpoint before that one, None where none is known.
    skipped: checkpoints that the next attempt passes over.
    tried: checkpoints on which attempts failed since the last progress, the newest attempt last.
    failure: how the last of these failed.
    """

    older_step: int | None = None
    skipped: tuple[int, ...] = ()
    tried: tuple[int, ...] = ()
    failure: str = ""

    def saved(self, step: int, before: int | None) -> "CheckpointFallback":
        """Return the fallback after a checkpoint of `step` is complete; `before` was the newest until then.

        A skipped checkpoint stays skipped until a newer one is saved or it is itself saved again: until then it would
        be taken for the newest.
        """
        return CheckpointFallback(
            older_step=before, skipped=tuple(skipped for skipped in self.skipped if skipped > step)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of a gang, each by its step.

    newest_step: the newest complete one.
    resumed_step: the one from which the newest attempt resumed.
    best_step: the greatest of any attempt before it.
    flawed: newer ones that are not complete.
    fallback: those from which it did not resume.
    """

    newest_step: int | None = None
    resumed_step: int | None = None
    best_step: int | None = None
    flawed: tuple[FlawedCheckpoint, ...] = ()
    fallback: CheckpointFallback = CheckpointFallback()

    @property
    def has_progressed(self) -> bool:
        """True if the newest attempt saved a newer checkpoint than all before it."""
        return self.newest_step is not None and (self.best_step is None or self.newest_step > self.best_step)

    def begun(self) -> "Checkpoints":
        """Return the checkpoints when an attempt begins: some may have been removed since the previous one."""
        return self.resumed(self.newest_step, (), None)

    def resumed(self, step: int | None, flawed: tuple[FlawedCheckpoint, ...], older_step: int | None) -> "Checkpoints":
        """Return them when the attempt resumes from that of `step`, the newest complete one, or from the beginning."""
        best_step = max((known for known in (step, self.best_step) if known is not None), default=None)
        fallback = replace(self.fallback, older_step=older_step)
        return Checkpoints(newest_step=step, resumed_step=step, best_step=best_step, flawed=flawed, fallback=fallback)

    def saved(self, step: int) -> "Checkpoints":
        """Return them after a checkpoint of `step` is complete."""
        return replace(self, newest_step=step, fallback=self.fallback.saved(step, self.newest_step))

    def stepped(self) -> "Checkpoints":
        """Return them after a step: the checkpoint that the attempt resumed from is sound."""
        fallback = self.fallback
        if not fallback.tried and not fallback.failure:
            return self
        return replace(self, fallback=replace(fallback, tried=(), failure=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The failures of a gang so far, as far as they bear on its next attempt.

    used: attempts that counted against the retry limit.
    attempts_without_progress: consecutive attempts without progress.
    unadmitted: consecutive starts that the cluster did not admit; until one is, the gang starts only in free room.
    failed_on: the node of the newest failure and the number of consecutive failures there.
    same_error: the program's error that ended the previous attempt, with its step.
    not_before_ms: the end of the pause before the next start.
    excluded: nodes it must not use, each with the index of the retry rule that excluded it.
    given_up: why no other attempt followed the newest failure, a `GivenUp`; empty if one did.
    """

    used: int = 0
    attempts_without_progress: int = 0
    unadmitted: int = 0
    failed_on: tuple[str, int] = ("", 0)
    same_error: str = ""
    not_before_ms: int = 0
    excluded: tuple[tuple[str, int], ...] = ()
    given_up: str = ""

    def admitted(self) -> "Retries":
        """Return them when a start was admitted by the cluster."""
        return replace(self, unadmitted=0) if self.unadmitted else self

    def progressed(self) -> "Retries":
        """Return them when a checkpoint is complete: no node has failed since."""
        return replace(self, failed_on=("", 0))
