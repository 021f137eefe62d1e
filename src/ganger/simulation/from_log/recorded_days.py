"""The days of a cluster as its server's own log records them, for a simulation: requests, nodes, and how jobs ended.

Called by `simulation.from_log.replay_days` and by the errand `sim`.

Jobs are as they were submitted, as far as the scheduler looks at them: commands, variables and directories stay behind,
and values of secrets are in no log. What people asked for comes when they asked for it, and nodes are there when they
were; how long jobs take is `simulation.from_log.job_work`'s.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import Any, Final

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.log_snapshot import reading
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import GangState, Job, Origin, array_of
from ganger.model.policy import PolicyDocument, document_of
from ganger.model.units import format_duration
from ganger.simulation.from_log.job_work import Work
from ganger.simulation.history_recorder import Histories, Life
from ganger.simulation.metrics.run_history import History
from ganger.simulation.traces.trace import Finding, Findings, Flaw, NodeFault

_ASKED: Final = (
    *(e.StopRequested, e.SuspendRequested, e.ResumeRequested, e.PriorityChanged),
    *(e.NodeCordoned, e.NodeUncordoned, e.NodeDrained, e.NodePreempted, e.MaintenanceSet, e.MaintenanceCleared),
)
_POLICY: Final = (e.PolicySet, e.QueueSet, e.QueueDeleted)
_BY_ITSELF: Final = (Cause.TIME_LIMIT, Cause.QUEUE_TIME)
"""Ends that come again without anybody's asking."""
RUN: Final = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Some days of a cluster. Times are ms since `begin_ms`, but those of `recorded`, which are Unix ms as in the log.

    asked: what people asked for, submissions too, in order of time; acts: how each job behaves, by id; document: the
    policy in force at the end; recorded: what became of each job, by id; unended: of those that came to no good end,
    how many, by why; rows: jobs that there were, each element of an array one; findings: by number of event; seqs:
    the event of each job's submission.
    """

    place: str
    begin_ms: int
    end_ms: int
    nodes: tuple[Node, ...]
    levels: tuple[str, ...]
    document: PolicyDocument
    asked: tuple[tuple[int, e.Event], ...]
    acts: dict[str, Behaviour]
    faults: tuple[NodeFault, ...]
    recorded: dict[str, History]
    lives: tuple[Life, ...]
    starts: int
    preemptions: int
    findings: tuple[Finding, ...]
    rows: int
    seqs: dict[str, int]


def read_past(path: Path, *readers: Callable[[e.Stamped], None], since_ms: int | None = None) -> Past:
    """The days of the log at `path`, which may be in use; `since_ms`: of these the last, so long before its newest
    event. Refused: it is none, it is damaged, or nothing is in it. `readers` are told of every row, as far as it is
    about jobs of these days."""
    with reading(path) as log:
        past = past_of(log, str(path), *readers, since_ms=since_ms)
    if not past.recorded:
        then, instead = "while it was kept", "ganger ls"
        if since_ms is not None:
            then, instead = f"in its last {format_duration(since_ms)}", "name more of it: --since 30d"
        raise RequestError("log_failed", f"{path} has no job that was submitted {then}", instead, 500)
    return past


def past_of(log: EventLog, place: str, *readers: Callable[[e.Stamped], None], since_ms: int | None = None) -> Past:
    """The same of a log that is open."""
    last, before = log.last_seq(), log.earliest() - 1
    if since_ms is not None:
        before = max(before, log.before(log.last_ms() - since_ms))
    state = log.restore(before)
    recording = _Fold(state, *readers)
    for row in log.each(state.seq, last):
        why = row.event.why if isinstance(row.event, e.Unreadable) else refusal(state, row.event)
        if why is not None:
            raise RequestError("corrupt_log", f"event {row.seq} of {place} was set aside: {why}", "ganger doctor", 500)
        recording.take(row)
    return recording.past(place)


def told_of(job: Job) -> Job:
    """The job, without all that the scheduler does not look at."""
    roles = {name: replace(role, run=RUN if role.run else None, env={}) for name, role in job.spec.roles.items()}
    spec = replace(
        job.spec,
        roles=roles,
        run=RUN if job.spec.run else (),
        setup=None,
        env={},
        secrets=(),
        params={},
        code=None,
        volumes=(),
        labels={},
        notes=None,
    )
    return replace(job, spec=spec, origin=Origin(directory="/"), request_id="", request_digest="")


def history_of(job: Job, life: Life, work_ms: int | None, ended_ms: int | None, now_ms: int) -> History:
    """Return the course of a job, for the scorecard; one that still runs has run until `now_ms`."""
    still = ((life.began_ms, now_ms),) if life.began_ms is not None and life.began_ms < now_ms else ()
    last = (life.attempt(life.began_ms, now_ms),) if life.began_ms is not None else ()
    shape = job.spec.shape
    gone_ms = life.gone_ms if life.ended_ms is None else life.ended_ms  # a stopped job may still end well
    return History(
        tenant=job.user,
        gpu_milli=sum(part.nodes * shape.gpu_milli_of(at) for at, part in enumerate(shape.parts)),
        submitted_ms=life.submitted_ms,
        duration_ms=work_ms or 0,
        running=(*life.running, *still),
        ended_ms=ended_ms,
        gone_ms=gone_ms if ended_ms is None else None,
        attempts=(*life.attempts, *last),
    )


@dataclass(slots=True)
class _Nodes:
    """The nodes as last described, and the times at which each was away."""

    known: dict[str, Node]
    away: dict[str, int] = field(default_factory=dict)
    faults: list[NodeFault] = field(default_factory=list)

    def listed(self, nodes: Iterable[Node], begin_ms: int, at_ms: int) -> None:
        """Whoever is not listed is away; whoever is listed for the first time was away until now."""
        there = {node.name: node for node in nodes}
        for name in there:
            if name not in self.known and at_ms > begin_ms:
                self.away[name] = begin_ms
            self.back(name, begin_ms, at_ms)
        for name in self.known:
            if name not in there:
                self.away.setdefault(name, at_ms)
        self.known |= there

    def back(self, name: str, begin_ms: int, at_ms: int) -> None:
        """It is there again."""
        since_ms = self.away.pop(name, None)
        if since_ms is not None:
            self.faults.append(_fault(name, since_ms - begin_ms, at_ms - begin_ms))


class _Fold:
    """The rows of a log, one after the other, on top of the state before them."""

    def __init__(self, state: State, *readers: Callable[[e.Stamped], None]) -> None:
        self._state = state
        self._nodes = _Nodes({node.name: node for node in state.nodes.nodes})
        self._begin_ms = state.at_ms if self._nodes.known else None
        self._jobs: dict[str, Job] = {}
        self._works: dict[str, Work] = {}
        self._lives = Histories()
        self._lives.know(state.nodes.nodes, tuple(state.nodes.topology.levels))
        self._readers = (self._lives.take, *readers)
        self._asked: list[tuple[int, e.Event]] = []
        self._ids: dict[str, None] = {}
        self._told: dict[str, None] = {}
        self._seqs: dict[str, int] = {}
        self._ends: dict[str, tuple[int, Gang]] = {}
        self._findings = Findings()
        self._begin_with(state)
        for name in (*state.gangs, *state.arrays):
            self._findings.add(Flaw.BEFORE_THE_LOG, state.seq, name)
        self._before = len(state.gangs)

    def _begin_with(self, state: State) -> None:
        """Nodes that were lost or cordoned before are so from the beginning, and maintenance was announced."""
        for node, mood in zip(state.nodes.nodes, state.nodes.states, strict=True):
            if mood in (NodeState.LOST, NodeState.LOST_CORDONED):
                self._nodes.away[node.name] = state.at_ms
            if mood in (NodeState.CORDONED, NodeState.LOST_CORDONED):
                self._asked.append((state.at_ms, e.NodeCordoned(node=node.name)))
        self._asked += [(state.at_ms, window) for window in state.windows.values()]

    def take(self, row: e.Stamped) -> None:
        """The next."""
        event, at_ms = row.event, row.at_ms
        for touched in fold(self._state, row):
            if isinstance(touched, Gang) and touched.ended and touched.id in self._works:
                self._ends.setdefault(touched.id, (at_ms, touched))
        if isinstance(event, e.NodesListed):  # with the places that the policy gives them
            table = self._state.nodes
            event = replace(event, nodes=tuple(table.nodes), levels=table.topology.levels)
            row = replace(row, event=event)
        self._hear_nodes(event, at_ms)
        if isinstance(event, e.Submitted):
            self._submitted(event.job, row)
        elif isinstance(event, _ASKED):
            self._hear_asked(event, at_ms)
        elif isinstance(event, _POLICY):
            self._findings.add(Flaw.POLICY_CHANGED, row.seq, event.kind)
        for each in _told_by(event):
            if (work := self._works.get(each.gang)) is not None:
                work.take(each, at_ms)
        known = self._known_of(row)
        for reader in self._readers:
            reader(known)

    def past(self, place: str) -> Past:
        """All of it."""
        end_ms, begin_ms = self._state.at_ms, self._begin_ms
        if begin_ms is None:
            raise RequestError(
                "log_failed", f"{place} has no nodes: its server never began", "ganger server start", 500
            )
        for name in tuple(self._nodes.away):
            self._nodes.back(name, begin_ms, end_ms + 1)
        begins = median_low([ms for work in self._works.values() for ms in work.begins_ms] or [0])
        stops = median_low([ms for work in self._works.values() for ms in work.stops_ms] or [0])
        works = {name: self._known_ms(name) for name in self._works}
        self._withdraw(works, end_ms)
        return Past(
            place=place,
            begin_ms=begin_ms,
            end_ms=end_ms - begin_ms,
            nodes=tuple(self._nodes.known.values()),
            levels=tuple(self._state.nodes.topology.levels),
            document=document_of(self._state.rules, self._state.queues),
            asked=tuple((at_ms - begin_ms, event) for at_ms, event in sorted(self._asked, key=lambda each: each[0])),
            acts={
                name: work.behaviour(begins, stops, ends=works[name] is not None) for name, work in self._works.items()
            },
            faults=tuple(sorted(self._nodes.faults, key=lambda fault: fault.start_ms)),
            recorded=self._recorded(works, end_ms),
            lives=tuple(self._lives.lives.values()),
            starts=self._lives.starts,
            preemptions=self._lives.preemptions,
            findings=self._findings.all(),
            rows=len(self._works) + self._before,
            seqs=self._seqs,
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _hear_nodes(self, event: e.Event, at_ms: int) -> None:
        if isinstance(event, e.NodesListed):
            self._begin_ms = at_ms if self._begin_ms is None else self._begin_ms
            self._nodes.listed(event.nodes, self._begin_ms, at_ms)
        elif isinstance(event, e.NodeLost):
            self._nodes.away.setdefault(event.node, at_ms)
        elif isinstance(event, e.NodeReturned):
            self._nodes.back(event.node, self._begin_ms or at_ms, at_ms)

    def _submitted(self, job: Job, row: e.Stamped) -> None:
        job = told_of(job)
        self._asked.append((row.at_ms, e.Submitted(job=job)))
        self._ids[job.id] = None
        each = [job] if job.spec.array is None else [job.element(index) for index in job.spec.array.indices]
        for one in each:
            self._jobs[one.id], self._works[one.id], self._seqs[one.id] = one, Work(), row.seq
            self._ids[one.id] = None

    def _hear_asked(self, event: e.Event, at_ms: int) -> None:
        gang = getattr(event, "gang", None)
        if gang is None or gang in self._ids:
            self._asked.append((at_ms, event))
        if isinstance(event, e.StopRequested):
            self._told[event.gang] = None

    def _known_of(self, row: e.Stamped) -> e.Stamped:
        """The row, as far as it speaks of jobs that were submitted in these days."""
        event = row.event
        if isinstance(event, e.Decided):
            kept = tuple(each for each in event.plan.decisions if self._concerns(each))
            return replace(row, event=replace(event, plan=replace(event.plan, decisions=kept)))
        known = getattr(event, "gang", None)
        return row if known is None or known in self._works else replace(row, event=e.Described(gang=known))

    def _concerns(self, decision: object) -> bool:
        return isinstance(decision, Start | Stop) and decision.gang in self._ids

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _known_ms(self, name: str) -> int | None:
        """The work that ended it, None where something else did."""
        end = self._ends.get(name)
        if end is None:
            return None
        gang, work = end[1], self._works[name]
        if self._lives.lives[name].stopped in _BY_ITSELF:
            return None
        if gang.state is GangState.SUCCEEDED:
            if work.has_failed:
                self._findings.add(Flaw.FAILED, self._seqs[name], f"{name} was started {gang.generation} times")
            return work.done_ms
        if gang.state is GangState.FAILED and work.has_failed:
            self._findings.add(Flaw.FAILED, self._seqs[name], f"{name} failed")
            return work.done_ms
        return None

    def _withdraw(self, works: dict[str, int | None], end_ms: int) -> None:
        """Whoever did not end by itself, and whom nobody stopped, is stopped when it ended, or when the log ends."""
        for name, done_ms in works.items():
            if done_ms is not None:
                continue
            element = array_of(name)
            at_ms, gang = self._ends.get(name, (end_ms, None))
            self._findings.add(Flaw.NOT_ENDED, self._seqs[name], f"{name} {gang.state if gang else 'was there yet'}")
            is_told = name in self._told or (element is not None and element[0] in self._told)
            if not is_told and self._lives.lives[name].stopped not in _BY_ITSELF:
                self._asked.append((at_ms, e.StopRequested(gang=name)))

    def _recorded(self, works: dict[str, int | None], end_ms: int) -> dict[str, History]:
        found = {}
        for name, life in self._lives.lives.items():
            ended_ms = None
            if works[name] is not None:
                ended_ms = life.running[-1][1] if life.running else self._ends[name][0]
            found[name] = history_of(self._jobs[name], life, works[name], ended_ms, end_ms)
        return found


def _told_by(event: e.Event) -> Iterator[Any]:
    """Yield the parts of an event that concern one job each."""
    if isinstance(event, e.Decided):
        yield from (each for each in event.plan.decisions if isinstance(each, Start | Stop))
    elif hasattr(event, "gang"):
        yield event


def _fault(node: str, start_ms: int, end_ms: int) -> NodeFault:
    return NodeFault(node=node, start_ms=start_ms, end_ms=end_ms, level="", category="log", detail="")
