"""A job's attempts, read out of its events. Called by `engine.service`."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ganger.engine.sentences import CAUSES, ending
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Checkpointed, Cleared, Decided, Event, Failed, Finished, Stamped, Started
from ganger.model.view import AttemptView

_MEANT = (Cause.USER, Cause.TIME_LIMIT, Cause.QUEUE_TIME, Cause.PREEMPTED)
"""Causes of a stop that was decided, rather than something that went wrong."""


@dataclass(slots=True)
class _Attempt:
    start: Start
    resumed_step: int | None
    waited: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = "running"
    sentence: str = ""

    def take(self, event: Event, at_ms: int) -> None:
        """One event of this generation."""
        match event:
            case Started(nodes=nodes):
                self.waited = [node for node in self.waited if node not in nodes]
                if not self.waited and self.started_ms is None:
                    self.started_ms = at_ms
            case Finished(nodes=nodes):
                self.unfinished = [node for node in self.unfinished if node not in nodes]
                if not self.unfinished:
                    self.settle("finished", "")
            case Failed():
                self.settle("failed", ending(event))
            case Cleared(nodes=nodes):
                self.left = [node for node in self.left if node not in nodes]
                if not self.left and self.ended_ms is None:
                    self.ended_ms = at_ms

    def settle(self, outcome: str, sentence: str) -> None:
        """How it ended: the first word of it counts, what follows is its wake."""
        if self.outcome == "running":
            self.outcome, self.sentence = outcome, sentence

    def view(self) -> AttemptView:
        """As faces show it."""
        return AttemptView(
            generation=self.start.generation,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            outcome=self.outcome,
            nodes=tuple(share.node for share in self.start.shares),
            sentence=self.sentence,
            resumed_step=self.resumed_step,
        )


def attempts(rows: Iterable[Stamped], job: str, *, resumes: bool, ended_ms: int | None) -> tuple[AttemptView, ...]:
    """The attempts of `job` from its own events, oldest first. `resumes`: it starts from its newest checkpoint;
    `ended_ms`: when the job ended, if it has."""
    found: dict[int, _Attempt] = {}
    newest_step: int | None = None
    for row in rows:
        event = row.event
        if isinstance(event, Checkpointed):
            newest_step = event.step
        if isinstance(event, Decided):
            for decision in event.plan.decisions:
                if isinstance(decision, Start) and decision.gang == job:
                    _close(found, row.at_ms)
                    found[decision.generation] = _begun(decision, newest_step if resumes else None)
                elif isinstance(decision, Stop) and decision.gang == job and decision.generation in found:
                    meant = decision.cause in _MEANT
                    found[decision.generation].settle("stopped" if meant else "failed", CAUSES[decision.cause])
        elif (attempt := found.get(getattr(event, "generation", 0))) is not None:
            attempt.take(event, row.at_ms)
    if ended_ms is not None:
        _close(found, ended_ms)
    return tuple(attempt.view() for attempt in found.values())


def _begun(start: Start, resumed_step: int | None) -> _Attempt:
    nodes = [share.node for share in start.shares]
    return _Attempt(start, resumed_step, waited=list(nodes), left=list(nodes), unfinished=list(nodes))


def _close(found: dict[int, _Attempt], at_ms: int) -> None:
    """No attempt outlives the next one, or the job: a lost node never said that it was cleared."""
    for attempt in found.values():
        if attempt.ended_ms is None:
            attempt.ended_ms = at_ms
            attempt.settle("failed", CAUSES[Cause.NODE_LOST])
