"""What a recorded job asks a cluster for: a trace of gangs often says how many GPUs, and not on how many nodes.

Called by `simulation.run`. Such a gang is on one node, if one has as many GPUs; a larger one is on whole nodes and,
with what is left over, on one more that has room for it, as tables of the field have it (Muri, Tiresias). What it asks
for besides is shared out by GPUs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, Job, JobSpec, Limits, Origin, Resources, Retry, Role
from ganger.simulation.traces.trace import RecordedJob

REST: Final = "rest"
"""The role of what is left over when the whole nodes are full."""
ORIGIN: Final = Origin(directory="/")
ALWAYS: Final = 1_000
"""Attempts: a job of a trace is never given up for what happens to its nodes."""


@dataclass(slots=True)
class Gangs:
    """Jobs for a cluster whose nodes have so many GPUs, by type: the most, where they differ."""

    gpus_a_node: dict[str, int]
    _specs: dict[tuple[object, ...], JobSpec] = field(default_factory=dict)

    def job(self, recorded: RecordedJob, limit_ms: int | None) -> Job:
        """The job as it is submitted."""
        asked = (
            *(recorded.gpus, recorded.gpu_milli, recorded.nodes, recorded.cpu_milli, recorded.memory_bytes),
            *(recorded.gpu_types, recorded.priority, limit_ms),
        )
        spec = self._specs.get(asked)
        if spec is None:
            spec = self._specs[asked] = self._spec(recorded, limit_ms)
        return Job(id=recorded.name, user=tenant(recorded), spec=spec, origin=ORIGIN)

    def _spec(self, recorded: RecordedJob, limit_ms: int | None) -> JobSpec:
        nodes, gpus, rest = self._spread(recorded)
        milli, whole = recorded.gpu_milli, nodes * gpus + rest
        first, *others = recorded.gpu_types or (None,)

        def part(gpus: int, of: int) -> Resources:
            """What a node has, that has `of` parts of `whole`."""
            gpu = GpuRequest(count=gpus, type=first, other_types=tuple(filter(None, others)), milli=milli)
            share, all_of = (of, whole) if whole else (1, nodes)
            cpu_milli, memory_bytes = (recorded.cpu_milli or 0) * share, (recorded.memory_bytes or 0) * share
            return Resources(gpu=gpu, cpu_milli=-(-cpu_milli // all_of), memory_bytes=-(-memory_bytes // all_of))

        return JobSpec(
            run="recorded",
            nodes=nodes,
            nproc_per_node=1,
            resources=part(gpus, gpus),
            roles={REST: Role(resources=part(rest, rest))} if rest else {},
            priority=recorded.priority or 0,
            retry=Retry(max=ALWAYS),
            limits=Limits(time_ms=limit_ms),
        )

    def _spread(self, recorded: RecordedJob) -> tuple[int, int, int]:
        """Nodes, GPUs on each of them, and GPUs on one more."""
        if recorded.nodes is not None:
            return recorded.nodes, recorded.gpus // recorded.nodes, 0
        here = [self.gpus_a_node.get(kind, 0) for kind in recorded.gpu_types] or [*self.gpus_a_node.values()]
        most = max(here, default=0)
        if recorded.gpus <= most:
            return 1, recorded.gpus, 0
        return recorded.gpus // most, most, recorded.gpus % most


def gangs_for(nodes: Iterable[Node]) -> Gangs:
    """Jobs for these nodes."""
    most: dict[str, int] = {}
    for node in nodes:
        most[node.gpu_type] = max(node.gpus, most.get(node.gpu_type, 0))
    return Gangs(most)


def tenant(recorded: RecordedJob) -> str:
    """Whose job it is: its user, or else its queue."""
    return recorded.user or recorded.queue or "trace"
