"""A recorder that folds the rows of a log into the history of each job.

A job runs from the time at which its nodes are allocated until none of them has processes of it. It has ended well when
all its nodes reported so; otherwise the cause of its last stop says how it ended. If the loss of a node takes time to
become known, the row comes later than the failure, and the caller says when that was. Switches are the domains of the
innermost topology level.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start, Stop
from ganger.simulation.metrics.run_history import Attempt, Interval, JobHistory

RESUMED_AFTER: Final = (
    Cause.PREEMPTED,
    Cause.SUSPENDED,
    Cause.IDLE_SUSPEND,
    Cause.NODE_LOST,
    Cause.DRAINED,
    Cause.NODE_PREEMPTED,
    Cause.EVICTED,
    Cause.RESIZED,
    Cause.MOVED,
    Cause.ROLLED_BACK,
)
"""Causes of a stop after which a job waits to be started again."""


@dataclass(slots=True)
class JobRecord:
    """The record of one job.

    attempts: those that are over, in order
    began_ms: start of the current attempt; None if there is none
    node_names: nodes of the current or the last attempt
    left: nodes where it still has processes
    finished: number of nodes that reported a good end
    kept_ms: work in the newest checkpoint
    first_ms: work in the checkpoint that the current attempt began from
    stop_cause: cause of the last stop
    min_nodes: fewest nodes of an elastic job; 0: it is rigid
    failed_ms, lost_ms, moved, switches, gpu_types: as in `Attempt`
    """

    submitted_ms: int
    attempts: list[Attempt] = field(default_factory=list)
    began_ms: int | None = None
    node_names: frozenset[str] = frozenset()
    nodes: int = 0
    min_nodes: int = 0
    left: dict[str, None] = field(default_factory=dict)
    finished: int = 0
    ended_ms: int | None = None
    kept_ms: int = 0
    first_ms: int = 0
    stop_cause: Cause | None = None
    stopped_ms: int | None = None
    failed_ms: int | None = None
    lost_ms: int | None = None
    moved: bool = False
    switches: int = 0
    gpu_types: tuple[str, ...] = ()

    @property
    def gone_ms(self) -> int | None:
        """Time at which the job was stopped for good and had left its nodes; None if it was not, or ended well."""
        if self.ended_ms is not None or self.began_ms is not None or self.stopped_ms is None:
            return None
        if self.stop_cause in RESUMED_AFTER:
            return None
        return max(self.stopped_ms, self.attempts[-1].ended_ms if self.attempts else 0)

    def history(self, tenant: str, gpu_milli: int, duration_ms: int, now_ms: int) -> JobHistory:
        """Return the history of the job; one that still runs has run until `now_ms`."""
        attempts = tuple(self.attempts)
        if self.began_ms is not None:
            attempts += (self.attempt(self.began_ms, now_ms),)
        return JobHistory(
            tenant=tenant,
            gpu_milli=gpu_milli,
            submitted_ms=self.submitted_ms,
            duration_ms=duration_ms,
            running=running_intervals(attempts),
            ended_ms=self.ended_ms,
            gone_ms=self.gone_ms,
            attempts=attempts,
        )

    def attempt(self, began_ms: int, until_ms: int) -> Attempt:
        """Return the current attempt as recorded until `until_ms`."""
        return Attempt(
            began_ms=began_ms,
            ended_ms=until_ms,
            nodes=self.nodes,
            first_ms=self.first_ms,
            kept_ms=None if self.finished == self.nodes else self.kept_ms,
            stopped_ms=self.stopped_ms,
            failed_ms=self.failed_ms,
            lost_ms=self.lost_ms,
            preempted=self.stop_cause is Cause.PREEMPTED,
            moved=self.moved,
            switches=self.switches,
            gpu_types=self.gpu_types,
            size=Fraction(self.nodes, self.min_nodes) if self.min_nodes else 1,
        )


class HistoryRecorder:
    """A reader of log rows.

    jobs: records by id; of an array those of its elements
    unended: ids of the jobs that have neither ended nor been stopped for good
    now_ms: time of the last row
    starts, preemptions: numbers of decisions
    """

    def __init__(self, failed_ms: Mapping[tuple[str, int], int] | None = None) -> None:
        """Begin with an empty log.

        failed_ms: when a node failed, by its name and the time at which its loss became known; without an entry the
            loss was known at once
        """
        self.jobs: dict[str, JobRecord] = {}
        self.unended: set[str] = set()
        self.now_ms = self.starts = self.preemptions = 0
        self._failed_ms = failed_ms or {}
        self._gangs_on: dict[str, dict[str, None]] = {}
        self._switches: dict[str, str] = {}
        self._gpu_types: dict[str, str] = {}
        self._shared_types: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Equal tuples as one, since there is one for each attempt."""
        self._elements: dict[str, list[str]] = {}
        self._folds: dict[type[Any], Callable[[Any], None]] = {
            e.Submitted: self._submitted,
            e.Decided: self._decided,
            e.Checkpointed: self._checkpointed,
            e.Finished: self._finished,
            e.Cleared: self._cleared,
            e.NodeLost: self._node_lost,
            e.NodesListed: self._nodes_listed,
        }

    def set_topology(self, nodes: Iterable[Node], levels: tuple[str, ...]) -> None:
        """Record the switch and the type of GPU of each node."""
        for node in nodes:
            self._gpu_types[node.name] = node.gpu_type
            is_known = len(node.domains) == len(levels) and node.domains[-1]
            self._switches[node.name] = "/".join(node.domains) if is_known else ""

    def fold(self, row: e.Stamped) -> None:
        """Fold the next row."""
        self.now_ms = row.at_ms
        fold = self._folds.get(type(row.event))
        if fold is not None:
            fold(row.event)

    def _submitted(self, event: e.Submitted) -> None:
        array = event.job.spec.array
        names = [event.job.id]
        if array is not None:
            names = self._elements[event.job.id] = [event.job.element(index).id for index in array.indices]
        min_nodes = event.job.spec.nodes if event.job.spec.max_nodes else 0
        self.jobs.update((name, JobRecord(self.now_ms, min_nodes=min_nodes)) for name in names)
        self.unended.update(names)

    def _decided(self, event: e.Decided) -> None:
        for decision in event.plan.decisions:
            if isinstance(decision, Start):
                self._start(decision)
            elif isinstance(decision, Stop):
                self._stop(decision)

    def _start(self, start: Start) -> None:
        job = self.jobs[start.gang]
        node_names = frozenset(start.nodes)
        stays = node_names <= job.node_names or node_names >= job.node_names  # a resize need not be a move
        job.moved = bool(job.attempts) and not stays
        job.node_names, job.switches = node_names, self._count_switches(node_names)
        gpu_types = tuple(sorted({self._gpu_types.get(node, "") for node in node_names}))
        job.gpu_types = self._shared_types.setdefault(gpu_types, gpu_types)
        job.left = dict.fromkeys(start.nodes)
        job.began_ms, job.nodes, job.finished, job.first_ms = self.now_ms, len(job.left), 0, job.kept_ms
        job.stop_cause = job.stopped_ms = job.failed_ms = job.lost_ms = None
        self.starts += 1
        self.unended.add(start.gang)
        for node in job.left:
            self._gangs_on.setdefault(node, {})[start.gang] = None

    def _count_switches(self, nodes: frozenset[str]) -> int:
        """Return the number of switches that several nodes are on; 0 if the switch of one is unknown."""
        if len(nodes) < 2:
            return 0
        switches = {self._switches.get(node, "") for node in nodes}
        return 0 if "" in switches else len(switches)

    def _checkpointed(self, event: e.Checkpointed) -> None:
        job = self.jobs[event.gang]
        job.kept_ms = max(job.kept_ms, event.step)

    def _stop(self, stop: Stop) -> None:
        """Record a stop; the stop of an array counts for its elements that never began."""
        for name in self._elements.get(stop.gang, [stop.gang]):
            job = self.jobs[name]
            if name == stop.gang or not (job.nodes or job.stop_cause):
                job.stop_cause, job.stopped_ms = stop.cause, self.now_ms
                self._note_end(name)
        self.preemptions += stop.cause is Cause.PREEMPTED

    def _finished(self, event: e.Finished) -> None:
        self.jobs[event.gang].finished += len(event.nodes)

    def _cleared(self, event: e.Cleared) -> None:
        for node in event.nodes:
            self._leave(event.gang, node)

    def _node_lost(self, event: e.NodeLost) -> None:
        self._lose(event.node, self._failed_ms.get((event.node, self.now_ms), self.now_ms))

    def _nodes_listed(self, event: e.NodesListed) -> None:
        """Record the topology; a node that is missing from the list is lost."""
        self.set_topology(event.nodes, event.levels)
        listed = {node.name for node in event.nodes}
        for node in tuple(self._gangs_on):
            if node not in listed:
                self._lose(node, self.now_ms)

    def _lose(self, node: str, failed_ms: int) -> None:
        for gang in tuple(self._gangs_on.get(node, ())):
            job = self.jobs[gang]
            if node in job.left and job.began_ms is not None:
                first_failed_ms = failed_ms if job.failed_ms is None else min(failed_ms, job.failed_ms)
                job.failed_ms, job.lost_ms = max(first_failed_ms, job.began_ms), self.now_ms
            self._leave(gang, node)

    def _leave(self, gang: str, node: str) -> None:
        """Record that a gang has no processes on a node any more; with its last node the attempt is over."""
        job = self.jobs[gang]
        if node not in job.left:
            return
        del job.left[node], self._gangs_on[node][gang]
        if job.left or job.began_ms is None:
            return
        job.attempts.append(job.attempt(job.began_ms, self.now_ms))
        job.began_ms = None
        if job.finished == job.nodes:
            job.ended_ms, job.node_names = self.now_ms, frozenset()
        self._note_end(gang)

    def _note_end(self, gang: str) -> None:
        job = self.jobs[gang]
        if job.ended_ms is not None or job.gone_ms is not None:
            self.unended.discard(gang)


def running_intervals(attempts: Iterable[Attempt]) -> tuple[Interval, ...]:
    """Return the intervals in which a job ran, without attempts that ended at once."""
    return tuple((attempt.began_ms, attempt.ended_ms) for attempt in attempts if attempt.began_ms < attempt.ended_ms)
