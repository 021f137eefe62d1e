"""A live gang: what the state knows of it, and what its failures lead to.

Owned by `core.state.state`; read by policies, `core.cycle.plan` and `core.explain.explain`. An ended gang leaves the
state; its history is in the log."""

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

Times = tuple[int, int]
"""(time limit, the least that it may be granted) in ms, -1 for none."""
ClassKey = tuple[str, str, int, Shape, Times, str, tuple[str, ...]]
"""(queue, user, priority, shape, times, the array if it has a limit, nodes that it must not have): gangs of one class
are equal to the scheduler but for their age."""

STRIDE: Final = 1 << 24
"""Numbers that one submission has: more than there are indices of an array."""
HEAD: Final = STRIDE - 1
"""Which of them is that of an array's head: it stands behind the elements that had a start."""
SHUNNED_AFTER: Final = 2
"""Failures in a row on one node, none of them with progress, after which the next start is elsewhere."""


RESTING: Final = (GangState.PENDING, GangState.SUSPENDED)
"""States of a live gang that holds nothing."""
RUNS: Final = (GangState.STARTING, GangState.RUNNING)
"""States of a gang that has its nodes and may keep them."""
LEAVING = (
    GangState.REQUEUEING,
    GangState.SUSPENDING,
    GangState.FINISHING,
    GangState.FAILING,
    GangState.STOPPING,
)
"""States of a gang whose generation is being stopped: its nodes will be free in a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFallback:
    """The checkpoints beside the one that a gang goes on from.

    older_step: the newest whole one before it, None where none is known.
    skipped: those that the next attempt passes over.
    tried: those on which attempts failed since there was progress, the newest attempt last.
    failure: how the last of these failed.
    """

    older_step: int | None = None
    skipped: tuple[int, ...] = ()
    tried: tuple[int, ...] = ()
    failure: str = ""

    def saved(self, step: int, before: int | None) -> "CheckpointFallback":
        """Return what holds once a checkpoint of `step` is complete; `before` is the newest until then.

        One that is skipped stays so until it is older than what is saved, or is itself saved anew: till then it would
        be taken for the newest.
        """
        return CheckpointFallback(older_step=before, skipped=tuple(each for each in self.skipped if each > step))

    def begun(self) -> "CheckpointFallback":
        """Return what holds when a generation begins: checkpoints may have been removed since the one before."""
        return replace(self, older_step=None)

    def stepped(self) -> "CheckpointFallback":
        """Return what holds once a step was made: the checkpoint that this attempt began from is sound."""
        return replace(self, tried=(), failure="")


@dataclass(slots=True, kw_only=True)
class Gang:
    """One live gang. Times are Unix ms; `number` rises with submissions, and is unique for ever: STRIDE times the seq
    of its own, and its index in an array.

    since_ms: when it entered its state; generation: of its newest start, 0 before the first; start: that start, kept
    until the gang is pending again; left: nodes on which something of it may run; started, finished: nodes that said
    so; ran_ms: time its earlier generations held nodes; began_ms: when this one was decided; stepped: this generation
    reported a step; checkpoint_step: newest whole checkpoint; resumed_step: the one that this generation began from;
    passed: newer ones that are not whole; fallback: those that it did not begin from; best_step: the greatest step
    of any before this generation; stepped_before: an earlier one did; spent: attempts that counted against the
    retry limit; fruitless: attempts in a row without progress; unadmitted: starts in a row that the cluster would
    not have: until it admits one, the gang starts only in free room; failed_on: the node on which the newest of
    them failed, and how many in a row did there; same_error: the program's error that ended the generation before, and
    at which step; not_before_ms: end of the pause before the next start; end_cause: why it is to end; failure: the
    first of this generation; stop_sent: the cause of its newest stop; notice_until_ms: until when that lets it save its
    work; killed: ranks of this generation that did not end in time when it was stopped; grace_ms: how long they had;
    suspends: it is to be suspended once it can be; drains: a node of this generation is to be left; leave_by_ms: when
    that is taken away, None for a drain without such a moment; excluded: nodes it must not have any more, each with the
    index of the rule that said so; account: where its time went; expected: how long it is expected to hold nodes, where
    it has no limit and something tells: it changes with its user's history while it waits and is promised nothing, from
    then on only when it is outlived.
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
    passed: tuple[FlawedCheckpoint, ...] = ()
    fallback: CheckpointFallback = CheckpointFallback()
    spent: int = 0
    fruitless: int = 0
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
        """The job's id: a gang is a job, or an element of an array."""
        return self.job.id

    @property
    def submitted_seq(self) -> int:
        """The seq of its submission; an element's is its array's."""
        return self.number // STRIDE

    @property
    def is_head(self) -> bool:
        """Whether it stands for the elements of an array that nobody has touched."""
        return self.job.spec.array is not None and self.job.index is None

    @property
    def array(self) -> str | None:
        """The id of the array it belongs to."""
        return self.job.id if self.is_head else self.job.array

    @property
    def has_moment(self) -> bool:
        """Whether a moment may be told at which it starts: whether an array has come to its limit is known only when a
        turn comes, and which devices are free only now."""
        return self.array_limit is None and not any(part.selector.devices for part in self.shape.parts)

    @property
    def array_limit(self) -> int | None:
        """How many elements of its array may hold nodes at a time."""
        return self.job.spec.array.limit if self.job.spec.array else None

    @property
    def exit_code(self) -> int | None:
        """Of one that has ended: 0, or what the first failing rank left behind, as a shell would say it. None for one
        that was stopped."""
        if self.state is GangState.SUCCEEDED:
            return 0
        if self.state is not GangState.FAILED or self.failure is None:
            return None
        if self.failure.signal is not None:
            return 128 + self.failure.signal
        return 1 if self.failure.exit_code is None else self.failure.exit_code

    @property
    def queue(self) -> str:
        """The queue it waits in or is counted against."""
        return self.job.spec.queue

    @property
    def ended(self) -> bool:
        """Whether it is in a state that nothing leaves."""
        return self.state in ENDED

    @property
    def holding(self) -> bool:
        """Whether nodes are taken for it."""
        return self.start is not None and not self.ended

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its generation, each once, in rank order; none while it has no start."""
        return self.start.nodes if self.start else ()

    @property
    def progressed(self) -> bool:
        """Whether this generation saved something that the one before had not."""
        return self.checkpoint_step is not None and (self.best_step is None or self.checkpoint_step > self.best_step)

    def resume(self, step: int | None, passed: tuple[FlawedCheckpoint, ...]) -> None:
        """Its generation begins from the checkpoint of `step`, which is the newest whole one, or from the beginning."""
        self.resumed_step = self.checkpoint_step = step
        self.passed = passed
        self.best_step = max((each for each in (step, self.best_step) if each is not None), default=None)

    @property
    def passes_reservations(self) -> bool:
        """True if reservations of gangs after it in the order do not delay its next start: it has run before."""
        return self.generation > 0 and not self.unadmitted

    def forget_refusals(self) -> None:
        """Treat the next start like any other, and allow it at once: the cluster is asked for something else."""
        if self.unadmitted:
            self.unadmitted = self.not_before_ms = 0

    @property
    def phase(self) -> Phase:
        """Where in its life it is, as reactions see it."""
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
    def shuns(self) -> tuple[str, ...]:
        """The node on which it failed twice in a row without progress: its next start is elsewhere, if it can be."""
        node, times = self.failed_on
        return (node,) if times >= SHUNNED_AFTER else ()

    @property
    def class_key(self) -> ClassKey:
        """What it is equal in to other gangs."""
        limits = self.job.spec.limits
        times = (
            -1 if limits.time_ms is None else limits.time_ms,
            -1 if limits.time_min_ms is None else limits.time_min_ms,
        )
        array = (self.array if self.array_limit else None) or ""
        return (self.queue, self.job.user, self.job.spec.priority, self.shape, times, array, self.avoids)

    @property
    def avoids(self) -> tuple[str, ...]:
        """The nodes that it must not have any more, by name."""
        return tuple(sorted(node for node, _ in self.excluded)) if self.excluded else ()

    @property
    def time_ms(self) -> int | None:
        """Its time limit, over all attempts: what its start was granted, else what it asks for. None: it has none."""
        granted_ms = self.start.time_ms if self.start else None
        return self.job.spec.limits.time_ms if granted_ms is None else granted_ms

    @property
    def runs_for_ms(self) -> int:
        """How long its next generation, or the one that runs, holds its nodes: by its limit, else as is expected."""
        limit_ms = self.time_ms
        if limit_ms is None:
            return NEVER_MS if self.expected is None else max(1, self.expected.run_ms - self.ran_ms)
        return max(1, limit_ms - self.ran_ms)

    @property
    def least_ms(self) -> int:
        """The least time that its next generation may be granted: all that is left of its limit, unless less will do.

        That a job may be granted less time than it asks for, so that it fits before a reservation, is Slurm's
        (`--time-min`).
        """
        enough_ms = self.job.spec.limits.time_min_ms
        return self.runs_for_ms if enough_ms is None else min(self.runs_for_ms, enough_ms)

    @property
    def node_ms(self) -> int:
        """Node-milliseconds it may use by the time limit it asks for; 0 without one."""
        return self.shape.all_nodes * (self.job.spec.limits.time_ms or 0)

    @property
    def is_worn(self) -> bool:
        """Whether it waits, and has used up the time it may hold nodes."""
        limit_ms = self.job.spec.limits.time_ms
        return self.state is GangState.PENDING and limit_ms is not None and self.ran_ms >= limit_ms

    def ends_ms(self, now_ms: int) -> int | None:
        """When its nodes are free: by its time limit, or without one as is expected, or now if it is being stopped.

        None: nothing tells.
        """
        if self.state in LEAVING:
            return now_ms
        end_ms = self.expected_end_ms(now_ms)
        return None if end_ms is None else max(now_ms, end_ms)

    def expected_end_ms(self, now_ms: int) -> int | None:
        """When it ends by its time limit, or is expected to without one, if it runs or would from now on. None: nothing
        tells."""
        if self.time_ms is not None or self.expected is None:
            return self.limit_ms(now_ms)
        began_ms = now_ms if self.state is GangState.PENDING else self.began_ms
        return began_ms + self.expected.run_ms - self.ran_ms

    @property
    def is_predicted(self) -> bool:
        """Whether it has no limit, and how long it holds nodes is predicted."""
        return self.time_ms is None and self.expected is not None and self.state not in LEAVING

    def limit_ms(self, now_ms: int) -> int | None:
        """When its time limit is over, if it runs or would from now on."""
        limit = self.time_ms
        began_ms = now_ms if self.state is GangState.PENDING else self.began_ms
        return None if limit is None else began_ms + limit - self.ran_ms

    def step(self, step: GangStep, at_ms: int) -> None:
        """Take a step of the lifecycle; IllegalStep if the table does not have it."""
        state = gang_next(self.state, step)
        if state is not self.state:
            self.state, self.since_ms = state, at_ms
            self.account.turn(at_ms, self._part(), holds=state not in (*RESTING, *ENDED))

    def _part(self) -> Part:
        """What time in this state is booked as."""
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
    """The class as one word of the log: queue/user/priority/shape/limit (from the least that will do, if it says that,
    to all), the array if there is one, and after a `!` the nodes that it must not have, if there are any."""
    queue, user, priority, shape, (limit, least), array, avoids = key
    size = "+".join(
        f"{part.nodes}x{part.gpus}.{part.cpu_milli}.{part.memory_bytes}.{part.gpu_type or '-'}.{part.ranks}"
        + "s" * part.stacked
        + (f"[{part.terms}]" if part.terms else "")
        for part in shape.parts
    )
    time = f"{least}..{limit}" if least >= 0 else f"{limit}" if limit >= 0 else "-"
    most = f"{queue}/{user}/{priority}/{size}/{time}"
    return most + (f"/{array}" if array else "") + (f"/!{','.join(avoids)}" if avoids else "")
