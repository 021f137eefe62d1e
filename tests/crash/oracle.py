"""Oracle of job states: how each job must have ended, recomputed from the rows of the log.

Follows docs/reference/lifecycle.md to the letter: a plain fold over dictionaries that shares nothing with
`ganger.core`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ganger.model import event as e
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import Job

ENDS = (Cause.USER, Cause.TIME_LIMIT, Cause.QUEUE_TIME, Cause.DEPENDENCY)
PREEMPTIONS = (Cause.PREEMPTED, Cause.NODE_PREEMPTED, Cause.DRAINED)
NEVER_SPENDS = (Cause.NODE_LOST, Cause.LAUNCHER_LOST, Cause.PORT_BUSY)
ENDED = ("succeeded", "failed", "stopped")
WHEN_CLEARED = {"up": "succeeded", "done": "succeeded", "again": "pending", "over": "failed", "ending": "stopped"}
WHEN_CLEARED |= {"suspending": "suspended"}
MAY_FINISH = ("again", "suspending")
FORGIVEN = 3
"""Attempts without progress, where the job sets no limit."""


@dataclass
class Life:
    """The life of one job.

    Attributes:
        state: pending, suspended, up, ended, or a state of `WHEN_CLEARED`, which says what follows it.
    """

    job: Job
    began_ms: int
    state: str = "pending"
    ended_ms: int | None = None
    generation: int = 0
    nodes: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    ends_by: Cause | None = None
    has_failed: bool = False
    suspends: bool = False
    stepped: bool = False
    stepped_before: bool = False
    saved: int | None = None
    resumed: int | None = None
    spent: int = 0
    error: str = ""

    @property
    def progressed(self) -> bool:
        return self.saved is not None and (self.resumed is None or self.saved > self.resumed)

    @property
    def is_new(self) -> bool:
        """True if it has never made a step."""
        return not self.stepped_before and not self.stepped

    @property
    def finished_in_notice(self) -> bool:
        """True if it finished on all nodes while it was stopped for something that this makes moot."""
        may_finish = self.state in MAY_FINISH or (self.state == "ending" and self.ends_by is Cause.TIME_LIMIT)
        return may_finish and not self.has_failed and self.finished == self.nodes

    def fail(self, failed: e.Failed) -> None:
        """Record the first failure of a generation; later ones are consequences of it."""
        if self.has_failed:
            return
        self.has_failed = True
        if self.state == "up":
            self.state = "again" if self._is_retried(failed) else "over"

    def _is_retried(self, failed: e.Failed) -> bool:
        most, error = self.job.spec.retry.max, _error(failed)
        is_same, self.error = bool(error) and error == self.error, error
        if is_same and most is None:
            return False
        if self.progressed or failed.cause in NEVER_SPENDS:
            return True
        by_itself = failed.cause is Cause.OUT_OF_MEMORY or (failed.cause is Cause.RANK_FAILED and failed.signal is None)
        limit = most if most is not None else 0 if by_itself and self.is_new else FORGIVEN
        self.spent += 1
        return self.spent <= limit


@dataclass
class Oracle:
    """The oracle.

    Attributes:
        lives: life of each job.
        held: job that holds each device of each node.
        wrong: one sentence for each contradiction.
    """

    lives: dict[str, Life] = field(default_factory=dict)
    held: dict[tuple[str, int], str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def read(self, rows: Iterable[e.Stamped]) -> "Oracle":
        """Read rows of the log, in order."""
        for row in rows:
            self._read_event(row.event, row.at_ms)
        return self

    def _read_event(self, event: e.Event, at_ms: int) -> None:
        match event:
            case e.Submitted(job=job):
                self.lives[job.id] = Life(job, at_ms)
            case e.Decided(plan=plan):
                for decision in plan.decisions:
                    self._decided(decision, at_ms)
            case e.SuspendRequested(gang=gang) | e.ResumeRequested(gang=gang):
                _request_suspension(self.lives[gang], suspends=isinstance(event, e.SuspendRequested))
            case e.NodeLost(node=node):
                self._lose({node}, at_ms)
            case e.NodesListed(nodes=nodes):
                names = {node.name for node in nodes}
                self._lose(self.listed - names, at_ms)
                self.listed = names
            case e.Deleted(gang=gang):
                self._check(self.lives.pop(gang).state in ENDED, f"{gang} was deleted before its end")
            case _ if hasattr(event, "generation"):
                self._fact(event, self.lives[event.gang], at_ms)

    def _decided(self, decision: object, at_ms: int) -> None:
        match decision:
            case Start():
                self._start(self.lives[decision.gang], decision)
            case Stop():
                life = self.lives[decision.gang]
                if decision.cause in ENDS and life.state in ("pending", "suspended"):
                    life.state, life.ended_ms = "stopped", at_ms
                elif decision.cause in ENDS and life.state in ("up", "again", "suspending"):
                    life.state, life.ends_by = "ending", decision.cause
                elif decision.cause in PREEMPTIONS:
                    self._check(life.state == "up", f"{decision.gang} is preempted and is {life.state}")
                    life.state = "again"
                elif decision.cause is Cause.SUSPENDED:
                    life.state, life.suspends = "suspending", False

    def _start(self, life: Life, start: Start) -> None:
        self._check(life.state == "pending", f"{start.gang} starts and is {life.state}")
        self._check(start.generation == life.generation + 1, f"{start.gang} starts as generation {start.generation}")
        for share in start.shares:
            for device in share.devices:
                other = self.held.setdefault((share.node, device), start.gang)
                self._check(
                    other == start.gang, f"device {device} of {share.node} is given to {start.gang} and {other}"
                )
        life.stepped_before |= life.stepped
        life.state, life.generation, life.resumed = "up", start.generation, life.saved
        life.nodes, life.left, life.finished = {*start.nodes}, {*start.nodes}, set()
        life.stepped = life.has_failed = False

    def _fact(self, event: e.Event, life: Life, at_ms: int) -> None:
        match event:
            case e.Progressed():
                life.stepped = True
            case e.Checkpointed(step=step):
                life.saved = step
            case e.Finished(nodes=nodes):
                life.finished |= life.left & {*nodes}
            case e.Done():
                life.state = "done"
            case e.Failed():
                life.fail(event)
            case e.Cleared(nodes=nodes):
                self._leave(life, {*nodes}, Cause.LAUNCHER_LOST, at_ms)

    def _lose(self, nodes: set[str], at_ms: int) -> None:
        for life in self.lives.values():
            if life.left & nodes:
                self._leave(life, nodes, Cause.NODE_LOST, at_ms)

    def _leave(self, life: Life, nodes: set[str], cause: Cause, at_ms: int) -> None:
        """Clear the job from these nodes; it has failed if it had not finished there."""
        cleared = life.left & nodes
        if cleared - life.finished and life.state == "up":
            silent = min(cleared - life.finished)
            life.fail(e.Failed(gang=life.job.id, generation=life.generation, node=silent, cause=cause))
        life.left -= cleared
        self.held = {
            device: gang for device, gang in self.held.items() if gang != life.job.id or device[0] not in cleared
        }
        if cleared and not life.left:
            life.state = "succeeded" if life.finished_in_notice else WHEN_CLEARED[life.state]
            if life.state == "pending" and life.suspends:
                life.state, life.suspends = "suspended", False
            life.ended_ms = at_ms if life.state in ENDED else None

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.errors.append(otherwise)


def _request_suspension(life: Life, *, suspends: bool) -> None:
    if suspends and life.state == "pending":
        life.state = "suspended"
    elif suspends:
        life.suspends = True
    else:
        life.suspends = False
        life.state = {"suspended": "pending", "suspending": "again"}.get(life.state, life.state)


def _error(failed: e.Failed) -> str:
    """Return the exception of the only rank that ended, with its step."""
    if len(failed.ends) != 1 or failed.ends[0].error is None:
        return ""
    end = failed.ends[0]
    return f"{end.error} at {end.step}"
