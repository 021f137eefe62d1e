"""A job's attempts, read out of its events, and of its gang if it held nodes before the first of them. Called by
`engine.service`."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.state.gang import Gang
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.query.event_text import CAUSES, ending, overdue, passed_over
from ganger.model.decision import UNADMITTED, Cause, Start, Stop
from ganger.model.event import Checkpointed, Cleared, Decided, Done, Event, Failed, Finished, Resumed, Stamped, Started
from ganger.model.job import GangState
from ganger.model.views.service_views import AttemptView

KEPT: Final = 256
_MEANT: Final = (
    Cause.USER,
    Cause.TIME_LIMIT,
    Cause.QUEUE_TIME,
    Cause.PREEMPTED,
    Cause.SUSPENDED,
    Cause.DRAINED,
    Cause.NODE_PREEMPTED,
)
"""Causes of a stop that was decided, rather than something that went wrong."""


@dataclass(slots=True)
class _Attempt:
    start: Start
    resumed_step: int | None
    passed: tuple[str, ...] = ()
    waited: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = "running"
    sentence: str = ""
    blame: str = ""
    killed: tuple[int, ...] = ()
    grace_ms: int = 0

    def take(self, event: Event, at_ms: int) -> None:
        """One event of this generation."""
        match event:
            case Started(nodes=nodes):
                self.waited = [node for node in self.waited if node not in nodes]
                if not self.waited and self.started_ms is None:
                    self.started_ms = at_ms
            case Resumed(step=step):
                self.resumed_step, self.passed = step, passed_over(event.passed)
            case Finished(nodes=nodes):
                self.unfinished = [node for node in self.unfinished if node not in nodes]
                if not self.unfinished:
                    self.settle("finished", "")
            case Done():
                self.settle("finished", "")
            case Failed():
                self.fail(event)
            case Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
                self.killed, self.grace_ms = tuple(sorted((*self.killed, *killed))), max(self.grace_ms, grace_ms)
                self.left = [node for node in self.left if node not in nodes]
                if not self.left and self.ended_ms is None:
                    self.ended_ms = at_ms

    def fail(self, failed: Failed) -> None:
        """A rank or a node of it failed."""
        self.settle("failed", ending(failed))
        self.blame = self.blame or attribute(failed).blame.value

    def stop(self, cause: Cause) -> None:
        """It was decided that it is to stop."""
        self.settle("stopped" if cause in _MEANT else "failed", CAUSES[cause])

    def settle(self, outcome: str, sentence: str) -> None:
        """How it ended: the first word of it counts, what follows is its wake."""
        if self.outcome == "running":
            self.outcome, self.sentence = outcome, sentence

    def view(self, over_ms: int | None) -> AttemptView:
        """As faces show it. `over_ms`: when it was over at the latest; a lost node never said that it was cleared."""
        gone = self.outcome == "running" and self.ended_ms is None and over_ms is not None
        return AttemptView(
            generation=self.start.generation,
            started_ms=self.started_ms,
            ended_ms=over_ms if self.ended_ms is None else self.ended_ms,
            outcome="failed" if gone else self.outcome,
            nodes=self.start.nodes,
            sentence=CAUSES[Cause.NODE_LOST] if gone else self.sentence + self._overdue(),
            resumed_step=self.resumed_step,
            blame=Blame.INFRASTRUCTURE.value if gone else self.blame if self.outcome == "failed" else "",
            passed=self.passed,
            killed=self.killed,
            time_ms=self.start.time_ms,
        )

    def _overdue(self) -> str:
        """Of one that was to save its work; that those left of a failure had to be killed is no news."""
        return overdue(self.killed, self.grace_ms) if self.outcome == "stopped" else ""


class JobHistory:
    """The attempts of one job, folded from its own events. `after` is the seq of the newest one taken in, so that a job
    that runs for weeks is read once."""

    def __init__(self, job: str, begun: Gang | None = None) -> None:
        """Nothing yet, but for what is under way of a gang that had `begun` before the first event."""
        self.after = 0
        self._job = job
        self._attempts: dict[int, _Attempt] = {}
        self._begun_ms: list[int] = []
        self._newest_step = None if begun is None else begun.checkpoint_step
        if begun is not None and begun.start is not None:
            self._attempts[begun.generation] = _under_way(begun, begun.start)
            self._begun_ms.append(begun.began_ms)

    def take(self, rows: Iterable[Stamped]) -> None:
        """Events of the job that follow those taken in before."""
        for row in rows:
            self.after = row.seq
            event = row.event
            if isinstance(event, Checkpointed | Resumed):
                self._newest_step = event.step
            if isinstance(event, Decided):
                self._decided(event, row.at_ms)
            elif isinstance(event, Failed) and event.cause in UNADMITTED:
                self._forget(event.generation)
            elif (attempt := self._attempts.get(getattr(event, "generation", 0))) is not None:
                attempt.take(event, row.at_ms)

    def attempts(self, ended_ms: int | None) -> tuple[AttemptView, ...]:
        """Oldest first. `ended_ms`: when the job ended, if it has. No attempt outlives the next one, or the job."""
        over_ms = [*self._begun_ms[1:], ended_ms]
        return tuple(attempt.view(over) for attempt, over in zip(self._attempts.values(), over_ms, strict=False))

    def _forget(self, generation: int) -> None:
        """Drop the newest attempt: nothing of it was ever there."""
        if self._attempts.pop(generation, None) is not None:
            self._begun_ms.pop()

    def _decided(self, event: Decided, at_ms: int) -> None:
        for decision in event.plan.decisions:
            if isinstance(decision, Start) and decision.gang == self._job:
                nodes = decision.nodes
                attempt = _Attempt(decision, self._newest_step, waited=[*nodes], left=[*nodes], unfinished=[*nodes])
                self._attempts[decision.generation] = attempt
                self._begun_ms.append(at_ms)
            elif isinstance(decision, Stop) and decision.gang == self._job and decision.generation in self._attempts:
                self._attempts[decision.generation].stop(decision.cause)


def _under_way(gang: Gang, start: Start) -> _Attempt:
    """The generation that holds nodes, as its gang has it. When a later one than the first started is known only while
    it runs."""
    attempt = _Attempt(
        start,
        gang.resumed_step,
        passed=passed_over(gang.passed),
        waited=[node for node in start.nodes if node not in gang.started],
        left=list(gang.left),
        unfinished=[node for node in start.nodes if node not in gang.finished],
        killed=gang.killed,
        grace_ms=gang.grace_ms,
    )
    if gang.generation == 1:
        attempt.started_ms = gang.first_started_ms
    elif gang.state is GangState.RUNNING:
        attempt.started_ms = gang.since_ms
    if gang.state is GangState.FINISHING:
        attempt.settle("finished", "")
    if gang.stop_sent in _MEANT:  # where something failed as well, that was mostly its wake
        attempt.stop(gang.stop_sent)
    if gang.failure is not None:
        attempt.fail(gang.failure)
    return attempt


class JobHistories:
    """Histories of the jobs that were asked about last, each brought up to date when it is asked for."""

    def __init__(self, log: EventLog) -> None:
        """None yet."""
        self._log = log
        self._kept: dict[str, JobHistory] = {}
        self._lock = threading.Lock()

    def attempts(self, job: str, *, ended_ms: int | None) -> tuple[AttemptView, ...]:
        """The attempts of a job up to now."""
        with self._lock:
            history = self._kept.pop(job, None) or JobHistory(job, self._log.begun(job))
            self._kept[job] = history
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
            while rows := self._log.rows(history.after, job):
                history.take(rows)
            return history.attempts(ended_ms)
