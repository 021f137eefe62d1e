"""Which jobs of a trace a cluster could never hold, even empty: dropped with the reason, before they wait for ever.

What is looked at is necessary, not sufficient: types of GPU, amounts in all, and for a job that says on how many nodes
it must be, so many nodes with its part each. Called by whoever replays a trace on a cluster.
"""

from collections.abc import Sequence
from dataclasses import replace

from ganger.model.cluster import Node
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.traces.trace import Findings, Flaw, RecordedJob, Trace


def jobs_that_fit(trace: Trace[RecordedJob], nodes: Sequence[Node]) -> Trace[RecordedJob]:
    """The trace with the jobs that `nodes` could hold; the others are among its findings, by their lines."""
    findings, fitting = Findings(trace.findings), []
    answers: dict[tuple[object, ...], tuple[Flaw, str] | None] = {}
    for job in trace.records:
        asks = (job.gpus, job.gpu_milli, job.nodes, job.cpu_milli, job.memory_bytes, job.gpu_types)
        if asks not in answers:
            answers[asks] = _why_not(job, nodes)
        if wrong := answers[asks]:
            findings.add(wrong[0], job.line, f"{job.name} {wrong[1]}")
        else:
            fitting.append(job)
    return replace(trace, records=tuple(fitting), findings=findings.all())


def _why_not(job: RecordedJob, nodes: Sequence[Node]) -> tuple[Flaw, str] | None:
    known = sorted({node.gpu_type for node in nodes if node.gpus})
    if job.gpu_types and not {*known} & {*job.gpu_types}:
        return Flaw.UNKNOWN_GPU_TYPE, f"wants {' or '.join(job.gpu_types)}; there is {', '.join(known) or 'none'}"
    places = [[node for node in nodes if node.gpu_type == kind] for kind in job.gpu_types] or [list(nodes)]
    return None if any(_holds(job, place) for place in places) else (Flaw.TOO_LARGE, f"asks for {_amounts(job)}")


def _holds(job: RecordedJob, nodes: Sequence[Node]) -> bool:
    """Whether it could be on `nodes`. All GPUs of a gang are of one type, so that it is asked type by type."""
    gpus, cpu_milli, memory_bytes = job.gpus + bool(job.gpu_milli), job.cpu_milli or 0, job.memory_bytes or 0
    if job.nodes is None:
        return (
            gpus <= sum(node.gpus for node in nodes)
            and cpu_milli <= sum(node.cpu_milli for node in nodes)
            and memory_bytes <= sum(node.memory_bytes for node in nodes)
        )
    holding = sum(
        node.gpus * job.nodes >= gpus
        and node.cpu_milli * job.nodes >= cpu_milli
        and node.memory_bytes * job.nodes >= memory_bytes
        for node in nodes
    )
    return holding >= job.nodes


def _amounts(job: RecordedJob) -> str:
    gpus, cpus = job.asked_gpu_milli / DEVICE_MILLI, (job.cpu_milli or 0) / 1000
    spread = "" if job.nodes is None else f" on {job.nodes} nodes"
    return f"{gpus:g} GPUs, {cpus:g} CPUs, {job.memory_bytes or 0} bytes{spread}"
