"""The assembly of a simulation: a virtual cluster, the scheduling loop, a log, and the figures made of it.

Nothing here decides: the loop, the core and the policies are those of a server. Equal input gives an equal log, byte
for byte.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.queue_order.policy_interface import Policy
from ganger.engine.eventlog.stream_log import StreamLog
from ganger.engine.loop import Loop
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.policy import PolicyDocument
from ganger.simulation.cycle_cost import SelfCost, TimedLoop
from ganger.simulation.history_recorder import HistoryRecorder, JobRecord
from ganger.simulation.metrics.cost import Cost
from ganger.simulation.metrics.goodput import CheckpointCosts, Goodput, goodput
from ganger.simulation.metrics.goodput_forecast import Forecast
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.metrics.scorecard import Scorecard
from ganger.simulation.simulated_cluster import SimulatedCluster
from ganger.simulation.traces.trace import Finding, Flaw

Reader = Callable[[e.Stamped], None]
"""Receives every row of a simulation's log, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A run in virtual time, wherever its jobs come from.

    cluster: nodes, their outages and prices
    document: the policy document, in force from the beginning
    order: queue orders by name
    schedule: plans requests, job behaviours and outages on the virtual cluster before the run
    until_ms: end of the run, in ms after its begin; it ends earlier when nothing is due any more
    jobs: number of jobs after whose end the run ends, whatever else is due; None: it does not end with its jobs
    history_of: makes the history of a job from its id, its record and the time of the last row
    log: the log that the loop writes to
    checkpoint_costs: costs of starts and checkpoints, for goodput and its forecast; None: neither is computed
    findings: flaws of the input
    without_duration: jobs of the input that are not submitted because their duration is unknown
    left_out: number of jobs of the input that are not submitted because the cluster could not hold them
    """

    cluster: SimulatedCluster
    document: PolicyDocument
    order: Callable[[str], Policy]
    schedule: Callable[[VirtualCluster], None]
    until_ms: int
    jobs: int | None = None
    history_of: Callable[[str, JobRecord, int], JobHistory]
    log: Callable[..., StreamLog] = StreamLog
    checkpoint_costs: CheckpointCosts | None = None
    findings: tuple[Finding, ...] = ()
    without_duration: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of a run.

    card: waiting, slowdown, use of the cluster and fairness
    histories: the history of each job, in order of submission
    names: the names of these jobs
    findings: rows of the input that were not simulated as they are, and why
    cost: None without prices
    self_cost: processor time and memory that the simulation took; None for a recorded run
    forecast: the closed form for goodput; None where no node fails
    unended: number of jobs that did not end well, by reason
    left_out: number of jobs of the input that were not submitted because the cluster could not hold them
    events: submissions and ends, by which the speed of simulators is counted
    rows: rows of the log
    """

    card: Scorecard
    histories: tuple[JobHistory, ...]
    findings: tuple[Finding, ...]
    names: tuple[str, ...]
    goodput: Goodput | None = None
    cost: Cost | None = None
    self_cost: SelfCost | None = None
    forecast: Forecast | None = None
    unended: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    starts: int = 0
    preemptions: int = 0
    events: int = 0
    rows: int = 0


def simulate(simulation: Simulation, *readers: Reader) -> Outcome:
    """Run a simulation to its end and return its figures. `readers` receive every row of the log."""
    cluster, costs = simulation.cluster, simulation.checkpoint_costs
    recorder = HistoryRecorder(cluster.failed_ms())
    virtual_cluster = VirtualCluster(list(cluster.nodes), levels=cluster.levels, begin_ms=cluster.begin_ms)
    loop = _opened_loop(simulation, virtual_cluster, simulation.log(recorder.fold, *readers))
    simulation.schedule(virtual_cluster)
    timed_loop = TimedLoop(loop)
    # A record of faults may be a hundred times as long as the run: after the last job it would only add idle time.
    virtual_cluster.run(
        timed_loop,
        simulation.until_ms,
        lambda: len(recorder.jobs) == simulation.jobs and not recorder.unended,
    )
    histories = tuple(simulation.history_of(name, job, recorder.now_ms) for name, job in recorder.jobs.items())
    events = count_events(histories)
    return Outcome(
        card=cluster.scorecard(histories),
        goodput=None if costs is None else goodput(histories, costs),
        cost=cluster.cost(histories),
        self_cost=timed_loop.cost(events),
        forecast=None if costs is None else cluster.forecast(histories, costs),
        histories=histories,
        names=tuple(recorder.jobs),
        left_out=simulation.left_out,
        findings=simulation.findings,
        unended=unended(recorder.jobs.values(), simulation.without_duration),
        starts=recorder.starts,
        preemptions=recorder.preemptions,
        events=events,
        rows=loop.wait(0, 0),
    )


def count_events(histories: Iterable[JobHistory]) -> int:
    """Return the number of submissions and ends."""
    return sum(1 + (history.ended_ms is not None) for history in histories)


def unended(jobs: Iterable[JobRecord], without_duration: int = 0) -> dict[str, int]:
    """Count the jobs that did not end well, by reason: stopped for good, waiting, running, or never submitted."""
    reasons = Counter({Flaw.NO_DURATION.value: without_duration} if without_duration else {})
    for job in jobs:
        if job.ended_ms is not None:
            continue
        if job.stop_cause is None or job.stop_cause is Cause.PREEMPTED:
            reasons["running" if job.began_ms is not None else "pending"] += 1
        else:
            reasons[job.stop_cause.value] += 1
    return dict(sorted(reasons.items()))


def _opened_loop(simulation: Simulation, virtual_cluster: VirtualCluster, log: StreamLog) -> Loop:
    """Return a loop whose policy document is in force before the first request."""
    loop = Loop(log, virtual_cluster, simulation.order, virtual_cluster, "simulated")
    loop.open()
    in_force = loop.post(e.PolicySet(document=simulation.document, version=1))
    loop.run_cycle(loop.drain())
    in_force.result()
    return loop
