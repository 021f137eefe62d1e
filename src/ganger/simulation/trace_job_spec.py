"""The job specification of a recorded job.

A trace of gangs often says how many GPUs a job has, but not on how many nodes. Such a gang is on one node, if one has
as many GPUs; a larger one is on whole nodes and, with the remaining GPUs, on one more that has room for them, as tables
of published simulators have it (Muri, Tiresias). CPUs and memory are divided in proportion to GPUs. A job of CPUs alone
is spread in the same way by its CPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources, Role
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Limits, Retry
from ganger.model.queue import DEFAULT
from ganger.simulation.cpu_layout import CpuLayouts
from ganger.simulation.traces.trace import RecordedJob

REMAINDER_ROLE: Final = "rest"
"""Role of the task with the GPUs or CPUs that remain when the whole nodes are full."""
ORIGIN: Final = Origin(directory="/")
MAX_RETRIES: Final = 1_000
"""More than a job of a trace can use: it is never given up because of its nodes."""


@dataclass(slots=True)
class TraceJobBuilder:
    """A builder of jobs for one cluster, which shares the specifications of equal jobs.

    gpus_per_node: most GPUs of a node, by their type
    cpu_layouts: the spread of jobs without GPUs
    notice_ms: time that a job has to save its work before it is stopped
    queues: by a queue of the trace, the one in which its jobs are; a queue that is not in it: the default queue
    """

    gpus_per_node: dict[str, int]
    cpu_layouts: CpuLayouts
    notice_ms: int = 0
    queues: Mapping[str, str] = field(default_factory=dict)
    _specs: dict[tuple[object, ...], JobSpec] = field(default_factory=dict)

    def job(self, recorded: RecordedJob, limit_ms: int | None) -> Job:
        """Return the job as it is submitted."""
        queue = self.queues.get(recorded.queue, DEFAULT)
        key = (
            *(recorded.gpus, recorded.gpu_milli, recorded.nodes, recorded.cpu_milli, recorded.memory_bytes),
            *(recorded.gpu_types, recorded.max_gpus, recorded.priority, limit_ms, queue),
        )
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = self._spec(recorded, limit_ms, queue)
        return Job(id=recorded.name, user=tenant_of(recorded), spec=spec, origin=ORIGIN)

    def sizes(self, recorded: RecordedJob) -> range:
        """Return the numbers of nodes that an elastic job can run on; a job with a remainder is rigid."""
        nodes, part, rest = self._layout(recorded)
        most = nodes if rest or recorded.max_gpus is None else recorded.max_gpus // part
        return range(nodes, most + 1)

    def _spec(self, recorded: RecordedJob, limit_ms: int | None, queue: str) -> JobSpec:
        nodes, part, rest = self._layout(recorded)
        sizes = self.sizes(recorded)
        total = nodes * part + rest
        gpu_type, *other_types = recorded.gpu_types or (None,)

        def resources(part: int) -> Resources:
            """Return the resources of a node with a part of the job's GPUs, or of its CPUs."""
            request = GpuRequest(
                count=part if recorded.gpus else 0,
                type=gpu_type,
                other_types=tuple(filter(None, other_types)),
                milli=recorded.gpu_milli,
            )
            share, shares = (part, total) if total else (1, nodes)
            cpu_milli, memory_bytes = (recorded.cpu_milli or 0) * share, (recorded.memory_bytes or 0) * share
            return Resources(gpu=request, cpu_milli=-(-cpu_milli // shares), memory_bytes=-(-memory_bytes // shares))

        return JobSpec(
            run="recorded",
            queue=queue,
            nodes=nodes,
            max_nodes=sizes[-1] if len(sizes) > 1 else None,
            nproc_per_node=1,
            resources=resources(part),
            roles={REMAINDER_ROLE: Role(resources=resources(rest))} if rest else {},
            priority=recorded.priority or 0,
            checkpoint=Checkpoint(grace_ms=self.notice_ms) if self.notice_ms else None,
            retry=Retry(max=MAX_RETRIES),
            limits=Limits(time_ms=limit_ms),
        )

    def _layout(self, recorded: RecordedJob) -> tuple[int, int, int]:
        """Return the number of nodes, the GPUs on each of them, and the GPUs on one more; without GPUs, the CPUs."""
        if recorded.nodes is not None:
            return recorded.nodes, recorded.gpus // recorded.nodes, 0
        if not recorded.asked_gpu_milli:
            layout = self.cpu_layouts.layout(recorded.cpu_milli or 0, recorded.memory_bytes or 0)
            return layout or (1, recorded.cpu_milli or 0, 0)
        sizes = [self.gpus_per_node.get(gpu_type, 0) for gpu_type in recorded.gpu_types]
        largest = max(sizes or self.gpus_per_node.values(), default=0)
        if recorded.gpus <= largest:
            return 1, recorded.gpus, 0
        return recorded.gpus // largest, largest, recorded.gpus % largest


def job_builder_for(
    nodes: Sequence[Node], notice_ms: int = 0, queues: Mapping[str, str] = MappingProxyType({})
) -> TraceJobBuilder:
    """Return a builder of jobs for these nodes and queues, which get so much notice before they are stopped."""
    gpus_per_node: dict[str, int] = {}
    for node in nodes:
        gpus_per_node[node.gpu_type] = max(node.gpus, gpus_per_node.get(node.gpu_type, 0))
    return TraceJobBuilder(gpus_per_node, CpuLayouts(nodes), notice_ms, queues)


def tenant_of(recorded: RecordedJob) -> str:
    """Return the tenant of a job: its user, or else its queue."""
    return recorded.user or recorded.queue or "trace"
