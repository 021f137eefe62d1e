"""What is on which GPUs, from the rows of a log as they come: for fragmentation and the Gantt picture of nodes.

Called by `simulation.compare.contender`, as a reader of `simulation.run`. A gang has its devices from its start until a
node says that nothing of it is left there, or is lost. Nodes are looked at from time to time, at first every `step_ms`;
when there are more looks than a picture can show, every other one is dropped, and they come half as often from then on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.metrics.gpu_fragments import Kinds, Rest, fragmentation, largest_gang, typical_kinds
from ganger.simulation.metrics.run_history import History, Summary, summary
from ganger.simulation.metrics.time_series import heads

LOOKS: Final = 240
SMALL_NODES: Final = 32
SMALL_BARS: Final = 4_000
"""Nodes, and stretches of a job on one of them, that a Gantt picture can show."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A gang on some GPUs of a node: `job` is the number of its submission, from 0."""

    job: int
    node: int
    devices: tuple[int, ...]
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """What was idle and of no use, of all looks at a run. gpus, of_capacity, of_idle: to the typical kinds of what was
    asked for (`fragments`), as GPUs, of all there are, and of those that were idle. idle_of_no_use: of the idle, what
    was of no use to the job that had waited longest; n: looks at which somebody waited and some GPU was idle.
    largest_gang: GPUs of the largest gang that had room, with as many on each of its nodes."""

    gpus: Summary
    of_capacity: Summary
    of_idle: Summary
    idle_of_no_use: Summary
    largest_gang: Summary


@dataclass(slots=True)
class _Held:
    """What a gang has of a node since `from_ms`, by device."""

    from_ms: int
    cpu_milli: int = 0
    devices: dict[int, int] = field(default_factory=dict)


class Occupancy:
    """Folds rows of a run on `nodes`. bars: of a run small enough for a Gantt picture, else None."""

    def __init__(self, nodes: Sequence[Node], step_ms: int) -> None:
        """Nothing has started."""
        self.bars: list[Bar] | None = [] if len(nodes) <= SMALL_NODES else None
        self._nodes = nodes
        self._at = {node.name: at for at, node in enumerate(nodes)}
        self._left = [[DEVICE_MILLI] * node.gpus for node in nodes]
        self._cpu = [node.cpu_milli for node in nodes]
        self._shapes: dict[str, Shape] = {}
        self._number: dict[str, int] = {}
        self._on: dict[int, dict[str, _Held]] = {}
        self._step_ms = max(1, step_ms)
        self._next_ms: int | None = None
        self._looks: list[tuple[int, list[Rest]]] = []

    def take(self, row: e.Stamped) -> None:
        """The next row."""
        while self._next_ms is not None and self._next_ms < row.at_ms:
            self._look(self._next_ms)
        match row.event:
            case e.Submitted(job=job):
                self._next_ms = row.at_ms if self._next_ms is None else self._next_ms
                indices = [] if job.spec.array is None else job.spec.array.indices
                for name in [job.element(index).id for index in indices] or [job.id]:
                    self._number[name], self._shapes[name] = len(self._number), job.spec.shape
            case e.Decided(plan=plan):
                for decision in plan.decisions:
                    if isinstance(decision, Start):
                        self._start(decision, row.at_ms)
            case e.Cleared(gang=gang, nodes=nodes):
                for name in nodes:
                    self._leave(gang, self._at[name], row.at_ms)
            case e.NodeLost(node=name):
                for gang in tuple(self._on.get(self._at[name], ())):
                    self._leave(gang, self._at[name], row.at_ms)
            case _:
                pass

    def idle_of_no_use(self, jobs: Sequence[History]) -> Iterator[tuple[int, float | None]]:
        """At each look (ms, share of what is idle that is of no use); None where nothing is idle or nobody asks.

        Of no use to the job that has waited longest, on the nodes where no part of it fits; where jobs have shares of
        GPUs, to the typical kinds of what is asked for (`fragments`). `jobs`: in the order of their submission.
        """
        shapes = list(self._shapes.values())
        typical = self._typical() if any(shape.has_share for shape in shapes) else None
        of_head = heads(jobs, (at_ms for at_ms, _ in self._looks))
        for (at_ms, rests), head in zip(self._looks, of_head, strict=True):
            kinds = typical if typical is not None else [] if head is None else [(_one_node_of(shapes[head]), 1)]
            yield at_ms, fragmentation(rests, 0, kinds).of_idle if kinds else None

    def fragments(self, jobs: Sequence[History]) -> Fragments:
        """Of all looks. `jobs`: in the order of their submission."""
        typical = self._typical()
        capacity = sum(node.gpus for node in self._nodes) * DEVICE_MILLI
        found = [fragmentation(rests, capacity, typical) for _, rests in self._looks]
        return Fragments(
            gpus=summary(each.gpu_milli / DEVICE_MILLI for each in found),
            of_capacity=_known(each.of_capacity for each in found),
            of_idle=_known(each.of_idle for each in found),
            idle_of_no_use=_known(share for _, share in self.idle_of_no_use(jobs)),
            largest_gang=summary(largest_gang(rests) for _, rests in self._looks),
        )

    def _typical(self) -> Kinds:
        return typical_kinds(_one_node_of(shape) for shape in self._shapes.values())

    def _start(self, start: Start, at_ms: int) -> None:
        shape = self._shapes[start.gang]
        for share in start.shares:
            at = self._at[share.node]
            held = self._on.setdefault(at, {}).setdefault(start.gang, _Held(at_ms))
            part = shape.parts[share.part]
            for device in share.devices:
                milli = part.gpu_milli or DEVICE_MILLI
                held.devices[device] = milli
                self._left[at][device] -= milli
            held.cpu_milli += part.cpu_milli
            self._cpu[at] -= part.cpu_milli

    def _leave(self, gang: str, at: int, at_ms: int) -> None:
        held = self._on.get(at, {}).pop(gang, None)
        if held is None:
            return
        for device, milli in held.devices.items():
            self._left[at][device] += milli
        self._cpu[at] += held.cpu_milli
        if self.bars is not None and at_ms > held.from_ms and held.devices:
            self.bars.append(Bar(self._number[gang], at, tuple(sorted(held.devices)), held.from_ms, at_ms))
            if len(self.bars) > SMALL_BARS:
                self.bars = None

    def _look(self, at_ms: int) -> None:
        rests = [
            Rest(node.gpu_type, cpu_milli, tuple(left))
            for node, cpu_milli, left in zip(self._nodes, self._cpu, self._left, strict=True)
        ]
        self._looks.append((at_ms, rests))
        if len(self._looks) > 2 * LOOKS:
            del self._looks[1::2]
            self._step_ms *= 2
        self._next_ms = self._looks[-1][0] + self._step_ms


def _known(values: Iterable[float | None]) -> Summary:
    return summary(value for value in values if value is not None)


def _one_node_of(shape: Shape) -> Shape:
    """What it needs of a node: of its parts the one with most GPUs."""
    part = max(shape.parts, key=lambda part: part.gpus)
    return Shape(nodes=1, gpus=part.gpus, gpu_type=part.gpu_type, cpu_milli=part.cpu_milli, gpu_milli=part.gpu_milli)
