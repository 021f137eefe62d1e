"""The attempts of a gang: the newest one, and what all of them leave to the next, checkpoints and retries.

A start replaces the newest attempt by a new one. Checkpoints and retries are immutable, so that copies of a gang may
share them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ganger.model.decision import Cause, NodeShare, Start
from ganger.model.event import Failed
from ganger.model.evidence import FlawedCheckpoint
from ganger.model.units import MINUTE_MS
from ganger.model.watch.rollback import Rollback

STOP_MS: Final = MINUTE_MS
"""Time from the end of its notice until an attempt is taken to have left its nodes."""

MAX_SAVES: Final = 9
"""Newest saves whose time is kept: an odd number has a median among them."""
MAX_STEPS: Final = 256
"""Newest checkpoints whose steps are kept."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of a gang and what followed from it. Times are Unix ms.

    generation: its number, 0 for a gang that has not started yet.
    start: the decision to start, kept until the gang is pending again.
    began_ms: when that was decided.
    left: nodes on which something of it may still run.
    target: while it is resized, the shares of the next attempt.
    started, finished: nodes that have reported so.
    stepped: it has reported a step.
    stepped_before: an earlier attempt had.
    failure: its first failure.
    stop_sent: the cause of its newest stop.
    notice_until_ms: until when that stop lets it save its work.
    killed: ranks that had to be killed after the grace period.
    grace_ms: the length of that period.
    vacates: node of it that is to be vacated, empty for none.
    leave_by_ms: when that node is taken away, or when a user wanted it to end at once; None without such a time.
    preempted_ms: when it, or the newest of those before it that was, was preempted.
    lent: nodes of it that are spares of other gangs, which hold them.
    lost_spares: nodes that were its spares and are out of service, until that is recorded.
    recalled_by: the gang that does not lend it such a node any more; empty while all do.
    """

    generation: int = 0
    start: Start | None = None
    began_ms: int = 0
    left: tuple[str, ...] = ()
    target: tuple[NodeShare, ...] = ()
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
    preempted_ms: int | None = None
    lent: tuple[str, ...] = ()
    lost_spares: tuple[str, ...] = ()
    recalled_by: str = ""

    @property
    def granted_ms(self) -> int | None:
        """The time limit over all attempts that it was granted; None: as requested, or it has not started."""
        return self.start.time_ms if self.start else None

    @property
    def spares(self) -> tuple[NodeShare, ...]:
        """Its spares but those that the next attempt takes over."""
        taken = {share.node: None for share in self.target}
        return tuple(share for share in self.start.spares if share.node not in taken) if self.start else ()

    @property
    def shares(self) -> tuple[NodeShare, ...]:
        """The shares that are charged: its own until it has left all nodes, those of the target elsewhere, spares."""
        own = self.start.shares if self.start and (self.left or not self.target) else ()
        return (*own, *without(self.target, own), *self.spares)

    @property
    def held(self) -> tuple[NodeShare, ...]:
        """The shares that it holds: its own where it is left, what the target has beside them, spares."""
        left = dict.fromkeys(self.left)
        own = tuple(share for share in (self.start.shares if self.start else ()) if share.node in left)
        return (*own, *without(self.target, own), *(self.spares if self.left or self.target else ()))

    @property
    def parting(self) -> tuple[NodeShare, ...]:
        """The shares that it is about to leave, and that its target does not have."""
        if not self.target or self.start is None:
            return ()
        left = dict.fromkeys(self.left)
        return without(tuple(share for share in self.start.shares if share.node in left), self.target)

    def next(self, start: Start, at_ms: int) -> "Attempt":
        """Return the attempt that follows this one: it has begun, and nothing of it has been reported."""
        return Attempt(
            generation=start.generation,
            start=start,
            began_ms=at_ms,
            left=start.nodes,
            stepped_before=self.stepped_before or self.stepped,
            preempted_ms=self.preempted_ms,
            lent=start.nodes if start.lenders else (),
        )


def without(shares: tuple[NodeShare, ...], others: Iterable[NodeShare]) -> tuple[NodeShare, ...]:
    """Return the shares that are not among others. Those of one part, with the same devices of a node, are alike."""
    if not shares:
        return ()
    rest = Counter((share.node, share.part, share.devices) for share in others)
    result: list[NodeShare] = []
    for share in shares:
        key = share.node, share.part, share.devices
        if rest[key]:
            rest[key] -= 1
        else:
            result.append(share)
    return tuple(result)


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
    resumed_job: the job that saved that one, empty for the gang itself.
    best_step: the greatest of any attempt before it.
    flawed: newer ones that are not complete.
    saves_ms: how long the newest saves took, as far as the ranks reported it.
    fallback: those from which it did not resume.
    steps: the steps of the newest ones, as they became known.
    rollback: the return to an older one that it is to make, until another one is saved after that.
    rollbacks: how often the loss watch had it go back.
    requested_step: the step that a user asked to go back to last.
    """

    newest_step: int | None = None
    resumed_step: int | None = None
    resumed_job: str = ""
    best_step: int | None = None
    flawed: tuple[FlawedCheckpoint, ...] = ()
    saves_ms: tuple[int, ...] = ()
    fallback: CheckpointFallback = CheckpointFallback()
    steps: tuple[int, ...] = ()
    rollback: Rollback | None = None
    rollbacks: int = 0
    requested_step: int | None = None

    @property
    def has_progressed(self) -> bool:
        """True if the newest attempt saved a newer checkpoint than all before it."""
        return self.newest_step is not None and (self.best_step is None or self.newest_step > self.best_step)

    def begun(self, generation: int) -> "Checkpoints":
        """Return the checkpoints when an attempt begins: some may have been removed since the previous one.

        To which one a job returns is known when its launcher has reported it.
        """
        if self.rollback is None or self.rollback.generation != generation:
            has_saved = self.newest_step != self.resumed_step
            return self.resumed(self.newest_step, (), None, "" if has_saved else self.resumed_job)
        known = tuple(known for known in self.steps if known <= self.rollback.step)
        return replace(self, steps=known, best_step=None).resumed(None, (), None)

    def resumed(
        self, step: int | None, flawed: tuple[FlawedCheckpoint, ...], older_step: int | None, job: str = ""
    ) -> "Checkpoints":
        """Return them when the attempt resumes from that of `step`, the newest complete one, or from the beginning.

        job: another job whose checkpoint it is.
        """
        best_step = max((known for known in (step, self.best_step) if known is not None), default=None)
        fallback = replace(self.fallback, older_step=older_step)
        return replace(
            self,
            newest_step=step,
            resumed_step=step,
            resumed_job=job,
            best_step=best_step,
            flawed=flawed,
            fallback=fallback,
            steps=_known_steps(self.steps, *(known for known in (older_step, step) if known is not None)),
        )

    def saved(self, step: int, took_ms: int = 0, generation: int = 0) -> "Checkpoints":
        """Return them after a generation has saved one of `step`; that took so long, 0 if unknown."""
        saves_ms = (*self.saves_ms, took_ms)[-MAX_SAVES:] if took_ms else self.saves_ms
        fallback = self.fallback.saved(step, self.newest_step)
        rollback = self.rollback if self.rollback and generation < self.rollback.generation else None
        steps = _known_steps(self.steps, step)
        return replace(self, newest_step=step, saves_ms=saves_ms, fallback=fallback, steps=steps, rollback=rollback)

    def stepped(self) -> "Checkpoints":
        """Return them after a step: the checkpoint that the attempt resumed from is sound."""
        fallback = self.fallback
        if not fallback.tried and not fallback.failure:
            return self
        return replace(self, fallback=replace(fallback, tried=(), failure=""))


def _known_steps(known: tuple[int, ...], *steps: int) -> tuple[int, ...]:
    new = tuple(step for step in steps if step not in known)
    return (*known, *new)[-MAX_STEPS:] if new else known


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
    kept_until_ms: until when the gang keeps a target that is too small because a node was lost; None: it is whole.
    owner_since_ms: since when others were stopped for it that held what its queue is guaranteed, while it waited for
        the start that it has now.
    """

    used: int = 0
    attempts_without_progress: int = 0
    unadmitted: int = 0
    failed_on: tuple[str, int] = ("", 0)
    same_error: str = ""
    not_before_ms: int = 0
    excluded: tuple[tuple[str, int], ...] = ()
    given_up: str = ""
    kept_until_ms: int | None = None
    owner_since_ms: int | None = None

    def keeping_nothing(self) -> "Retries":
        """Return them when what the gang kept is enough, or is given up."""
        return replace(self, kept_until_ms=None) if self.kept_until_ms is not None else self

    def admitted(self) -> "Retries":
        """Return them when a start was admitted by the cluster."""
        return replace(self, unadmitted=0) if self.unadmitted else self

    def progressed(self) -> "Retries":
        """Return them when a checkpoint is complete: no node has failed since."""
        return replace(self, failed_on=("", 0))
