"""What ran when, from the rows of a log as they come: for the scorecard. Called by `simulation.run`.

A job runs from the moment at which it is given its nodes until nothing of it is left there, as its ledger has it. It
has ended well when all its nodes said so; what else it may have ended by is the cause of its last stop. A node was lost
before the log has it, if losses take time to be known: since when is for who simulates to say. Switches are the domains
of the innermost level that nodes are in.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start, Stop
from ganger.simulation.metrics.run_history import Attempt, Interval

GOES_ON: Final = (Cause.PREEMPTED, Cause.SUSPENDED, Cause.NODE_LOST, Cause.DRAINED, Cause.NODE_PREEMPTED)
"""Causes after which a job waits to be started again."""


@dataclass(slots=True)
class Life:
    """One job. attempts: those that are over, in order; began_ms: since when it runs, None where it does not; nodes:
    how many it has then, and on: which those were; left: nodes where it still is; finished: how many of its nodes said
    that it ended well; kept_ms: its work in the newest checkpoint, and first_ms: in that which it began from; stopped:
    the cause of its last stop; failed_ms, lost_ms, moved, switches: as of an `Attempt`."""

    submitted_ms: int
    attempts: list[Attempt] = field(default_factory=list)
    began_ms: int | None = None
    nodes: int = 0
    on: frozenset[str] = frozenset()
    left: dict[str, None] = field(default_factory=dict)
    finished: int = 0
    ended_ms: int | None = None
    kept_ms: int = 0
    first_ms: int = 0
    stopped: Cause | None = None
    stopped_ms: int | None = None
    failed_ms: int | None = None
    lost_ms: int | None = None
    moved: bool = False
    switches: int = 0

    @property
    def running(self) -> tuple[Interval, ...]:
        """From when to when it ran."""
        return tuple((each.began_ms, each.ended_ms) for each in self.attempts if each.began_ms < each.ended_ms)

    @property
    def gone_ms(self) -> int | None:
        """When it was stopped for good and left its nodes, if it was and did not end well."""
        if self.ended_ms is not None or self.began_ms is not None or self.stopped_ms is None:
            return None
        if self.stopped in GOES_ON:
            return None
        return max(self.stopped_ms, self.attempts[-1].ended_ms if self.attempts else 0)

    def attempt(self, began_ms: int, until_ms: int) -> Attempt:
        """The one that it is in, as far as it has come."""
        return Attempt(
            began_ms=began_ms,
            ended_ms=until_ms,
            nodes=self.nodes,
            first_ms=self.first_ms,
            kept_ms=None if self.finished == self.nodes else self.kept_ms,
            stopped_ms=self.stopped_ms,
            failed_ms=self.failed_ms,
            lost_ms=self.lost_ms,
            preempted=self.stopped is Cause.PREEMPTED,
            moved=self.moved,
            switches=self.switches,
        )


class Histories:
    """Folds rows. lives: every job that was submitted, of an array every element, by id; now_ms: the time of the last
    row; starts, preemptions: how many there were."""

    def __init__(self, failed_ms: Mapping[tuple[str, int], int] | None = None) -> None:
        """Nothing has happened. `failed_ms`: when a node was lost, by its name and when that was known; without it, it
        was known at once."""
        self.lives: dict[str, Life] = {}
        self.now_ms = self.starts = self.preemptions = 0
        self._failed_ms = failed_ms or {}
        self._on: dict[str, dict[str, None]] = {}
        self._switches: dict[str, str] = {}
        self._elements: dict[str, list[str]] = {}
        self._takes: dict[type[Any], Callable[[Any], None]] = {
            e.Submitted: self._submitted,
            e.Decided: self._decided,
            e.Checkpointed: self._checkpointed,
            e.Finished: self._finished,
            e.Cleared: self._cleared,
            e.NodeLost: self._lost,
            e.NodesListed: self._listed,
        }

    def know(self, nodes: Iterable[Node], levels: tuple[str, ...]) -> None:
        """Where these nodes are on the network."""
        for node in nodes:
            is_known = len(node.domains) == len(levels) and node.domains[-1]
            self._switches[node.name] = "/".join(node.domains) if is_known else ""

    def take(self, row: e.Stamped) -> None:
        """The next row."""
        self.now_ms = row.at_ms
        takes = self._takes.get(type(row.event))
        if takes is not None:
            takes(row.event)

    def _submitted(self, event: e.Submitted) -> None:
        array = event.job.spec.array
        names = [event.job.id]
        if array is not None:
            names = self._elements[event.job.id] = [event.job.element(index).id for index in array.indices]
        self.lives.update((name, Life(self.now_ms)) for name in names)

    def _decided(self, event: e.Decided) -> None:
        for decision in event.plan.decisions:
            if isinstance(decision, Start):
                self._start(decision)
            elif isinstance(decision, Stop):
                self._stop(decision)

    def _start(self, start: Start) -> None:
        life = self.lives[start.gang]
        life.left, on = dict.fromkeys(start.nodes), frozenset(start.nodes)
        life.moved, life.on, life.switches = bool(life.attempts) and on != life.on, on, self._crossed(on)
        life.began_ms, life.nodes, life.finished, life.first_ms = self.now_ms, len(life.left), 0, life.kept_ms
        life.stopped = life.stopped_ms = life.failed_ms = life.lost_ms = None
        self.starts += 1
        for node in life.left:
            self._on.setdefault(node, {})[start.gang] = None

    def _crossed(self, nodes: frozenset[str]) -> int:
        """In how many domains these are, 0 where one is in none that is known."""
        if len(nodes) < 2:
            return 0
        switches = {self._switches.get(node, "") for node in nodes}
        return 0 if "" in switches else len(switches)

    def _checkpointed(self, event: e.Checkpointed) -> None:
        life = self.lives[event.gang]
        life.kept_ms = max(life.kept_ms, event.step)

    def _stop(self, stop: Stop) -> None:
        """Of an array its head stands for the elements that never began."""
        for name in self._elements.get(stop.gang, [stop.gang]):
            life = self.lives[name]
            if name == stop.gang or not (life.nodes or life.stopped):
                life.stopped, life.stopped_ms = stop.cause, self.now_ms
        self.preemptions += stop.cause is Cause.PREEMPTED

    def _finished(self, event: e.Finished) -> None:
        self.lives[event.gang].finished += len(event.nodes)

    def _cleared(self, event: e.Cleared) -> None:
        for node in event.nodes:
            self._leave(event.gang, node)

    def _lost(self, event: e.NodeLost) -> None:
        self._gone(event.node, self._failed_ms.get((event.node, self.now_ms), self.now_ms))

    def _listed(self, event: e.NodesListed) -> None:
        """A node that is not listed is lost too."""
        self.know(event.nodes, event.levels)
        there = {node.name for node in event.nodes}
        for node in tuple(self._on):
            if node not in there:
                self._gone(node, self.now_ms)

    def _gone(self, node: str, failed_ms: int) -> None:
        for gang in tuple(self._on.get(node, ())):
            life = self.lives[gang]
            if node in life.left and life.began_ms is not None:
                before_ms = failed_ms if life.failed_ms is None else min(failed_ms, life.failed_ms)
                life.failed_ms, life.lost_ms = max(before_ms, life.began_ms), self.now_ms
            self._leave(gang, node)

    def _leave(self, gang: str, node: str) -> None:
        """Nothing of it is there any more; with the last node it runs no more."""
        life = self.lives[gang]
        if node not in life.left:
            return
        del life.left[node], self._on[node][gang]
        if life.left or life.began_ms is None:
            return
        life.attempts.append(life.attempt(life.began_ms, self.now_ms))
        life.began_ms = None
        if life.finished == life.nodes:
            life.ended_ms, life.on = self.now_ms, frozenset()
