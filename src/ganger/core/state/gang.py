"""A live gang: everything the state knows of it. An ended gang leaves the state; its history is in the log."""

from dataclasses import dataclass, field, replace
from typing import Final

from ganger.core.state.lifecycle import GangStep, Phase, gang_next
from ganger.core.state.runtime_estimate import NEVER_MS, ExpectedRunTime
from ganger.core.state.time_accounting import Account, Part
from ganger.model.decision import Cause, Start
from ganger.model.event import Failed
from ganger.model.evidence import FlawedCheckpoint
from ganger.model.job import ENDED, After, GangState, Job
from ganger.model.shape import Shape

Times = tuple[int, int, int]
"""(time limit, minimum time, time that earlier attempts ran) in ms, -1 for none; the last counts with a limit alone"""
ClassKey = tuple[str, str, int, Shape, Times, str, tuple[str, ...]]
"""(queue, user, priority, shape, times, array if it has a limit, excluded nodes).

Gangs of one class are equal to the scheduler except for their age.
"""

STRIDE: Final = 1 << 24
"""Numbers reserved for one submission: more than an array has indices."""
HEAD: Final = STRIDE - 1
"""The number of an array's head within its submission: after those of all elements."""
FAILURES_BEFORE_AVOIDING: Final = 2
"""Consecutive failures on one node without progress after which the next start avoids the node."""


RESTING: Final = (GangState.PENDING, GangState.SUSPENDED)
"""States of a live gang that holds nothing."""
ACTIVE: Final = (GangState.STARTING, GangState.RUNNING)
"""States of a gang that holds nodes and may keep them."""
LEAVING = (
    GangState.REQUEUEING,
    GangState.SUSPENDING,
    GangState.FINISHING,
    GangState.FAILING,
    GangState.STOPPING,
)
"""States of a gang whose generation is being stopped: its nodes are about to be free."""


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

    def begun(self) -> "CheckpointFallback":
        """Return the fallback when a generation begins: checkpoints may have been removed since the previous one."""
        return replace(self, older_step=None)

    def stepped(self) -> "CheckpointFallback":
        """Return the fallback after a step: the checkpoint that this attempt resumed from is sound."""
        return replace(self, tried=(), failure="")


@dataclass(slots=True, kw_only=True)
class Gang:
    """A live gang. Times are Unix ms.

    number: rises with submissions and is never reused: STRIDE times the seq of the submission, plus the array index.
    since_ms: when it entered its state.
    generation: the number of its newest start, 0 before the first.
    start: that start, kept until the gang is pending again.
    left: nodes on which something of it may still run.
    started, finished: nodes that have reported so.
    began_ms: when the current generation was decided.
    ran_ms: how long earlier generations held nodes.
    stepped: this generation has reported a step.
    stepped_before: an earlier generation had.
    checkpoint_step: the newest complete checkpoint.
    resumed_step: the checkpoint from which this generation resumed.
    skipped_checkpoints: newer checkpoints that are not complete.
    fallback: the checkpoints from which it did not resume.
    best_step: the greatest checkpoint step of any generation before this one.
    retries_used: attempts that counted against the retry limit.
    attempts_without_progress: consecutive attempts without progress.
    unadmitted: consecutive starts that the cluster did not admit; until one is, the gang starts only in free room.
    failed_on: the node of the newest failure and the number of consecutive failures there.
    same_error: the program's error that ended the previous generation, with its step.
    not_before_ms: the end of the pause before the next start.
    end_cause: why it is to end.
    failure: the first failure of this generation.
    stop_sent: the cause of its newest stop.
    notice_until_ms: until when that stop lets it save its work.
    killed: ranks of this generation that had to be killed after the grace period.
    grace_ms: the length of that period.
    suspends: it is to be suspended as soon as possible.
    drains: a node of this generation is to be vacated.
    leave_by_ms: when that node is taken away, None for a drain without a deadline.
    excluded: nodes it must not use, each with the index of the retry rule that excluded it.
    account: where its time went.
    expected: the estimated run time, where it has no time limit; follows the user's history while it waits without a
        reservation, then changes only when it is outlived.
    """

    job: Job
    shape: Shape
    number: int
    submitted_ms: int
    since_ms: int
    account: Account
    state: GangState = GangState.PENDING
    generation: int = 0
    start: Start | None = None
    left: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    first_started_ms: int | None = None
    began_ms: int = 0
    ran_ms: int = 0
    stepped: bool = False
    stepped_before: bool = False
    checkpoint_step: int | None = None
    resumed_step: int | None = None
    best_step: int | None = None
    skipped_checkpoints: tuple[FlawedCheckpoint, ...] = ()
    fallback: CheckpointFallback = CheckpointFallback()
    retries_used: int = 0
    attempts_without_progress: int = 0
    unadmitted: int = 0
    failed_on: tuple[str, int] = ("", 0)
    same_error: str = ""
    not_before_ms: int = 0
    end_cause: Cause | None = None
    failure: Failed | None = None
    stop_sent: Cause | None = None
    notice_until_ms: int = 0
    killed: tuple[int, ...] = ()
    grace_ms: int = 0
    suspends: bool = False
    drains: bool = False
    leave_by_ms: int | None = None
    excluded: tuple[tuple[str, int], ...] = ()
    awaits: list[After] = field(default_factory=list)
    expected: ExpectedRunTime | None = None
    counted: GangState = GangState.PENDING

    @property
    def id(self) -> str:
        """The id of the job or array element."""
        return self.job.id

    @property
    def submitted_seq(self) -> int:
        """The seq of its submission; for an element, that of the array."""
        return self.number // STRIDE

    @property
    def is_head(self) -> bool:
        """True if it stands for the array elements that have no gang of their own."""
        return self.job.spec.array is not None and self.job.index is None

    @property
    def array(self) -> str | None:
        """The id of its array."""
        return self.job.id if self.is_head else self.job.array

    @property
    def is_forecastable(self) -> bool:
        """True if a start time can be forecast for it.

        Not for an array with a limit, which depends on what else starts in the cycle, nor for named devices, which are
        tracked only for the present.
        """
        return self.array_limit is None and not any(part.selector.devices for part in self.shape.parts)

    @property
    def array_limit(self) -> int | None:
        """The maximum number of elements of its array that hold nodes at a time."""
        return self.job.spec.array.limit if self.job.spec.array else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of an ended gang as a shell reports it: 0, or that of the first failing rank.

        None for a gang that was stopped.
        """
        if self.state is GangState.SUCCEEDED:
            return 0
        if self.state is not GangState.FAILED or self.failure is None:
            return None
        if self.failure.signal is not None:
            return 128 + self.failure.signal
        return 1 if self.failure.exit_code is None else self.failure.exit_code

    @property
    def queue(self) -> str:
        """The queue that it waits in or is charged to."""
        return self.job.spec.queue

    @property
    def ended(self) -> bool:
        """True in a final state."""
        return self.state in ENDED

    @property
    def holds_nodes(self) -> bool:
        """True while nodes are allocated to it."""
        return self.start is not None and not self.ended

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its generation, each once, in rank order; empty without a start."""
        return self.start.nodes if self.start else ()

    @property
    def has_progressed(self) -> bool:
        """True if this generation saved a newer checkpoint than all before it."""
        return self.checkpoint_step is not None and (self.best_step is None or self.checkpoint_step > self.best_step)

    def resume(self, step: int | None, passed: tuple[FlawedCheckpoint, ...]) -> None:
        """Begin the generation from the checkpoint of `step`, the newest complete one, or from the beginning."""
        self.resumed_step = self.checkpoint_step = step
        self.skipped_checkpoints = passed
        self.best_step = max((known for known in (step, self.best_step) if known is not None), default=None)

    @property
    def passes_reservations(self) -> bool:
        """True if reservations of gangs after it in the order do not delay its next start: it has run before."""
        return self.generation > 0 and not self.unadmitted

    def forget_refusals(self) -> None:
        """Allow the next start at once and treat it like any other: the cluster is asked for something else."""
        if self.unadmitted:
            self.unadmitted = self.not_before_ms = 0

    @property
    def phase(self) -> Phase:
        """Its phase as the table of reactions sees it."""
        if self.start is None:
            return Phase.WAITING
        if self.state in (GangState.REQUEUEING, GangState.SUSPENDING):
            return Phase.CLEARING
        if self.state in LEAVING or self.ended:
            return Phase.STOPPING
        if self.stepped:
            return Phase.RUNNING
        return Phase.RECOVERING if self.stepped_before else Phase.STARTING

    @property
    def failing_nodes(self) -> tuple[str, ...]:
        """The node on which it failed repeatedly without progress; its next start avoids it where possible."""
        node, failures = self.failed_on
        return (node,) if failures >= FAILURES_BEFORE_AVOIDING else ()

    @property
    def class_key(self) -> ClassKey:
        """The key of its job class."""
        limits = self.job.spec.limits
        times = (
            -1 if limits.time_ms is None else limits.time_ms,
            -1 if limits.time_min_ms is None else limits.time_min_ms,
            -1 if limits.time_ms is None else self.ran_ms,
        )
        array = (self.array if self.array_limit else None) or ""
        return (self.queue, self.job.user, self.job.spec.priority, self.shape, times, array, self.avoids)

    @property
    def avoids(self) -> tuple[str, ...]:
        """The names of the nodes that it must not use."""
        return tuple(sorted(node for node, _ in self.excluded)) if self.excluded else ()

    @property
    def time_ms(self) -> int | None:
        """The time limit over all attempts: what its start was granted, else what it requests; None without a limit."""
        granted_ms = self.start.time_ms if self.start else None
        return self.job.spec.limits.time_ms if granted_ms is None else granted_ms

    @property
    def runs_for_ms(self) -> int:
        """Time for which its current or next generation holds nodes, by the limit or else by the estimate."""
        limit_ms = self.time_ms
        if limit_ms is None:
            return NEVER_MS if self.expected is None else max(1, self.expected.run_ms - self.ran_ms)
        return max(1, limit_ms - self.ran_ms)

    @property
    def min_run_ms(self) -> int:
        """The shortest time that its next generation may be granted: the rest of its limit, or less if it accepts less.

        Granting less time so that a job fits before a reservation is Slurm's `--time-min`.
        """
        min_ms = self.job.spec.limits.time_min_ms
        return self.runs_for_ms if min_ms is None else min(self.runs_for_ms, min_ms)

    @property
    def node_ms(self) -> int:
        """The node-milliseconds it may use by its requested time limit; 0 without one."""
        return self.shape.all_nodes * (self.job.spec.limits.time_ms or 0)

    @property
    def requested_stay_ms(self) -> int:
        """The rest of its requested time limit when its current or next generation begins; NEVER_MS without one."""
        limit_ms = self.job.spec.limits.time_ms
        return NEVER_MS if limit_ms is None else max(1, limit_ms - self.ran_ms)

    @property
    def has_used_its_time(self) -> bool:
        """True for a pending gang that has used up the time for which it may hold nodes."""
        limit_ms = self.job.spec.limits.time_ms
        return self.state is GangState.PENDING and limit_ms is not None and self.ran_ms >= limit_ms

    def ends_ms(self, now_ms: int) -> int | None:
        """Return when its nodes become free: by limit or estimate, or now if it is being stopped; None if unknown."""
        if self.state in LEAVING:
            return now_ms
        end_ms = self.expected_end_ms(now_ms)
        return None if end_ms is None else max(now_ms, end_ms)

    def expected_end_ms(self, now_ms: int) -> int | None:
        """Return when it ends by its limit or estimate, if it runs or were to start now; None if unknown."""
        if self.time_ms is not None or self.expected is None:
            return self.limit_ms(now_ms)
        began_ms = now_ms if self.state is GangState.PENDING else self.began_ms
        return began_ms + self.expected.run_ms - self.ran_ms

    @property
    def is_predicted(self) -> bool:
        """True if the end of a gang without a time limit is estimated."""
        return self.time_ms is None and self.expected is not None and self.state not in LEAVING

    def limit_ms(self, now_ms: int) -> int | None:
        """Return when its time limit expires, if it runs or were to start now."""
        time_ms = self.time_ms
        began_ms = now_ms if self.state is GangState.PENDING else self.began_ms
        return None if time_ms is None else began_ms + time_ms - self.ran_ms

    def step(self, step: GangStep, at_ms: int) -> None:
        """Take a lifecycle step; raise IllegalStep if the table does not contain it."""
        state = gang_next(self.state, step)
        if state is not self.state:
            self.state, self.since_ms = state, at_ms
            self.account.switch(at_ms, self._part(), holds=state not in (*RESTING, *ENDED))

    def _part(self) -> Part:
        """Return the account to which the time in this state is booked."""
        match self.state:
            case GangState.PENDING:
                return "recovery" if self.generation and self.stop_sent is not Cause.SUSPENDED else "queued"
            case GangState.SUSPENDED:
                return "queued"
            case GangState.STARTING:
                return "recovery" if self.generation > 1 else "starting"
            case GangState.REQUEUEING:
                return "recovery"
            case GangState.FAILING:
                return "lost"
            case GangState.RUNNING:
                return "working"
            case _:
                return self.account.part  # it ends in the part that it was in


def class_text(key: ClassKey) -> str:
    """Return the job class as one word for the log.

    The form is queue/user/priority/shape/limit (or minimum..limit) with the time that earlier attempts ran after a `-`,
    then the array if there is one, then excluded nodes after a `!`.
    """
    queue, user, priority, shape, (limit_ms, min_ms, ran_ms), array, avoids = key
    size = "+".join(
        f"{part.nodes}x{part.gpus}.{part.cpu_milli}.{part.memory_bytes}.{part.gpu_type or '-'}.{part.ranks}"
        + "s" * part.stacked
        + (f"[{part.terms}]" if part.terms else "")
        for part in shape.parts
    )
    time = f"{min_ms}..{limit_ms}" if min_ms >= 0 else f"{limit_ms}" if limit_ms >= 0 else "-"
    time += f"-{ran_ms}" if ran_ms > 0 else ""
    text = f"{queue}/{user}/{priority}/{size}/{time}"
    return text + (f"/{array}" if array else "") + (f"/!{','.join(avoids)}" if avoids else "")
