"""The days of a cluster as its server's own log records them: requests, nodes, and how jobs ended.

Jobs are as they were submitted, as far as the scheduler looks at them: commands, variables and directories are left
out, and values of secrets are in no log. Requests come when they came, and nodes are up when they were.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import Any, Final, get_args

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.read_only_log import open_snapshot
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import GangState, Job, Origin, split_element_id
from ganger.model.policy import PolicyDocument
from ganger.model.units import format_duration
from ganger.simulation.from_log.recorded_work import RecordedWork
from ganger.simulation.history_recorder import HistoryRecorder, JobRecord, running_intervals
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.traces.trace import Finding, Findings, Flaw, NodeFault

_POLICY_CHANGES: Final = (e.PolicySet, e.QueueSet, e.QueueDeleted)
_NOT_REPEATED: Final = (*_POLICY_CHANGES, e.Deleted, e.Described)
"""Requests that a replay leaves out: it has one policy, and the rest changes no decision."""
_REQUESTS: Final = (
    *(kind for kind in get_args(e.Request) if kind not in (e.Submitted, *_NOT_REPEATED)),
    e.NodePreempted,
)
"""Requests that a replay repeats as they are."""
_LIMITS: Final = (Cause.TIME_LIMIT, Cause.QUEUE_TIME)
"""Causes of ends that happen again without a request."""
RUN: Final = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDays:
    """Some days of a cluster.

    Times are ms since `begin_ms`, except those of `histories`, which are Unix ms as in the log.

    path: of the log
    requests: submissions and other requests, in order of time
    document: the policy in force at the end
    behaviours: behaviour of each job, by id
    histories: recorded history of each job, by id
    job_records: the records that the histories were made of
    findings: flaws, by the number of the event
    rows: number of jobs, each element of an array being one
    submission_seqs: event of each job's submission
    """

    path: str
    begin_ms: int
    end_ms: int
    nodes: tuple[Node, ...]
    levels: tuple[str, ...]
    document: PolicyDocument
    requests: tuple[tuple[int, e.Event], ...]
    behaviours: dict[str, Behaviour]
    faults: tuple[NodeFault, ...]
    histories: dict[str, JobHistory]
    job_records: tuple[JobRecord, ...]
    starts: int
    preemptions: int
    findings: tuple[Finding, ...]
    rows: int
    submission_seqs: dict[str, int]


def read_days(path: Path, *readers: Callable[[e.Stamped], None], since_ms: int | None = None) -> RecordedDays:
    """Return the days of the log at `path`, which may be in use.

    since_ms: only the last days, so long before the newest event
    readers: receive every row, as far as it is about jobs of these days

    RequestError: it is no log, it is damaged, or it has no jobs.
    """
    with open_snapshot(path) as log:
        days = extract_days(log, str(path), *readers, since_ms=since_ms)
    if not days.histories:
        period, remedy = "while it was kept", "ganger ls"
        if since_ms is not None:
            period, remedy = f"in its last {format_duration(since_ms)}", "name more of it: --since 30d"
        raise RequestError("log_failed", f"{path} has no job that was submitted {period}", remedy, 500)
    return days


def extract_days(
    log: EventLog, path: str, *readers: Callable[[e.Stamped], None], since_ms: int | None = None
) -> RecordedDays:
    """Return the days of a log that is open."""
    last, before = log.last_seq(), log.first_replayable() - 1
    if since_ms is not None:
        before = max(before, log.before(log.last_ms() - since_ms))
    state = log.restore(before)
    reader = _LogReader(state, *readers)
    for row in log.iter_rows(state.seq, last):
        state = reader.continue_from(log.state_before(row, state))
        reason = row.event.reason if isinstance(row.event, e.Unreadable) else refusal(state, row.event)
        if reason is not None:
            raise RequestError(
                "corrupt_log", f"event {row.seq} of {path} was set aside: {reason}", "ganger doctor", 500
            )
        reader.read(row)
    return reader.days(path)


def without_payload(job: Job) -> Job:
    """Return the job without all that the scheduler does not look at."""
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


def log_job_history(job: Job, record: JobRecord, work_ms: int | None, now_ms: int) -> JobHistory:
    """Return the history of a job of the log, for the scorecard; one that still runs has run until `now_ms`."""
    shape = job.spec.shape
    gpu_milli = sum(part.nodes * shape.gpu_milli_of(index) for index, part in enumerate(shape.parts))
    return record.history(job.user, gpu_milli, work_ms or 0, now_ms)


@dataclass(slots=True)
class _NodeAbsences:
    """The nodes as last described, and the times at which each was away."""

    known: dict[str, Node]
    away_since_ms: dict[str, int] = field(default_factory=dict)
    faults: list[NodeFault] = field(default_factory=list)

    def listed(self, nodes: Iterable[Node], begin_ms: int, at_ms: int) -> None:
        """Record a list of all nodes: others are away, and one that is listed for the first time was away before."""
        listed = {node.name: node for node in nodes}
        for name in listed:
            if name not in self.known and at_ms > begin_ms:
                self.away_since_ms[name] = begin_ms
            self.returned(name, begin_ms, at_ms)
        for name in self.known:
            if name not in listed:
                self.away_since_ms.setdefault(name, at_ms)
        self.known |= listed

    def returned(self, name: str, begin_ms: int, at_ms: int) -> None:
        """Record that a node is back, if it was away."""
        since_ms = self.away_since_ms.pop(name, None)
        if since_ms is not None:
            self.faults.append(_node_fault(name, since_ms - begin_ms, at_ms - begin_ms))


class _LogReader:
    """A reader of a log's rows, on top of the state before them."""

    def __init__(self, state: State, *readers: Callable[[e.Stamped], None]) -> None:
        self._state = state
        self._nodes = _NodeAbsences({node.name: node for node in state.nodes.nodes})
        self._begin_ms = state.at_ms if self._nodes.known else None
        self._jobs: dict[str, Job] = {}
        self._works: dict[str, RecordedWork] = {}
        self._recorder = HistoryRecorder()
        self._recorder.set_topology(state.nodes.nodes, tuple(state.nodes.topology.levels))
        self._readers = (self._recorder.fold, *readers)
        self._requests: list[tuple[int, e.Event]] = []
        self._ids: dict[str, None] = {}
        self._stop_requested: dict[str, None] = {}
        self._submission_seqs: dict[str, int] = {}
        self._ends: dict[str, tuple[int, Gang]] = {}
        self._findings = Findings()
        self._request_initial_state(state)
        for name in (*state.gangs, *state.arrays):
            self._findings.add(Flaw.BEFORE_THE_LOG, state.seq, name)
        self._jobs_before = len(state.gangs)

    def _request_initial_state(self, state: State) -> None:
        """Begin with the nodes that are lost or cordoned already, and with announced maintenance."""
        for node, node_state in zip(state.nodes.nodes, state.nodes.states, strict=True):
            if node_state in (NodeState.LOST, NodeState.LOST_CORDONED):
                self._nodes.away_since_ms[node.name] = state.at_ms
            if node_state in (NodeState.CORDONED, NodeState.LOST_CORDONED):
                self._requests.append((state.at_ms, e.NodeCordoned(node=node.name)))
        self._requests += [(state.at_ms, window) for window in state.maintenance.values()]

    def continue_from(self, state: State) -> State:
        """Continue from the state before the next row: another controller may have begun with it."""
        self._state = state
        return state

    def read(self, row: e.Stamped) -> None:
        """Fold the next row of the log into the days."""
        event, at_ms = row.event, row.at_ms
        for touched in fold(self._state, row):
            if isinstance(touched, Gang) and touched.ended and touched.id in self._works:
                self._ends.setdefault(touched.id, (at_ms, touched))
        if isinstance(event, e.NodesListed):  # with the domains that the policy gives the nodes
            table = self._state.nodes
            event = replace(event, nodes=tuple(table.nodes), levels=table.topology.levels)
            row = replace(row, event=event)
        self._read_node_event(event, at_ms)
        if isinstance(event, e.Submitted):
            self._read_submission(event.job, row)
        elif isinstance(event, _REQUESTS):
            self._read_request(event, at_ms)
        elif isinstance(event, _POLICY_CHANGES):
            self._findings.add(Flaw.POLICY_CHANGED, row.seq, event.kind)
        for part in _parts_about_jobs(event):
            if (work := self._works.get(part.gang)) is not None:
                work.fold(part, at_ms)
        row_of_days = self._without_earlier_jobs(row)
        for reader in self._readers:
            reader(row_of_days)

    def days(self, path: str) -> RecordedDays:
        """Return the days that were read."""
        end_ms, begin_ms = self._state.at_ms, self._begin_ms
        if begin_ms is None:
            raise RequestError("log_failed", f"{path} has no nodes: its server never began", "ganger server start", 500)
        for name in tuple(self._nodes.away_since_ms):
            self._nodes.returned(name, begin_ms, end_ms + 1)
        works = self._works.values()
        start_ms = median_low([ms for work in works for ms in work.start_durations_ms] or [0])
        stop_ms = median_low([ms for work in works for ms in work.stop_durations_ms] or [0])
        work_ms = {name: self._completed_work_ms(name) for name in self._works}
        self._withdraw_unended(work_ms, end_ms)
        return RecordedDays(
            path=path,
            begin_ms=begin_ms,
            end_ms=end_ms - begin_ms,
            nodes=tuple(self._nodes.known.values()),
            levels=tuple(self._state.nodes.topology.levels),
            document=self._state.document,
            requests=tuple(
                (at_ms - begin_ms, event) for at_ms, event in sorted(self._requests, key=lambda timed: timed[0])
            ),
            behaviours={
                name: work.behaviour(start_ms, stop_ms, ends=work_ms[name] is not None)
                for name, work in self._works.items()
            },
            faults=tuple(sorted(self._nodes.faults, key=lambda fault: fault.start_ms)),
            histories={name: self._recorded_history(name, work_ms[name], end_ms) for name in self._recorder.jobs},
            job_records=tuple(self._recorder.jobs.values()),
            starts=self._recorder.starts,
            preemptions=self._recorder.preemptions,
            findings=self._findings.all(),
            rows=len(self._works) + self._jobs_before,
            submission_seqs=self._submission_seqs,
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _read_node_event(self, event: e.Event, at_ms: int) -> None:
        if isinstance(event, e.NodesListed):
            self._begin_ms = at_ms if self._begin_ms is None else self._begin_ms
            self._nodes.listed(event.nodes, self._begin_ms, at_ms)
        elif isinstance(event, e.NodeChanged):
            table = self._state.nodes
            self._nodes.known[event.listed.name] = table.nodes[table.index[event.listed.name]]
        elif isinstance(event, e.NodeLost):
            self._nodes.away_since_ms.setdefault(event.node, at_ms)
        elif isinstance(event, e.NodeReturned):
            self._nodes.returned(event.node, self._begin_ms or at_ms, at_ms)

    def _read_submission(self, job: Job, row: e.Stamped) -> None:
        job = without_payload(job)
        self._requests.append((row.at_ms, e.Submitted(job=job)))
        self._ids[job.id] = None
        elements = [job] if job.spec.array is None else [job.element(index) for index in job.spec.array.indices]
        for element in elements:
            self._jobs[element.id], self._works[element.id] = element, RecordedWork()
            self._submission_seqs[element.id] = row.seq
            self._ids[element.id] = None

    def _read_request(self, event: e.Event, at_ms: int) -> None:
        gang = getattr(event, "gang", None)
        if gang is None or gang in self._ids:
            self._requests.append((at_ms, event))
        if isinstance(event, e.StopRequested):
            self._stop_requested[event.gang] = None

    def _without_earlier_jobs(self, row: e.Stamped) -> e.Stamped:
        """Return the row without its parts about jobs that were submitted before these days."""
        event = row.event
        if isinstance(event, e.Decided):
            decisions = tuple(decision for decision in event.plan.decisions if self._is_of_these_days(decision))
            return replace(row, event=replace(event, plan=replace(event.plan, decisions=decisions)))
        gang = getattr(event, "gang", None)
        return row if gang is None or gang in self._works else replace(row, event=e.Described(gang=gang))

    def _is_of_these_days(self, decision: object) -> bool:
        return isinstance(decision, Start | Stop) and decision.gang in self._ids

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _completed_work_ms(self, name: str) -> int | None:
        """Return the work after which a job ended; None if something else ended it.

        A job that finished on all its nodes while it was being stopped ended after its work, as in `HistoryRecorder`:
        without an end of its own, its stop would take a replay longer than it took.
        """
        end = self._ends.get(name)
        if end is None:
            return None
        gang, work = end[1], self._works[name]
        if self._recorder.jobs[name].stop_cause in _LIMITS and not work.has_finished:
            return None
        if gang.state is GangState.SUCCEEDED or work.has_finished:
            if work.has_failed:
                text = f"{name} was started {gang.attempt.generation} times"
                self._findings.add(Flaw.FAILED, self._submission_seqs[name], text)
            return work.done_ms
        if gang.state is GangState.FAILED and work.has_failed:
            self._findings.add(Flaw.FAILED, self._submission_seqs[name], f"{name} failed")
            return work.done_ms
        return None

    def _withdraw_unended(self, work_ms: dict[str, int | None], end_ms: int) -> None:
        """Stop each job that neither ended by itself nor was stopped, when it ended or when the log ends."""
        for name, completed_ms in work_ms.items():
            if completed_ms is not None:
                continue
            element = split_element_id(name)
            at_ms, gang = self._ends.get(name, (end_ms, None))
            text = f"{name} {gang.state if gang else 'had not ended'}"
            self._findings.add(Flaw.NOT_ENDED, self._submission_seqs[name], text)
            is_stopped = name in self._stop_requested or (element is not None and element[0] in self._stop_requested)
            if not is_stopped and self._recorder.jobs[name].stop_cause not in _LIMITS:
                self._requests.append((at_ms, e.StopRequested(gang=name)))

    def _recorded_history(self, name: str, work_ms: int | None, end_ms: int) -> JobHistory:
        """Return the history of a job, which ended well if its work is known: a stopped job may still end well."""
        record = self._recorder.jobs[name]
        history = log_job_history(self._jobs[name], record, work_ms, end_ms)
        if work_ms is None:
            return replace(history, ended_ms=None, gone_ms=history.over_ms)
        intervals = running_intervals(record.attempts)
        return replace(history, ended_ms=intervals[-1][1] if intervals else self._ends[name][0], gone_ms=None)


def _parts_about_jobs(event: e.Event) -> Iterator[Any]:
    """Yield the parts of an event that are about one job each."""
    if isinstance(event, e.Decided):
        yield from (decision for decision in event.plan.decisions if isinstance(decision, Start | Stop))
    elif hasattr(event, "gang"):
        yield event


def _node_fault(node: str, start_ms: int, end_ms: int) -> NodeFault:
    return NodeFault(node=node, start_ms=start_ms, end_ms=end_ms, level="", category="log", detail="")
