"""A live gang: everything the state knows of it. An ended gang leaves the state; its history is in the log."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ganger.core.queues.quota import need
from ganger.core.state.gang_attempts import Attempt, Checkpoints, Retries
from ganger.core.state.lifecycle import GangStep, Phase, gang_next
from ganger.core.state.runtime_estimate import NEVER_MS, ExpectedRunTime
from ganger.core.state.time_accounting import Account, Part
from ganger.model.decision import FINISHES_IN_NOTICE, Cause, NodeShare
from ganger.model.job import ENDED, After, GangState, Job
from ganger.model.job_metrics import JobMetrics
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
STAYING: Final = (*ACTIVE, GangState.RESIZING)
"""States of a gang that goes on to hold nodes."""
SUSPENSIONS: Final = (Cause.SUSPENDED, Cause.IDLE_SUSPEND)
"""Causes of a stop after which a gang waits to be resumed."""
LEAVING = (
    GangState.REQUEUEING,
    GangState.SUSPENDING,
    GangState.FINISHING,
    GangState.FAILING,
    GangState.STOPPING,
)
"""States of a gang whose generation is being stopped: its nodes are about to be free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSize:
    """The size of an elastic gang that a user asked for.

    nodes: the most nodes that it is to have; None: its maximum.
    at_ms: when the user said so; if it was being resized, when that ended.
    """

    nodes: int | None = None
    at_ms: int = 0


@dataclass(slots=True, kw_only=True)
class Gang:
    """A live gang. Times are Unix ms.

    shape: of what it holds; while it waits, the least that it can start with.
    number: rises with submissions and is never reused: STRIDE times the seq of the submission, plus the array index.
    since_ms: when it entered its state.
    account: where its time went.
    attempt: its newest start, and what followed from it.
    checkpoints, retries: what its attempts leave to the next.
    first_started_ms: when all nodes of an attempt had started for the first time.
    ran_ms: how long earlier attempts held nodes.
    ran_node_ms: how long it held nodes, times their number, which may have changed.
    end_cause: why it is to end.
    suspends: why it is to be suspended as soon as possible.
    awaits: the jobs whose end it still waits for.
    expected: the estimated run time, where it has no time limit; follows the user's history while it waits without a
        reservation, then changes only when it is outlived.
    counted: the state in which its array counts it.
    wanted: of an elastic gang, the size that a user asked for.
    metrics: what earlier attempts reported of its metrics.
    """

    job: Job
    shape: Shape
    number: int
    submitted_ms: int
    since_ms: int
    account: Account
    state: GangState = GangState.PENDING
    attempt: Attempt = field(default_factory=Attempt)
    checkpoints: Checkpoints = Checkpoints()
    retries: Retries = Retries()
    first_started_ms: int | None = None
    ran_ms: int = 0
    ran_node_ms: int = 0
    end_cause: Cause | None = None
    suspends: Cause | None = None
    awaits: tuple[After, ...] = ()
    expected: ExpectedRunTime | None = None
    counted: GangState = GangState.PENDING
    wanted: WantedSize = WantedSize()
    metrics: JobMetrics = JobMetrics()

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
    def groups(self) -> int:
        """The replica groups that start together when it starts; more than one only of a head."""
        spec = self.job.spec
        return self.shape.nodes // spec.shape.nodes if spec.replica_groups and self.is_head else 1

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
        if self.state is not GangState.FAILED or self.attempt.failure is None:
            return None
        if self.attempt.failure.signal is not None:
            return 128 + self.attempt.failure.signal
        return 1 if self.attempt.failure.exit_code is None else self.attempt.failure.exit_code

    @property
    def goes_back(self) -> bool:
        """True if it is to return to an older checkpoint with its next attempt."""
        rollback = self.checkpoints.rollback
        return rollback is not None and rollback.generation > self.attempt.generation

    @property
    def queue(self) -> str:
        """The queue that it waits in or is charged to."""
        return self.job.spec.queue

    @property
    def ended(self) -> bool:
        """True in a final state."""
        return self.state in ENDED

    @property
    def is_observed(self) -> bool:
        """True if something is known of its progress: it has reported a step or a checkpoint."""
        known = (self.checkpoints.newest_step, self.checkpoints.best_step)
        return self.attempt.stepped or self.attempt.stepped_before or known != (None, None)

    @property
    def holds_nodes(self) -> bool:
        """True while nodes are allocated to it."""
        return self.attempt.start is not None and not self.ended

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its generation, each once, in rank order; empty without a start."""
        return self.attempt.start.nodes if self.attempt.start else ()

    @property
    def passes_reservations(self) -> bool:
        """True if reservations of gangs after it in the order do not delay its next start.

        It has run before, and was not stopped for another one, which such a start could delay.
        """
        has_returned = self.attempt.generation > 0 and self.attempt.stop_sent is not Cause.PREEMPTED
        return has_returned and not self.retries.unadmitted

    @property
    def max_nodes(self) -> int:
        """The largest size that it is to have: its own; if it is elastic, its limit, or less on request."""
        return self.wanted.nodes or (self.job.spec.sizes[-1] if self.is_elastic else self.size)

    @property
    def is_elastic(self) -> bool:
        """True if its size is a range."""
        return self.job.spec.elastic_role is not None

    def elastic_shares(self, shares: Iterable[NodeShare]) -> tuple[NodeShare, ...]:
        """Return those of its shares that are counted in its size."""
        part = self.job.spec.elastic_part
        return tuple(share for share in shares if share.part == part)

    @property
    def may_be_preempted(self) -> bool:
        """True if it holds nodes and is not about to leave them: it runs, or keeps them until there are enough."""
        return self.state in ACTIVE or self.is_short

    @property
    def has_other_size(self) -> bool:
        """True if it may hold another number of nodes than its job asks for: more, spares, or those that it keeps."""
        return self.is_elastic or bool(self.job.spec.spares) or self.retries.kept_until_ms is not None or self.is_short

    @property
    def missing_nodes(self) -> int:
        """The nodes that it lacks for its next attempt, while it keeps the others of the last one."""
        if self.retries.kept_until_ms is None:
            return 0
        return self.job.spec.nodes - len(self.attempt.target)

    @property
    def is_short(self) -> bool:
        """True if it holds too few nodes to start: those of its last attempt, which it keeps until there are more."""
        return not self.job.spec.roles and self.shape.nodes < self.job.spec.nodes

    @property
    def size(self) -> int:
        """Its nodes, spares among them; with a range of a role, the processes of that."""
        part = self.job.spec.elastic_part
        return self.shape.more[part - 1].nodes if part else self.shape.nodes

    @property
    def surplus(self) -> int:
        """Nodes, or processes of its elastic role, that it has beyond its minimum."""
        return self.size - self.job.spec.sizes.start if self.is_elastic else 0

    @property
    def is_scaled_anew(self) -> bool:
        """True if a user asked for another number of nodes after it came into its state."""
        return self.wanted.nodes is not None and self.wanted.at_ms > self.since_ms

    @property
    def is_wanted_larger(self) -> bool:
        """True if a user asked for more nodes than it has since its attempt began."""
        is_new = self.wanted.nodes is not None and self.wanted.at_ms >= self.attempt.began_ms
        return is_new and self.size < self.max_nodes

    def uses(self, nodes: Collection[str]) -> bool:
        """Return whether this attempt, or the next one while it is resized, has ranks on some of these nodes."""
        own = tuple(share.node for share in self.attempt.target) or self.nodes
        return any(node in nodes for node in own)

    def is_bound_for(self, node: str) -> bool:
        """Return whether it is being resized, and its next attempt gets something on a node."""
        return any(share.node == node for share in self.attempt.target)

    def sized(self, size: int) -> Shape:
        """Return the shape of an elastic gang with another size."""
        counts, part = [part.nodes for part in (self.shape, *self.shape.more)], self.job.spec.elastic_part
        counts[part] = size
        return self.shape.with_nodes(counts)

    def shape_on(self, shares: Iterable[NodeShare]) -> Shape:
        """Return its shape when it holds these shares, if their number may change."""
        if not self.has_other_size:
            return self.shape
        parts = [share.part for share in shares]
        return self.shape.with_nodes([parts.count(part) for part in range(1 + len(self.shape.more))])

    def forget_refusals(self) -> None:
        """Allow the next start at once and treat it like any other: the cluster is asked for something else."""
        if self.retries.unadmitted:
            self.retries = replace(self.retries, unadmitted=0, not_before_ms=0)

    @property
    def phase(self) -> Phase:
        """Its phase as the table of reactions sees it."""
        if self.attempt.start is None:
            return Phase.WAITING
        if self.state is GangState.RESIZING:
            return Phase.RESIZING
        if self.state in (GangState.REQUEUEING, GangState.SUSPENDING):
            return Phase.CLEARING
        if self.state in LEAVING or self.ended:
            return Phase.STOPPING
        if self.attempt.stepped:
            return Phase.RUNNING
        return Phase.RECOVERING if self.attempt.stepped_before else Phase.STARTING

    @property
    def has_finished(self) -> bool:
        """True if its attempt, which has left all nodes, did all its work.

        A gang that is stopped may finish within the notice, on all nodes: launchers report no rank that left because of
        the notice as finished. Then nothing of it is to go on. A user's stop stands, and so does a rollback.
        """
        if self.state in ACTIVE:
            return True
        attempt = self.attempt
        if attempt.stop_sent not in FINISHES_IN_NOTICE or attempt.failure is not None or self.goes_back:
            return False
        finished = frozenset(attempt.finished)
        return bool(finished) and all(node in finished for node in self.nodes)

    @property
    def left_nodes(self) -> tuple[str, ...]:
        """Nodes that its next start avoids where possible: it failed there repeatedly, or was just evicted from there.

        Who evicts a gang without closing its node, such as a descheduler, wants it elsewhere.
        """
        node, failures = self.retries.failed_on
        failing = (node,) if failures >= FAILURES_BEFORE_AVOIDING else ()
        return (*failing, self.attempt.vacates) if self.attempt.vacates else failing

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
        return tuple(sorted(node for node, _ in self.retries.excluded)) if self.retries.excluded else ()

    @property
    def time_ms(self) -> int | None:
        """The time limit over all attempts: what its start was granted, else what it requests; None without a limit."""
        granted_ms = self.attempt.granted_ms
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
    def charged_nodes(self) -> int:
        """The number of nodes that it is charged for: all but those that other gangs lend it."""
        return self.shape.all_nodes - len(self.attempt.lent)

    @property
    def charged_shape(self) -> Shape:
        """Its shape with these nodes."""
        return replace(self.shape, nodes=self.charged_nodes) if self.attempt.lent else self.shape

    def without_lent(self, shares: tuple[NodeShare, ...]) -> tuple[NodeShare, ...]:
        """Return those of its shares that it holds itself, not on a spare of another gang."""
        lent = self.attempt.lent
        return tuple(share for share in shares if share.node not in lent) if lent else shares

    @property
    def node_ms(self) -> int:
        """The node-milliseconds it may use by its requested time limit; 0 without one."""
        return self.charged_nodes * (self.job.spec.limits.time_ms or 0)

    def held_node_ms(self, now_ms: int) -> int:
        """Return the node-milliseconds that it has held, over all attempts."""
        began_ms = self.attempt.began_ms if self.holds_nodes else now_ms
        return self.ran_node_ms + self.charged_nodes * (now_ms - began_ms)

    def mean_gpu_milli(self, now_ms: int) -> int:
        """Return the thousandths of GPUs that it has held, as the mean over the time for which it held nodes."""
        held_ms = self.account.held_until_ms(now_ms)
        return need(self.shape)[0] * self.held_node_ms(now_ms) // (held_ms * self.shape.all_nodes) if held_ms else 0

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

    @property
    def grace_ms(self) -> int:
        """The time that its job asks for to save its work: none without a checkpoint section."""
        return self.job.spec.checkpoint.grace_ms if self.job.spec.checkpoint else 0

    @property
    def notice_ms(self) -> int:
        """The time that it gets to save its work before it is stopped."""
        return self.grace_ms if self.state in ACTIVE else 0

    def notice_ends_ms(self, now_ms: int) -> int | None:
        """Return until when it may save its work, while it is being stopped; None if it has no time left for that."""
        is_stopping = self.state in (*LEAVING, GangState.RESIZING) and self.attempt.notice_until_ms > now_ms
        return self.attempt.notice_until_ms if is_stopping else None

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
        began_ms = now_ms if self.state is GangState.PENDING else self.attempt.began_ms
        return began_ms + self.expected.run_ms - self.ran_ms

    @property
    def is_predicted(self) -> bool:
        """True if the end of a gang without a time limit is estimated."""
        return self.time_ms is None and self.expected is not None and self.state not in LEAVING

    def limit_ms(self, now_ms: int) -> int | None:
        """Return when its time limit expires, if it runs or were to start now."""
        time_ms = self.time_ms
        began_ms = now_ms if self.state is GangState.PENDING else self.attempt.began_ms
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
                return "recovery" if self.attempt.generation and self.attempt.stop_sent not in SUSPENSIONS else "queued"
            case GangState.SUSPENDED:
                return "queued"
            case GangState.STARTING:
                return "recovery" if self.attempt.generation > 1 else "starting"
            case GangState.REQUEUEING | GangState.RESIZING:
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
