"""The days of ganger's own log, replayed on the same nodes or on others, under the same policy or another.

Pending reasons are published as a server publishes them, so that the scheduling cycles are those of a server.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.placement.start_check import StartRequest
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import Image, State
from ganger.engine.eventlog.stream_log import ReasonStreamLog
from ganger.engine.submit import quota_check
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.job import Job, split_element_id
from ganger.model.policy import PolicyDocument
from ganger.simulation.from_log.recorded_days import RecordedDays, log_job_history
from ganger.simulation.history_recorder import JobRecord
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.node_outages import Outage
from ganger.simulation.simulate import Outcome, Reader, Simulation, count_events, simulate, unended
from ganger.simulation.simulated_cluster import Prices, SimulatedCluster
from ganger.simulation.traces.trace import Findings, Flaw

SHOWN_QUEUES: Final = 5
"""Number of missing queues that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRun:
    """Recorded days, and the cluster and policy document that they are replayed with.

    order: queue orders by name
    start_ms: what a start takes, if it is not to take what it took
    checkpoint_ms: work between checkpoints, if it is not to be as recorded
    prices: of an hour of a node, by GPU type
    """

    days: RecordedDays
    nodes: tuple[Node, ...]
    document: PolicyDocument
    order: Callable[[str], Policy]
    start_ms: int | None = None
    checkpoint_ms: int | None = None
    prices: Prices | None = None


def as_recorded(days: RecordedDays, prices: Prices | None = None) -> Outcome:
    """Return the figures of the days as the log records them."""
    cluster = _cluster(days, days.nodes, prices)
    histories = tuple(days.histories.values())
    failed = [record for record, history in zip(days.job_records, histories, strict=True) if history.ended_ms is None]
    return Outcome(
        card=cluster.scorecard(histories),
        cost=cluster.cost(histories),
        histories=histories,
        names=tuple(days.histories),
        findings=days.findings,
        unended=unended(failed),
        starts=days.starts,
        preemptions=days.preemptions,
        events=count_events(histories),
    )


def simulate_log(run: LogRun, *readers: Reader) -> Outcome:
    """Replay recorded days until nothing is due any more, or nothing more can come of it.

    `readers` receive every row of the new log. RequestError: the document lacks a queue that has jobs.
    """
    days = run.days
    _check_queues(days, run.document)
    requests, findings = _possible_requests(run)
    cluster, jobs = _cluster(days, run.nodes, run.prices), _jobs_by_id(requests)

    def schedule(virtual_cluster: VirtualCluster) -> None:
        cluster.schedule_outages(virtual_cluster)
        virtual_cluster.feed(iter(requests), partial(_behaviour, run))

    def job_history(name: str, record: JobRecord, now_ms: int) -> JobHistory:
        return log_job_history(jobs[name], record, days.behaviours[name].work_ms, now_ms)

    simulation = Simulation(
        cluster=cluster,
        document=run.document,
        order=run.order,
        schedule=schedule,
        until_ms=_until_ms(run),
        history_of=job_history,
        log=ReasonStreamLog,
        findings=findings.all(),
        left_out=sum(finding.count for finding in findings.all() if finding.flaw is Flaw.TOO_LARGE),
    )
    return simulate(simulation, *readers)


def _cluster(days: RecordedDays, nodes: Sequence[Node], prices: Prices | None) -> SimulatedCluster:
    """Return the cluster whose nodes fail as recorded; the loss of a node is known at once."""
    names = {node.name for node in nodes}
    outages = tuple(
        Outage(node=fault.node, from_ms=fault.start_ms, known_ms=fault.start_ms, until_ms=fault.end_ms)
        for fault in days.faults
        if fault.node in names
    )
    return SimulatedCluster(
        nodes=tuple(nodes), levels=days.levels, begin_ms=days.begin_ms, outages=outages, prices=prices
    )


def _until_ms(run: LogRun) -> int:
    """Return when the run ends at the latest.

    By then all jobs could have run one after the other, twice. A job that is unfinished then may be so for ever, as two
    jobs without checkpoints that preempt each other.
    """
    behaviours = [_behaviour(run, name) for name in run.days.behaviours]
    return run.days.end_ms + 2 * sum(
        (behaviour.work_ms or 0) + behaviour.startup_ms + (behaviour.stop_ms or 0) for behaviour in behaviours
    )


def _behaviour(run: LogRun, name: str) -> Behaviour:
    behaviour = run.days.behaviours[name]
    if run.start_ms is not None:
        behaviour = replace(behaviour, startup_ms=run.start_ms)
    return behaviour if run.checkpoint_ms is None else replace(behaviour, checkpoint_every=run.checkpoint_ms)


def _possible_requests(run: LogRun) -> tuple[list[tuple[int, e.Event]], Findings]:
    """Return the requests without jobs that could never start, and without nodes that the cluster does not have."""
    image = Image(
        nodes=list(run.nodes),
        levels=run.days.levels,
        document=run.document,
    )
    state, findings = State(image), Findings(run.days.findings)
    names, left_out = {node.name for node in run.nodes}, set[str]()
    requests: list[tuple[int, e.Event]] = []
    for at_ms, event in run.days.requests:
        match event:
            case e.Submitted(job=job):
                if (obstacle := _obstacle(run.days, state, job)) is not None:
                    findings.add(Flaw.TOO_LARGE, run.days.submission_seqs[_ids(job)[0]], f"{job.id}: {obstacle}")
                    left_out.add(job.id)
                    continue
            case e.MaintenanceSet(nodes=nodes):
                event = replace(event, nodes=tuple(node for node in nodes if node in names))  # noqa: PLW2901 - the same, for these nodes
            case _:
                pass
        if getattr(event, "node", None) in (None, *names) and _submitted_id(event) not in left_out:
            requests.append((at_ms, event))
    return requests, findings


def _obstacle(days: RecordedDays, state: State, job: Job) -> str | None:
    """Return why a job could never start on an empty cluster; None if it could, or is withdrawn anyway."""
    if all(days.behaviours[name].work_ms is None for name in _ids(job)):
        return None
    try:
        limit_ms = job.spec.limits.time_ms
        request = StartRequest(queue=job.spec.queue, user=job.user, shape=job.spec.shape, time_ms=limit_ms)
        quota_check.check(state, request, waits_for_nodes=state.document.autoscaling.after_ms is not None)
    except RequestError as refused:
        return refused.detail
    return None


def _submitted_id(event: e.Event) -> str | None:
    """Return the id under which the gang of an event was submitted: for an element, that of its array."""
    gang = getattr(event, "gang", None)
    element = split_element_id(gang) if gang else None
    return element[0] if element else gang


def _ids(job: Job) -> list[str]:
    return [job.id] if job.spec.array is None else [job.element(index).id for index in job.spec.array.indices]


def _jobs_by_id(requests: Sequence[tuple[int, e.Event]]) -> dict[str, Job]:
    submitted = [event.job for _, event in requests if isinstance(event, e.Submitted)]
    return {name: job for job in submitted for name in _ids(job)}


def _check_queues(days: RecordedDays, document: PolicyDocument) -> None:
    """Refuse a document that lacks queues of the jobs, as the server refuses a policy that strands live jobs."""
    stranded = Counter(
        event.job.spec.queue
        for _, event in days.requests
        if isinstance(event, e.Submitted) and event.job.spec.queue not in document.queues
    )
    if stranded:
        queues = ", ".join(f"{queue} ({count})" for queue, count in stranded.most_common(SHOWN_QUEUES))
        more = f" and {len(stranded) - SHOWN_QUEUES} more" if len(stranded) > SHOWN_QUEUES else ""
        detail = f"jobs of {days.path} wait in queues that the document does not have: {queues}{more}"
        raise RequestError("jobs_stranded", detail, f"give the document the queue {stranded.most_common(1)[0][0]}")
