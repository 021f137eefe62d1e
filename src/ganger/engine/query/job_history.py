"""The attempts of a job, read from its events, and from its gang if it held nodes before the first of them."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.fold.fold_attempt import NO_EXIT_RECORD
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import Checkpoints
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.query.event_text import (
    CAUSES,
    dropped_copy_text,
    failure_text,
    killed_text,
    skipped_texts,
    stop_text,
)
from ganger.model.decision import FINISHES_IN_NOTICE, UNADMITTED, Cause, Start, Stop
from ganger.model.event import (
    Checkpointed,
    Cleared,
    CodeEdited,
    CopyDropped,
    Decided,
    Done,
    Evicted,
    Failed,
    Finished,
    GenerationFact,
    MetricsKept,
    Progressed,
    Quiet,
    Resumed,
    Slow,
    Stamped,
    Started,
)
from ganger.model.idle.idle_event import Idle
from ganger.model.job import GangState
from ganger.model.views.service_views import AttemptView
from ganger.model.watch.watch_event import Anomaly

MAX_HISTORIES: Final = 256
_DECIDED_STOPS: Final = (
    *FINISHES_IN_NOTICE,
    Cause.USER,
    Cause.QUEUE_TIME,
    Cause.ROLLED_BACK,
    Cause.DIVERGED,
    Cause.STALLED,
    Cause.IDLE_STOP,
)
"""Causes of a stop that was decided, rather than of a failure."""


@dataclass(slots=True)
class _Attempt:
    start: Start
    resumed_step: int | None
    resumed_job: str = ""
    skipped_checkpoints: tuple[str, ...] = ()
    not_started: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    started_ms: int | None = None
    ended_ms: int | None = None
    stop_cause: Cause | None = None
    outcome: str = "running"
    sentence: str = ""
    blame: str = ""
    failure_class: str = ""
    killed: tuple[int, ...] = ()
    grace_ms: int = 0
    is_observed: bool = False
    dropped_copy: CopyDropped | None = None
    evicted_from: str = ""

    def add(self, event: GenerationFact, at_ms: int) -> None:
        """Add an event of this generation."""
        match event:
            case Started(nodes=nodes):
                self.not_started = [node for node in self.not_started if node not in nodes]
                if not self.not_started and self.started_ms is None:
                    self.started_ms = at_ms
            case Resumed(step=step):
                self.resumed_step, self.resumed_job = step, event.source
                self.skipped_checkpoints = skipped_texts(event.skipped)
            case Finished(nodes=nodes):
                self.unfinished = [node for node in self.unfinished if node not in nodes]
                if not self.unfinished and self.stop_cause in FINISHES_IN_NOTICE and self.outcome == "stopped":
                    self.outcome, self.sentence = "finished", ""  # within the notice
                elif not self.unfinished:
                    self.settle("finished", "")
            case Done():
                self.settle("finished", "")
            case Failed():
                self.fail(event)
            case Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
                self.killed, self.grace_ms = tuple(sorted((*self.killed, *killed))), max(self.grace_ms, grace_ms)
                self._leave_unfinished(nodes)
                self.remaining = [node for node in self.remaining if node not in nodes]
                if not self.remaining and self.ended_ms is None:
                    self.ended_ms = at_ms
            case Progressed() | Checkpointed() | CopyDropped():
                self.progress(event)
            case Evicted(node=node):
                self.evicted_from = node
            case MetricsKept() | Slow() | Quiet() | CodeEdited() | Anomaly() | Idle():
                pass

    def progress(self, event: Progressed | Checkpointed | CopyDropped) -> None:
        """Note a step or a checkpoint, and whether another node has a copy of the newest one."""
        self.is_observed = True
        if isinstance(event, CopyDropped):
            self.dropped_copy = event
        elif isinstance(event, Checkpointed) and self.dropped_copy and event.step > self.dropped_copy.step:
            self.dropped_copy = None

    def _leave_unfinished(self, nodes: tuple[str, ...]) -> None:
        """Note a failure on a node that is clear without a report of its end, as the state does."""
        silent = next((node for node in nodes if node in self.remaining and node in self.unfinished), None)
        if silent is not None and self.outcome == "running":
            gang, number, cause = self.start.gang, self.start.generation, Cause.LAUNCHER_LOST
            self.fail(Failed(gang=gang, generation=number, node=silent, cause=cause, detail=NO_EXIT_RECORD))

    def fail(self, event: Failed) -> None:
        """Note that a rank or a node of the attempt failed."""
        from ganger.core.failure.end_diagnosis import diagnose_ends  # tables that take long to load

        if self.evicted_from:  # its ranks end for that, also before the scheduler has stopped the rest
            gang, number = self.start.gang, self.start.generation
            evicted = Stop(gang=gang, generation=number, cause=Cause.EVICTED, node=self.evicted_from)
            self.settle("stopped", stop_text(evicted))
            return
        self.settle("failed", failure_text(event))
        if not self.blame:
            self.blame = attribute(event).blame.value
            self.failure_class = diagnose_ends(event).failure_class.name

    def stop(self, stop: Stop) -> None:
        """Note that the scheduler decided to stop the attempt."""
        self.stop_cause = stop.cause
        if stop.cause is Cause.NODE_LOST and self.outcome == "running":
            self.blame, self.failure_class = Blame.INFRASTRUCTURE.value, "node_lost"
        self.settle("stopped" if stop.cause in _DECIDED_STOPS else "failed", stop_text(stop))

    def settle(self, outcome: str, sentence: str) -> None:
        """Set the outcome, unless it is set: the first cause counts, what follows is its consequence."""
        if self.outcome == "running":
            self.outcome, self.sentence = outcome, sentence

    def view(self, over_ms: int | None) -> AttemptView:
        """Return the view of the attempt.

        over_ms: the latest time of its end; a lost node never reported that it was cleared.
        """
        vanished = self.outcome == "running" and self.ended_ms is None and over_ms is not None
        lost_text = f"its node {self.remaining[0]} was lost" if len(self.remaining) == 1 else CAUSES[Cause.NODE_LOST]
        return AttemptView(
            generation=self.start.generation,
            started_ms=self.started_ms,
            ended_ms=over_ms if self.ended_ms is None else self.ended_ms,
            outcome="failed" if vanished else self.outcome,
            nodes=self.start.nodes,
            sentence=lost_text if vanished else self.sentence + self._killed_text(),
            resumed_step=self.resumed_step,
            resumed_job=self.resumed_job,
            blame=Blame.INFRASTRUCTURE.value if vanished else self.blame if self.outcome == "failed" else "",
            failure_class=("node_lost" if vanished else self.failure_class)
            if self.outcome == "failed" or vanished
            else "",
            skipped=self.skipped_checkpoints,
            killed=self.killed,
            observed=self.is_observed or self.resumed_step is not None,
            time_ms=self.start.time_ms,
            dropped_copy=dropped_copy_text(self.dropped_copy) if self.dropped_copy else "",
        )

    def _killed_text(self) -> str:
        """Return the ranks killed in a stop with notice; after a failure it is usual that the rest is killed."""
        return killed_text(self.killed, self.grace_ms) if self.outcome == "stopped" else ""


class JobHistory:
    """The attempts of one job, folded from its own events.

    after: seq of the newest event added, so that the events of a job that runs for weeks are read once.
    """

    def __init__(self, job: str, earlier_gang: Gang | None = None) -> None:
        """Begin without events, but for the running attempt of a gang from before the first event."""
        self.after = 0
        self._job = job
        self._attempts: dict[int, _Attempt] = {}
        self._started_ms: list[int] = []
        checkpoints = Checkpoints() if earlier_gang is None else earlier_gang.checkpoints
        self._newest_step = checkpoints.newest_step
        self._newest_job = checkpoints.resumed_job if checkpoints.newest_step == checkpoints.resumed_step else ""
        """The job that saved the newest checkpoint, empty for this one."""
        if earlier_gang is not None and earlier_gang.attempt.start is not None:
            self._attempts[earlier_gang.attempt.generation] = _running_attempt(earlier_gang, earlier_gang.attempt.start)
            self._started_ms.append(earlier_gang.attempt.began_ms)

    def add(self, rows: Iterable[Stamped]) -> None:
        """Add events of the job that follow those added before."""
        for row in rows:
            self.after = row.seq
            event = row.event
            if isinstance(event, Checkpointed | Resumed):
                self._newest_step = event.step
                self._newest_job = event.source if isinstance(event, Resumed) else ""
            if isinstance(event, Decided):
                self._add_decisions(event, row.at_ms)
            elif isinstance(event, Failed) and event.cause in UNADMITTED:
                self._drop_attempt(event.generation)
            elif isinstance(event, GenerationFact) and event.generation in self._attempts:
                self._attempts[event.generation].add(event, row.at_ms)

    def attempts(self, ended_ms: int | None) -> tuple[AttemptView, ...]:
        """Return the attempts, oldest first.

        ended_ms: when the job ended, if it has. No attempt outlives the next one, or the job.
        """
        over_ms = [*self._started_ms[1:], ended_ms]
        return tuple(
            attempt.view(latest_end) for attempt, latest_end in zip(self._attempts.values(), over_ms, strict=False)
        )

    def _drop_attempt(self, generation: int) -> None:
        """Drop the newest attempt: none of its pods was ever created."""
        if self._attempts.pop(generation, None) is not None:
            self._started_ms.pop()

    def _add_decisions(self, event: Decided, at_ms: int) -> None:
        for decision in event.plan.decisions:
            if isinstance(decision, Start) and decision.gang == self._job:
                nodes = decision.nodes
                if decision.rollback and decision.rollback.generation == decision.generation:
                    self._newest_step, self._newest_job = None, ""  # its launcher reports to which one it returns
                attempt = _Attempt(
                    decision,
                    self._newest_step,
                    self._newest_job,
                    not_started=[*nodes],
                    remaining=[*nodes],
                    unfinished=[*nodes],
                )
                self._attempts[decision.generation] = attempt
                self._started_ms.append(at_ms)
            elif isinstance(decision, Stop) and decision.gang == self._job and decision.generation in self._attempts:
                self._attempts[decision.generation].stop(decision)


def _running_attempt(gang: Gang, start: Start) -> _Attempt:
    """Return the generation that holds nodes, as its gang has it.

    When a later generation than the first started is known only while it runs.
    """
    attempt = _Attempt(
        start,
        gang.checkpoints.resumed_step,
        gang.checkpoints.resumed_job,
        skipped_checkpoints=skipped_texts(gang.checkpoints.flawed),
        not_started=[node for node in start.nodes if node not in gang.attempt.started],
        remaining=list(gang.attempt.left),
        unfinished=[node for node in start.nodes if node not in gang.attempt.finished],
        killed=gang.attempt.killed,
        grace_ms=gang.attempt.grace_ms,
        is_observed=gang.is_observed,
    )
    if gang.attempt.generation == 1:
        attempt.started_ms = gang.first_started_ms
    elif gang.state is GangState.RUNNING:
        attempt.started_ms = gang.since_ms
    if gang.state is GangState.FINISHING:
        attempt.settle("finished", "")
    cause, number = gang.attempt.stop_sent, gang.attempt.generation
    if cause in _DECIDED_STOPS:  # a failure beside it is mostly its consequence
        attempt.stop(Stop(gang=gang.id, generation=number, cause=cause, node=gang.attempt.vacates))
    if gang.attempt.failure is not None:
        attempt.fail(gang.attempt.failure)
    return attempt


class JobHistories:
    """A cache of the histories of the jobs queried last, each updated when it is read."""

    def __init__(self, log: EventLog) -> None:
        """Begin empty."""
        self._log = log
        self._histories: dict[str, JobHistory] = {}
        self._lock = threading.Lock()

    def attempts(self, job: str, *, ended_ms: int | None) -> tuple[AttemptView, ...]:
        """Return the attempts of a job up to now."""
        with self._lock:
            history = self._histories.pop(job, None) or JobHistory(job, self._log.gang_before_log(job))
            self._histories[job] = history
            if len(self._histories) > MAX_HISTORIES:
                del self._histories[next(iter(self._histories))]
            while rows := self._log.rows(history.after, job):
                history.add(rows)
            return history.attempts(ended_ms)
