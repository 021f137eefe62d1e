"""A live gang: what the state knows of it, and what its failures lead to.

Owned by `core.state`; read by policies, `core.plan` and `core.explain`. An ended gang leaves the state; its history is
in the log.
"""

from dataclasses import dataclass, field

from ganger.core.lifecycle import GangStep, gang_next
from ganger.core.usage import Account, Part
from ganger.model.decision import Cause, Start
from ganger.model.event import Failed
from ganger.model.job import ENDED, GangState, Job, Shape

ClassKey = tuple[str, str, int, Shape, int]
"""(queue, user, priority, shape, time limit or -1): gangs of one class are equal to the scheduler but for their age."""


LEAVING = (
    GangState.REQUEUEING,
    GangState.SUSPENDING,
    GangState.FINISHING,
    GangState.FAILING,
    GangState.STOPPING,
)
"""States of a gang whose generation is being stopped: its nodes will be free in a moment."""


@dataclass(slots=True, kw_only=True)
class Gang:
    """One live gang. Times are Unix ms; `number` is the seq of its submission, unique for ever.

    since_ms: when it entered its state; generation: of its newest start, 0 before the first; start: that start, kept
    until the gang is pending again; left: nodes on which something of it may run; started, finished: nodes that said
    so; ran_ms: time its earlier generations held nodes; began_ms: when this one was decided; stepped: this generation
    reported a step; checkpoint_step: newest checkpoint; resumed_step: the newest one when this generation began;
    spent: attempts that counted against the retry limit; fruitless: attempts in a row without progress;
    not_before_ms: end of the pause before the next start; end_cause: why it is to end; failure: the first of this
    generation; stop_sent: the cause of its newest stop; suspends: it is to be suspended once it can be; drains: a node
    of this generation is to be left; account: where its time went.
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
    checkpoint_step: int | None = None
    resumed_step: int | None = None
    spent: int = 0
    fruitless: int = 0
    not_before_ms: int = 0
    end_cause: Cause | None = None
    failure: Failed | None = None
    stop_sent: Cause | None = None
    suspends: bool = False
    drains: bool = False

    @property
    def id(self) -> str:
        """The job's id: one gang a job, until arrays come."""
        return self.job.id

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
        return self.checkpoint_step is not None and (
            self.resumed_step is None or self.checkpoint_step > self.resumed_step
        )

    @property
    def class_key(self) -> ClassKey:
        """What it is equal in to other gangs."""
        limit = self.job.spec.limits.time_ms
        return (self.queue, self.job.user, self.job.spec.priority, self.shape, -1 if limit is None else limit)

    @property
    def node_ms(self) -> int:
        """Node-milliseconds it may use by its time limit; 0 without one."""
        return self.shape.all_nodes * (self.job.spec.limits.time_ms or 0)

    def ends_ms(self, now_ms: int) -> int | None:
        """When its nodes are free at the latest: by its time limit, or now if it is being stopped.

        None: nothing tells.
        """
        if self.state in LEAVING:
            return now_ms
        limit = self.job.spec.limits.time_ms
        began_ms = now_ms if self.state is GangState.PENDING else self.began_ms
        return None if limit is None else max(now_ms, began_ms + limit - self.ran_ms)

    def step(self, step: GangStep, at_ms: int) -> None:
        """Take a step of the lifecycle; IllegalStep if the table does not have it."""
        state = gang_next(self.state, step)
        if state is not self.state:
            self.state, self.since_ms = state, at_ms
            self.account.turn(at_ms, self._part())

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
            case _:
                return "working"


def class_text(key: ClassKey) -> str:
    """The class as one word of the log: queue/user/priority/shape/limit."""
    queue, user, priority, shape, limit = key
    size = "+".join(
        f"{part.nodes}x{part.gpus}.{part.cpu_milli}.{part.memory_bytes}.{part.gpu_type or '-'}.{part.ranks}"
        + "s" * part.stacked
        for part in shape.parts
    )
    return f"{queue}/{user}/{priority}/{size}/{limit if limit >= 0 else '-'}"
