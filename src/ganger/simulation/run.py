"""A trace on a simulated cluster: the loop, the core and the policies of a server, in virtual time.

Called by the errand `sim` and by tables of published experiments. Nothing here decides: a `World` feeds the one loop,
which writes into a log that is folded as it is written. Same input, same log, byte for byte.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import BEGIN_MS, World
from ganger.core.queue_order.policy_interface import Policy
from ganger.engine.eventlog.stream_log import StreamLog
from ganger.engine.loop import Loop
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.policy import PolicyDocument
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.arguments.node_arguments import levels_of
from ganger.simulation.cycle_cost import Cycles, SelfCost
from ganger.simulation.history_recorder import Histories, Life
from ganger.simulation.job_nodes import Gangs, gangs_for, tenant
from ganger.simulation.metrics.cost import Cost, cost
from ganger.simulation.metrics.goodput import Goodput, Pace, goodput
from ganger.simulation.metrics.goodput_forecast import Forecast, forecast, measured
from ganger.simulation.metrics.run_history import History, Interval
from ganger.simulation.metrics.scorecard import Scorecard, score
from ganger.simulation.node_outages import Outage
from ganger.simulation.oversized_jobs import jobs_that_fit
from ganger.simulation.spare_nodes import spare_moves
from ganger.simulation.traces.trace import Finding, Flaw, NodeFault, RecordedJob, Trace

FOREVER_MS: Final = 1 << 53
"""Beyond the end of every trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What running costs beside the work itself.

    start_ms: from a decision to the first step, at every start; checkpoint_ms: work between checkpoints, so that a job
    that is stopped or loses a node goes on from the newest, 0: it keeps all of it; write_ms: how long each of them
    keeps it from work; stop_ms: from a stop to free nodes; spare_ms: how much longer than it runs its limit is, so that
    such costs do not end it.
    """

    start_ms: int = 0
    checkpoint_ms: int = 0
    write_ms: int = 0
    stop_ms: int = 0
    spare_ms: int = 0

    @property
    def pace(self) -> Pace:
        """Those of running itself."""
        return Pace(start_ms=self.start_ms, checkpoint_ms=self.checkpoint_ms, write_ms=self.write_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What happens to nodes, in ms after the first submission, and of which record that was made; spares: so many of
    the nodes are held back."""

    outages: tuple[Outage, ...] = ()
    spares: int = 0
    record: Trace[NodeFault] | None = None


FREE: Final = Costs()
NONE: Final = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is simulated. order: the queue orders by name; document: the policy document, whose order is one of these;
    faults: of these nodes; knows: jobs have limits, so that the core knows how long they run, which is as long as
    recorded; prices: of an hour of a node, by the type of its GPUs."""

    trace: Trace[RecordedJob]
    nodes: tuple[Node, ...]
    order: Callable[[str], Policy]
    document: PolicyDocument
    costs: Costs = FREE
    faults: Faults = NONE
    knows: bool = True
    prices: Mapping[str, Fraction] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it. forecast: what should have, where nodes fail; cost: where there are prices; self_cost: what
    deciding took; findings: rows of the trace that were not simulated, and why; unended: jobs that did not come to
    their end, by why; events: submissions and ends, by which the speed of simulators is counted; rows: of the log."""

    card: Scorecard
    histories: tuple[History, ...]
    findings: tuple[Finding, ...]
    goodput: Goodput | None = None
    cost: Cost | None = None
    self_cost: SelfCost | None = None
    forecast: Forecast | None = None
    unended: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    preemptions: int = 0
    events: int = 0
    rows: int = 0


def simulate(run: Run, *readers: Callable[[e.Stamped], None]) -> Outcome:
    """Run it to the end: until nothing is due any more. `readers` are told of every row of the log."""
    trace = jobs_that_fit(run.trace, run.nodes[: len(run.nodes) - run.faults.spares])
    jobs = [job for job in trace.records if job.duration_ms is not None]
    first_ms = jobs[0].submitted_ms if jobs else 0
    histories, world = Histories(_failed_ms(run)), World(list(run.nodes), levels=levels_of(run.nodes))
    loop = Loop(StreamLog(histories.take, *readers), world, run.order, world, "simulated")
    loop.open()
    in_force = loop.post(e.PolicySet(document=run.document, version=1))
    loop.turn(loop.drain())
    in_force.result()
    lasting = {job.name: job.duration_ms or 0 for job in jobs}
    world.feed(_submissions(run, jobs, gangs_for(run.nodes), first_ms), lambda name: _behaviour(run, lasting[name]))
    _break(run, world)
    cycles = Cycles(loop)
    world.run(cycles, FOREVER_MS)
    found = [_history(job, histories.lives[job.name], histories.now_ms) for job in jobs]
    capacity = _capacity(run)
    ended = sum(each.ended_ms is not None for each in found)
    return Outcome(
        card=score(found, capacity, dict.fromkeys((each.tenant for each in found), 1)),
        goodput=goodput(found, run.costs.pace),
        cost=_cost(run, found),
        self_cost=cycles.cost(len(found) + ended),
        forecast=_forecast(run, found),
        histories=tuple(found),
        findings=trace.findings,
        unended=unended(histories.lives.values(), len(trace.records) - len(jobs)),
        starts=histories.starts,
        preemptions=histories.preemptions,
        events=len(found) + ended,
        rows=loop.wait(0, 0),
    )


def _failed_ms(run: Run) -> dict[tuple[str, int], int]:
    """When a node was lost, by its name and when that was known."""
    return {(each.node, BEGIN_MS + each.known_ms): BEGIN_MS + each.from_ms for each in run.faults.outages}


def _break(run: Run, world: World) -> None:
    """What will happen to nodes, and who takes their place."""
    for outage in run.faults.outages:
        world.lose(outage.from_ms, outage.node, outage.known_ms - outage.from_ms)
        world.restore(outage.until_ms, outage.node)
    for at_ms, event in spare_moves([node.name for node in run.nodes], run.faults.outages, run.faults.spares):
        world.at(at_ms, event)


def _submissions(run: Run, jobs: Sequence[RecordedJob], gangs: Gangs, first_ms: int) -> Iterator[tuple[int, e.Event]]:
    for job in jobs:
        limit_ms = _limit_ms(run.costs, job.duration_ms or 0) if run.knows else None
        yield job.submitted_ms - first_ms, e.Submitted(job=gangs.job(job, limit_ms))


def _limit_ms(costs: Costs, lasts_ms: int) -> int:
    """How long a job runs that nothing happens to, and what it has in reserve."""
    written = (max(1, lasts_ms) - 1) // costs.checkpoint_ms if costs.checkpoint_ms else 0
    return max(1, lasts_ms) + costs.start_ms + written * costs.write_ms + costs.spare_ms


def _behaviour(run: Run, lasts_ms: int) -> Behaviour:
    """Work is counted in ms."""
    return Behaviour(
        begin_ms=run.costs.start_ms,
        apart_ms=0,
        step_ms=1,
        steps=lasts_ms,
        checkpoint_every=run.costs.checkpoint_ms or 1,
        write_ms=run.costs.write_ms,
        stop_ms=run.costs.stop_ms,
        quiet=True,
    )


def _history(job: RecordedJob, life: Life, now_ms: int) -> History:
    """What became of a job; one that runs yet has run until now."""
    still = (life.attempt(life.began_ms, now_ms),) if life.began_ms is not None else ()
    runs_on = tuple((each.began_ms, now_ms) for each in still if each.began_ms < now_ms)
    deadline_ms = None if job.deadline_ms is None else life.submitted_ms + job.deadline_ms - job.submitted_ms
    return History(
        tenant=tenant(job),
        gpu_milli=job.asked_gpu_milli,
        submitted_ms=life.submitted_ms,
        duration_ms=job.duration_ms or 0,
        running=(*life.running, *runs_on),
        ended_ms=life.ended_ms,
        gone_ms=life.gone_ms,
        deadline_ms=deadline_ms,
        attempts=(*life.attempts, *still),
    )


def _cost(run: Run, found: Sequence[History]) -> Cost | None:
    if run.prices is None:
        return None
    gone = ((each.node, BEGIN_MS + each.from_ms, BEGIN_MS + each.until_ms) for each in run.faults.outages)
    return cost(found, run.nodes, run.prices, gone)


def _forecast(run: Run, found: Sequence[History]) -> Forecast | None:
    """By how often nodes failed until the last job ended."""
    if not run.faults.outages:
        return None
    ended_ms = max((each.ended_ms - BEGIN_MS for each in found if each.ended_ms is not None), default=0)
    failures = measured(run.faults.outages, len(run.nodes), ended_ms)
    gpus = sum(node.gpus for node in run.nodes)
    return forecast(found, failures, run.costs.pace, gpus * DEVICE_MILLI * ended_ms)


def _capacity(run: Run) -> list[Interval]:
    """Thousandths of GPUs that are thought to be healthy, from when on: a node counts until its loss is known."""
    milli = {node.name: node.gpus * DEVICE_MILLI for node in run.nodes}
    there, found = sum(milli.values()), [(BEGIN_MS, sum(milli.values()))]
    changes = sorted(
        change
        for each in run.faults.outages
        for change in ((each.known_ms, -1, each.node), (each.until_ms, +1, each.node))
    )
    for at_ms, sign, node in changes:
        there += sign * milli[node]
        found.append((BEGIN_MS + at_ms, there))
    return found


def unended(lives: Iterable[Life], unknown: int = 0) -> dict[str, int]:
    """Jobs that did not come to their end: stopped for good, waiting or running yet, or never submitted, since nobody
    knows how long they run."""
    whys = Counter({Flaw.NO_DURATION.value: unknown} if unknown else {})
    for life in lives:
        if life.ended_ms is None:
            runs = "runs" if life.began_ms is not None else "waits"
            whys[runs if life.stopped is None or life.stopped is Cause.PREEMPTED else life.stopped.value] += 1
    return dict(sorted(whys.items()))
