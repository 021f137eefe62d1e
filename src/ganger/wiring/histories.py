"""What ran when, from the rows of a log as they come: for the scorecard. Called by `wiring.simulate`.

A job runs from the moment at which it is given its nodes until nothing of it is left there, as its ledger has it. It
has ended well when all its nodes said so; what else it may have ended by is the cause of its last stop.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ganger.backends.simulator.scorecard import Interval
from ganger.model import event as e
from ganger.model.decision import Cause, Start, Stop


@dataclass(slots=True)
class Life:
    """One job. running: from when to when, in order; began_ms: since when it runs, None where it does not; left: nodes
    where it still is; finished: how many of its nodes said that it ended well; stopped: the cause of its last stop."""

    submitted_ms: int
    running: list[Interval] = field(default_factory=list)
    began_ms: int | None = None
    nodes: int = 0
    left: dict[str, None] = field(default_factory=dict)
    finished: int = 0
    ended_ms: int | None = None
    stopped: Cause | None = None


class Histories:
    """Folds rows. lives: every job that was submitted, by id; now_ms: the time of the last row; starts, preemptions:
    how many there were."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.lives: dict[str, Life] = {}
        self.now_ms = self.starts = self.preemptions = 0
        self._on: dict[str, dict[str, None]] = {}
        self._takes: dict[type[Any], Callable[[Any], None]] = {
            e.Submitted: self._submitted,
            e.Decided: self._decided,
            e.Finished: self._finished,
            e.Cleared: self._cleared,
            e.NodeLost: self._lost,
        }

    def take(self, row: e.Stamped) -> None:
        """The next row."""
        self.now_ms = row.at_ms
        takes = self._takes.get(type(row.event))
        if takes is not None:
            takes(row.event)

    def _submitted(self, event: e.Submitted) -> None:
        self.lives[event.job.id] = Life(self.now_ms)

    def _decided(self, event: e.Decided) -> None:
        for decision in event.plan.decisions:
            if isinstance(decision, Start):
                self._start(decision)
            elif isinstance(decision, Stop):
                self.lives[decision.gang].stopped = decision.cause
                self.preemptions += decision.cause is Cause.PREEMPTED

    def _start(self, start: Start) -> None:
        life = self.lives[start.gang]
        life.left = dict.fromkeys(start.nodes)
        life.began_ms, life.nodes, life.finished, life.stopped = self.now_ms, len(life.left), 0, None
        self.starts += 1
        for node in life.left:
            self._on.setdefault(node, {})[start.gang] = None

    def _finished(self, event: e.Finished) -> None:
        self.lives[event.gang].finished += len(event.nodes)

    def _cleared(self, event: e.Cleared) -> None:
        for node in event.nodes:
            self._leave(event.gang, node)

    def _lost(self, event: e.NodeLost) -> None:
        for gang in tuple(self._on.get(event.node, ())):
            self._leave(gang, event.node)

    def _leave(self, gang: str, node: str) -> None:
        """Nothing of it is there any more; with the last node it runs no more."""
        life = self.lives[gang]
        if node not in life.left:
            return
        del life.left[node], self._on[node][gang]
        if life.left or life.began_ms is None:
            return
        if self.now_ms > life.began_ms:
            life.running.append((life.began_ms, self.now_ms))
        life.began_ms = None
        if life.finished == life.nodes:
            life.ended_ms = self.now_ms
