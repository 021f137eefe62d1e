"""A trace of another cluster on a simulated one.

Jobs that the cluster could never hold, even empty, are left out with the reason before they wait for ever. The check is
necessary, not sufficient: types of GPU, total amounts and, for a job with a fixed number of nodes or of CPUs alone, as
many nodes with its part each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.queue_order.policy_interface import Policy
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.node_health.fault import Fault
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.policy import PolicyDocument
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.cpu_layout import CpuLayouts
from ganger.simulation.duration_estimates import RECORDED, Estimates
from ganger.simulation.history_recorder import JobRecord
from ganger.simulation.metrics.goodput import CheckpointCosts
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.node_outages import Outage
from ganger.simulation.simulate import Outcome, Reader, Simulation, simulate
from ganger.simulation.simulated_cluster import SimulatedCluster
from ganger.simulation.spare_nodes import spare_requests
from ganger.simulation.trace_job_spec import TraceJobBuilder, job_builder_for, tenant_of
from ganger.simulation.traces.ganger_format import LEVELS
from ganger.simulation.traces.trace import Finding, Findings, Flaw, NodeFault, RecordedJob, Trace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds, JobSpeeds, TimeRatios, gpu_types_for, job_speeds
from ganger.simulation.workload.scaling import Speedups, scaling_curves

FOREVER_MS: Final = 1 << 53
"""Later than the end of every trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Time that running costs beside the work itself.

    start_ms: from a decision to the first step, at every start
    checkpoint_ms: work between checkpoints; a job that is stopped or loses a node resumes from the newest. 0: a job
        keeps all its work
    write_ms: time that writing a checkpoint keeps a job from its work
    notice_ms: time that a job has to save its work before it is stopped
    save_ms: time that such a save takes
    stop_ms: from a stop, or the end of a save, to free nodes
    limit_margin_ms: margin of a job's time limit over its duration, so that such costs do not end it
    """

    start_ms: int = 0
    checkpoint_ms: int = 0
    write_ms: int = 0
    notice_ms: int = 0
    save_ms: int = 0
    stop_ms: int = 0
    limit_margin_ms: int = 0

    @property
    def checkpoint_costs(self) -> CheckpointCosts:
        """The costs of starts and checkpoints, from which goodput is computed."""
        return CheckpointCosts(start_ms=self.start_ms, checkpoint_ms=self.checkpoint_ms, write_ms=self.write_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Node failures of a run.

    outages: in ms after the first submission
    spares: number of nodes that are held back
    notes: faults that take no node away, as checks report them, in ms after the first submission
    trace: the fault trace that the outages were made of
    """

    outages: tuple[Outage, ...] = ()
    notes: tuple[tuple[int, Fault], ...] = ()
    spares: int = 0
    trace: Trace[NodeFault] | None = None


NO_OVERHEADS: Final = Overheads()
NO_FAULTS: Final = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """A trace and the cluster that it runs on.

    order: queue orders by name
    document: the policy document, whose order is one of these
    faults: failures of these nodes
    limits_known: jobs have a time limit, so that the core knows how long they run at most
    estimates: of the durations, which are these limits
    prices: of an hour of a node, by the type of its GPUs
    speeds: of the types of GPU; None: jobs run equally long on all
    queues: the queue of the document by that of the trace; without one all jobs are in the default queue
    """

    trace: Trace[RecordedJob]
    nodes: tuple[Node, ...]
    order: Callable[[str], Policy]
    document: PolicyDocument
    overheads: Overheads = NO_OVERHEADS
    faults: Faults = NO_FAULTS
    limits_known: bool = True
    estimates: Estimates = RECORDED
    prices: Mapping[str, Fraction] | None = None
    speeds: GpuSpeeds | None = None
    queues: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes_in_service(self) -> tuple[Node, ...]:
        """The nodes that are not held back while all are up."""
        return self.nodes[: len(self.nodes) - self.faults.spares]


def simulate_trace(run: TraceRun, *readers: Reader) -> Outcome:
    """Run a trace until its last job has ended, or nothing is due any more. `readers` receive every row of the log."""
    trace = jobs_that_fit(run.trace, run.nodes, run.faults.spares)
    jobs = {job.name: job for job in trace.records if job.duration_ms is not None}
    speeds = job_speeds(run.speeds, jobs.values(), run.nodes)
    builder = job_builder_for(run.nodes_in_service, run.overheads.notice_ms, run.queues)
    curves = scaling_curves(run.speeds)
    speedups = {
        name: curves.speedup_by_nodes(job, builder.sizes(job)) for name, job in jobs.items() if job.max_gpus is not None
    }
    cluster = SimulatedCluster(
        nodes=run.nodes, levels=_levels(run.nodes), outages=run.faults.outages, prices=run.prices
    )

    def schedule(virtual_cluster: VirtualCluster) -> None:
        submissions = _submissions(run, list(jobs.values()), speeds, builder)
        virtual_cluster.feed(
            submissions, lambda name: _behaviour(run, jobs[name], speeds.of(jobs[name]), speedups.get(name, {}))
        )
        cluster.schedule_outages(virtual_cluster)
        for at_ms, event in spare_requests([node.name for node in run.nodes], run.faults.outages, run.faults.spares):
            virtual_cluster.at(at_ms, event)
        for at_ms, fault in run.faults.notes:
            virtual_cluster.at(at_ms, NodeFaulty(fault=replace(fault, at_ms=cluster.begin_ms + at_ms)))

    simulation = Simulation(
        cluster=cluster,
        document=run.document,
        order=run.order,
        schedule=schedule,
        until_ms=FOREVER_MS,
        jobs=len(jobs),
        history_of=lambda name, record, now_ms: _with_time_ratios(
            _history(jobs[name], record, now_ms),
            speeds.of(jobs[name]),
            speedups.get(name, {}),
            gpu_types_for(jobs[name], run.nodes),
        ),
        checkpoint_costs=run.overheads.checkpoint_costs,
        findings=_with_lacking(trace.findings, speeds),
        without_duration=len(trace.records) - len(jobs),
        left_out=len(run.trace.records) - len(trace.records),
    )
    return simulate(simulation, *readers)


def _levels(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the topology levels that the nodes' domains belong to, outermost first."""
    return LEVELS[-max(1, *(len(node.domains) for node in nodes)) :]


def _submissions(
    run: TraceRun, jobs: Sequence[RecordedJob], speeds: JobSpeeds, builder: TraceJobBuilder
) -> Iterator[tuple[int, e.Event]]:
    for job in jobs:
        estimate_ms = run.estimates.of(speeds.longest(job, run.nodes))
        limit_ms = _limit_ms(run.overheads, estimate_ms) if run.limits_known else None
        yield job.submitted_ms - jobs[0].submitted_ms, e.Submitted(job=builder.job(job, limit_ms))


def _limit_ms(overheads: Overheads, estimate_ms: int) -> int:
    """Return the time that an undisturbed job takes if it runs as long as estimated, plus the margin."""
    written = (estimate_ms - 1) // overheads.checkpoint_ms if overheads.checkpoint_ms else 0
    return estimate_ms + overheads.start_ms + written * overheads.write_ms + overheads.limit_margin_ms


def _behaviour(run: TraceRun, job: RecordedJob, ratios: TimeRatios, speedups: Speedups) -> Behaviour:
    """Return the behaviour of a job, in steps of 1 ms of work on the GPUs of its recorded duration."""
    return Behaviour(
        startup_ms=run.overheads.start_ms,
        stagger_ms=0,
        step_ms=1,
        step_ms_by_gpu_type=ratios,
        speedup_by_nodes=speedups,
        steps=job.duration_ms or 0,
        checkpoint_every=run.overheads.checkpoint_ms or 1,
        write_ms=run.overheads.write_ms,
        save_ms=run.overheads.save_ms,
        stop_ms=run.overheads.stop_ms,
        quiet=True,
    )


def _history(job: RecordedJob, record: JobRecord, now_ms: int) -> JobHistory:
    deadline_ms = None if job.deadline_ms is None else record.submitted_ms + job.deadline_ms - job.submitted_ms
    history = record.history(tenant_of(job), job.asked_gpu_milli, job.duration_ms or 0, now_ms)
    return history if deadline_ms is None else replace(history, deadline_ms=deadline_ms)


def _with_time_ratios(
    history: JobHistory, ratios: TimeRatios, speedups: Speedups, gpu_types: Iterable[str]
) -> JobHistory:
    """Return the history with the time that work took, by type of GPU and number of nodes.

    The duration is that on the fewest nodes: on the types of the last attempt, of a job that never ran on the fastest.
    """
    if not ratios and not speedups:
        return history

    def slowest(types: Iterable[str]) -> Fraction:
        return max(Fraction(ratios.get(gpu_type, 1)) for gpu_type in types)

    attempts = tuple(
        replace(attempt, time_ratio=slowest(attempt.gpu_types) / speedups.get(attempt.nodes, 1))
        for attempt in history.attempts
    )
    ratio = slowest(attempts[-1].gpu_types) if attempts else min(ratios.get(gpu_type, 1) for gpu_type in gpu_types)
    work_ms = history.duration_ms
    return replace(history, attempts=attempts, duration_ms=ceil(work_ms * ratio), work_ms=work_ms)


def _with_lacking(findings: tuple[Finding, ...], speeds: JobSpeeds) -> tuple[Finding, ...]:
    """Return the findings, and the jobs that the throughputs lack."""
    found = Findings(findings)
    for job in speeds.lacking:
        batch = "" if job.batch_size is None else f", batch size {job.batch_size}"
        model = f"model {job.model_name}{batch}" if job.model_name else "a job without a model"
        found.add(Flaw.NO_THROUGHPUT, job.line, f"{job.name}: {model} on {max(1, job.gpus)} GPUs")
    return found.all()


# -- jobs that do not fit ----------------------------------------------------------------------------------------------


def jobs_that_fit(trace: Trace[RecordedJob], nodes: Sequence[Node], spares: int = 0) -> Trace[RecordedJob]:
    """Return the trace without the jobs that `nodes` could never hold; these become findings, with their lines.

    spares: number of nodes that are held back, the last ones
    """
    in_service = nodes[: len(nodes) - spares]
    findings, fitting = Findings(trace.findings), []
    misfits: dict[tuple[object, ...], tuple[Flaw, str] | None] = {}
    for job in trace.records:
        amounts = (job.gpus, job.gpu_milli, job.nodes, job.cpu_milli, job.memory_bytes, job.gpu_types)
        if amounts not in misfits:
            misfit = _misfit(job, in_service)
            if misfit and spares and _misfit(job, nodes) is None:
                misfit = (Flaw.HELD_BACK, f"{misfit[1]}, and {spares} of {len(nodes)} nodes are held back")
            misfits[amounts] = misfit
        if misfit := misfits[amounts]:
            findings.add(misfit[0], job.line, f"{job.name} {misfit[1]}")
        else:
            fitting.append(job)
    return replace(trace, records=tuple(fitting), findings=findings.all())


def _misfit(job: RecordedJob, nodes: Sequence[Node]) -> tuple[Flaw, str] | None:
    """Return why a job does not fit on the nodes, even if these are empty; None if it may fit."""
    known = sorted({node.gpu_type for node in nodes if node.gpus})
    if job.gpu_types and not {*known} & {*job.gpu_types}:
        return Flaw.UNKNOWN_GPU_TYPE, f"wants {' or '.join(job.gpu_types)}; there is {', '.join(known) or 'none'}"
    # All GPUs of a gang have one type, so nodes are checked type by type.
    by_type = [[node for node in nodes if node.gpu_type == gpu_type] for gpu_type in job.gpu_types] or [list(nodes)]
    return None if any(_could_hold(job, typed) for typed in by_type) else (Flaw.TOO_LARGE, f"asks for {_amounts(job)}")


def _could_hold(job: RecordedJob, nodes: Sequence[Node]) -> bool:
    gpus, cpu_milli, memory_bytes = job.gpus + bool(job.gpu_milli), job.cpu_milli or 0, job.memory_bytes or 0
    if job.nodes is None:
        if not gpus:
            return CpuLayouts(nodes).layout(cpu_milli, memory_bytes) is not None
        return (
            gpus <= sum(node.gpus for node in nodes)
            and cpu_milli <= sum(node.cpu_milli for node in nodes)
            and memory_bytes <= sum(node.memory_bytes for node in nodes)
        )
    large_enough = sum(
        node.gpus * job.nodes >= gpus
        and node.cpu_milli * job.nodes >= cpu_milli
        and node.memory_bytes * job.nodes >= memory_bytes
        for node in nodes
    )
    return large_enough >= job.nodes


def _amounts(job: RecordedJob) -> str:
    gpus, cpus = job.asked_gpu_milli / DEVICE_MILLI, (job.cpu_milli or 0) / 1000
    on_nodes = "" if job.nodes is None else f" on {job.nodes} nodes"
    return f"{gpus:g} GPUs, {cpus:g} CPUs, {job.memory_bytes or 0} bytes{on_nodes}"
