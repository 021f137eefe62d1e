"""The attempts of a job as the log records them: their devices, and from when to when all their ranks ran."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ganger.core.state.gang import Gang
from ganger.model import event as e
from ganger.model.decision import Start, Stop
from ganger.model.job import GangState

KINDS: Final = ("decided", "started", "checkpointed", "resumed", "failed", "finished", "done", "cleared")
"""Kinds of events that this follows from."""


@dataclass(slots=True, kw_only=True)
class LoggedAttempt:
    """An attempt of a job. Times are Unix ms.

    running_ms: when all its nodes had started; None: they have not.
    until_ms: when it began to end; None: it goes on.
    saves_ms: when it saved a checkpoint or resumed from one.
    """

    start: Start
    running_ms: int | None = None
    until_ms: int | None = None
    saves_ms: list[int] = field(default_factory=list)
    _waits_for: set[str] = field(default_factory=set)
    _unfinished: set[str] = field(default_factory=set)

    def add(self, event: e.GenerationFact, at_ms: int) -> None:
        """Add an event of this generation."""
        match event:
            case e.Started(nodes=nodes):
                self._waits_for -= {*nodes}
                if not self._waits_for and self.running_ms is None:
                    self.running_ms = at_ms
            case e.Checkpointed() | e.Resumed():
                self.saves_ms.append(at_ms)
            case e.Finished(nodes=nodes):
                self._unfinished -= {*nodes}
                if not self._unfinished:
                    self.end(at_ms)
            case e.Failed() | e.Done() | e.Cleared():
                self.end(at_ms)
            case _:
                pass

    def end(self, at_ms: int) -> None:
        """Note that it ends; its first end counts."""
        self.until_ms = at_ms if self.until_ms is None else self.until_ms


def logged_attempts(job: str, rows: Iterable[e.Stamped], live: Gang | None) -> list[LoggedAttempt]:
    """Return the attempts of a job that ran, oldest first.

    rows: its events of these kinds, of which the oldest may be removed from the log.
    live: its gang, if it has not ended: its attempt may be older than its events.
    """
    attempts: dict[int, LoggedAttempt] = {}
    if live is not None and live.attempt.start is not None and live.state is GangState.RUNNING:
        start = live.attempt.start
        attempts[start.generation] = LoggedAttempt(
            start=start, running_ms=live.since_ms, _unfinished={*start.nodes} - {*live.attempt.finished}
        )
    for row in rows:
        if isinstance(row.event, e.Decided):
            _add_decisions(attempts, job, row.event, row.at_ms)
        elif isinstance(row.event, e.GenerationFact) and row.event.generation in attempts:
            attempts[row.event.generation].add(row.event, row.at_ms)
    return [attempts[generation] for generation in sorted(attempts) if attempts[generation].running_ms is not None]


def _add_decisions(attempts: dict[int, LoggedAttempt], job: str, event: e.Decided, at_ms: int) -> None:
    for decision in event.plan.decisions:
        if isinstance(decision, Start) and decision.gang == job:
            for earlier in attempts.values():
                if earlier.start.generation < decision.generation:
                    earlier.end(at_ms)
            nodes = decision.nodes
            attempts[decision.generation] = LoggedAttempt(start=decision, _waits_for={*nodes}, _unfinished={*nodes})
        elif isinstance(decision, Stop) and decision.gang == job and decision.generation in attempts:
            attempts[decision.generation].end(at_ms)
