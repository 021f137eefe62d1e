"""The occupancy of each GPU, folded from the rows of a log: for fragmentation and the Gantt chart of nodes.

A gang has its devices from its start until a node has no processes of it any more, or is lost. Nodes are sampled every
`step_ms` until the last row that is about a job; when there are more samples than a picture can show, every other one
is dropped and the interval doubles. A node that is lost or cordoned, as spares are, has no idle resources: nothing can
start there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import Job
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.metrics.gpu_fragmentation import (
    IdleResources,
    TaskCounts,
    fragmentation,
    largest_gang,
    typical_tasks,
)
from ganger.simulation.metrics.node_downtime import NodeDowntime
from ganger.simulation.metrics.run_history import JobHistory, Summary, summary
from ganger.simulation.metrics.time_series import longest_waiting

MAX_SAMPLES: Final = 480
CHART_NODES: Final = 32
CHART_BARS: Final = 4_000
"""Nodes and bars that a Gantt chart can show."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A gang on some GPUs of a node. `job`: number of its submission, from 0."""

    job: int
    node: int
    devices: tuple[int, ...]
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationFigures:
    """Idle GPUs that were of no use, over all samples of a run.

    gpus, of_capacity, of_idle: of no use to typical tasks (`gpu_fragmentation`), as GPUs and as shares
    idle_of_no_use: share of idle GPUs that was of no use to the job that had waited longest; `n`: samples at which a
        job waited and a GPU was idle
    largest_gang: GPUs of the largest gang that had room, with as many on each of its nodes
    """

    gpus: Summary
    of_capacity: Summary
    of_idle: Summary
    idle_of_no_use: Summary
    largest_gang: Summary


@dataclass(slots=True)
class _NodeAllocation:
    """The allocation of a gang on a node. `devices`: thousandths of each."""

    from_ms: int
    cpu_milli: int = 0
    devices: dict[int, int] = field(default_factory=dict)


class Occupancy:
    """A reader of the rows of a run.

    bars: None if the run is too large for a Gantt chart
    downtime: when nodes took no jobs
    samples: (ms, what each node that can be used has idle)
    """

    def __init__(
        self, nodes: Sequence[Node], step_ms: int, failed_ms: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Begin with idle nodes. `failed_ms`: as of `NodeDowntime`."""
        self.bars: list[Bar] | None = [] if len(nodes) <= CHART_NODES else None
        self.downtime = NodeDowntime(nodes, failed_ms)
        self._nodes = nodes
        self._node_index = {node.name: index for index, node in enumerate(nodes)}
        self._idle_milli = [[DEVICE_MILLI] * node.gpus for node in nodes]
        self._idle_cpu_milli = [node.cpu_milli for node in nodes]
        self._shapes: dict[str, Shape] = {}
        self._job_number: dict[str, int] = {}
        self._allocations: dict[int, dict[str, _NodeAllocation]] = {}
        self._lost: set[str] = set()
        self._cordoned: set[str] = set()
        self._node_rows: list[e.Stamped] = []
        """Rows about nodes since the last one about a job: they count once another about a job follows."""
        self._step_ms = max(1, step_ms)
        self._next_sample_ms: int | None = None
        self.samples: list[tuple[int, list[IdleResources]]] = []

    def fold(self, row: e.Stamped) -> None:
        """Fold the next row."""
        self.downtime.fold(row)
        match row.event:
            case e.Submitted(job=job):
                self._submit(job, row.at_ms)
            case e.Decided(plan=plan):
                for decision in plan.decisions:
                    if isinstance(decision, Start):
                        self._sample_until(row.at_ms)
                        self._allocate(decision, row.at_ms)
            case e.Cleared(gang=gang, nodes=nodes):
                self._sample_until(row.at_ms)
                for name in nodes:
                    self._free(gang, self._node_index[name], row.at_ms)
            case e.NodeLost(node=name) if gangs := tuple(self._allocations.get(self._node_index[name], ())):
                self._sample_until(row.at_ms)
                for gang in gangs:
                    self._free(gang, self._node_index[name], row.at_ms)
                self._lost.add(name)
            case e.NodeLost() | e.NodeReturned() | e.NodesListed() | e.NodeCordoned() | e.NodeDrained():
                self._node_rows.append(row)
            case e.NodeUncordoned():
                self._node_rows.append(row)
            case _:
                pass

    def idle_of_no_use(self, jobs: Sequence[JobHistory]) -> Iterator[tuple[int, float | None]]:
        """Yield (ms, share of idle GPUs that is of no use) of each sample; None if no GPU is idle or no job waits.

        A GPU is of no use if no part of the job that has waited longest fits on its node. If jobs have shares of GPUs,
        typical tasks (`gpu_fragmentation`) count instead.

        jobs: in order of submission
        """
        shapes = list(self._shapes.values())
        typical = self._typical_tasks() if any(shape.has_share for shape in shapes) else None
        waiting = longest_waiting(jobs, (at_ms for at_ms, _ in self.samples))
        for (at_ms, nodes), job in zip(self.samples, waiting, strict=True):
            of_job = [] if job is None else [(_largest_part(shapes[job]), 1)]
            tasks = of_job if typical is None else typical
            yield at_ms, fragmentation(nodes, 0, tasks).of_idle if tasks else None

    def fragmentation_figures(self, jobs: Sequence[JobHistory]) -> FragmentationFigures:
        """Return the figures over all samples. `jobs`: in order of submission."""
        typical = self._typical_tasks()
        capacity_milli = sum(node.gpus for node in self._nodes) * DEVICE_MILLI
        samples = [fragmentation(nodes, capacity_milli, typical) for _, nodes in self.samples]
        return FragmentationFigures(
            gpus=summary(sample.gpu_milli / DEVICE_MILLI for sample in samples),
            of_capacity=_summary_of_known(sample.of_capacity for sample in samples),
            of_idle=_summary_of_known(sample.of_idle for sample in samples),
            idle_of_no_use=_summary_of_known(share for _, share in self.idle_of_no_use(jobs)),
            largest_gang=summary(largest_gang(nodes) for _, nodes in self.samples),
        )

    def _submit(self, job: Job, at_ms: int) -> None:
        self._next_sample_ms = at_ms if self._next_sample_ms is None else self._next_sample_ms
        self._sample_until(at_ms)
        indices = [] if job.spec.array is None else job.spec.array.indices
        for name in [job.element(index).id for index in indices] or [job.id]:
            self._job_number[name], self._shapes[name] = len(self._job_number), job.spec.shape

    def _sample_until(self, at_ms: int) -> None:
        """Take the samples that are due before a row about a job, with the nodes that were there at each."""
        for row in self._node_rows:
            self._sample_before(row.at_ms)
            self._fold_node_row(row.event)
        self._node_rows.clear()
        self._sample_before(at_ms)

    def _sample_before(self, at_ms: int) -> None:
        while self._next_sample_ms is not None and self._next_sample_ms < at_ms:
            self._sample(self._next_sample_ms)

    def _fold_node_row(self, event: e.Event) -> None:
        match event:
            case e.NodeLost(node=name):
                self._lost.add(name)
            case e.NodeReturned(node=name):
                self._lost.discard(name)
            case e.NodesListed(nodes=nodes, lost=lost):
                self._lost = {*self._node_index} - {node.name for node in nodes} | {*lost}
            case e.NodeCordoned(node=name) | e.NodeDrained(node=name):
                self._cordoned.add(name)
            case e.NodeUncordoned(node=name):
                self._cordoned.discard(name)
            case _:
                pass

    def _typical_tasks(self) -> TaskCounts:
        return typical_tasks(_largest_part(shape) for shape in self._shapes.values())

    def _allocate(self, start: Start, at_ms: int) -> None:
        shape = self._shapes[start.gang]
        for share in start.shares:
            node = self._node_index[share.node]
            allocation = self._allocations.setdefault(node, {}).setdefault(start.gang, _NodeAllocation(at_ms))
            part = shape.parts[share.part]
            for device in share.devices:
                milli = part.gpu_milli or DEVICE_MILLI
                allocation.devices[device] = milli
                self._idle_milli[node][device] -= milli
            allocation.cpu_milli += part.cpu_milli
            self._idle_cpu_milli[node] -= part.cpu_milli

    def _free(self, gang: str, node: int, at_ms: int) -> None:
        allocation = self._allocations.get(node, {}).pop(gang, None)
        if allocation is None:
            return
        for device, milli in allocation.devices.items():
            self._idle_milli[node][device] += milli
        self._idle_cpu_milli[node] += allocation.cpu_milli
        if self.bars is not None and at_ms > allocation.from_ms and allocation.devices:
            devices = tuple(sorted(allocation.devices))
            self.bars.append(Bar(self._job_number[gang], node, devices, allocation.from_ms, at_ms))
            if len(self.bars) > CHART_BARS:
                self.bars = None

    def _sample(self, at_ms: int) -> None:
        nodes = [
            IdleResources(node.gpu_type, cpu_milli, tuple(gpu_milli))
            for node, cpu_milli, gpu_milli in zip(self._nodes, self._idle_cpu_milli, self._idle_milli, strict=True)
            if node.name not in self._lost and node.name not in self._cordoned
        ]
        self.samples.append((at_ms, nodes))
        if len(self.samples) > MAX_SAMPLES:
            del self.samples[1::2]
            self._step_ms *= 2
        self._next_sample_ms = self.samples[-1][0] + self._step_ms


def _summary_of_known(values: Iterable[float | None]) -> Summary:
    return summary(value for value in values if value is not None)


def _largest_part(shape: Shape) -> Shape:
    """Return the part of a job with most GPUs, on one node."""
    part = max(shape.parts, key=lambda part: part.gpus)
    return Shape(nodes=1, gpus=part.gpus, gpu_type=part.gpu_type, cpu_milli=part.cpu_milli, gpu_milli=part.gpu_milli)
