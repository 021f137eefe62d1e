"""Fragmentation of a cluster: how much of its idle GPUs is of no use to what is typically asked for.

Definition: "Beware of Fragmentation" (Weng et al., ATC 2023). For a node and a task, all that the node's GPUs have left
is fragmented if the task asks for no GPU, or may not have the node, or does not fit on it; otherwise what is left of
those GPUs that are too small for it. A node's fragmentation is the mean over the typical tasks, weighted by how often
each is asked for; these are the most frequent ones that cover 95 % of what is asked for. A task is CPU, GPUs or a share
of one, and GPU type; memory is not looked at.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

TYPICAL_PERCENT: Final = 95
"""Per cent of what is asked for that the typical tasks cover."""
TaskCounts = Sequence[tuple[Shape, int]]
"""Tasks on one node, and how often each is asked for."""


@dataclass(frozen=True, slots=True)
class IdleResources:
    """The idle resources of a node. `gpu_milli`: of each of its devices."""

    gpu_type: str
    cpu_milli: int
    gpu_milli: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The fragmentation of a cluster.

    gpu_milli: expected amount that is of no use
    of_capacity: its share of all GPUs; None without any
    of_idle: its share of the idle GPUs; None without any
    """

    gpu_milli: float
    of_capacity: float | None
    of_idle: float | None


def typical_tasks(shapes: Iterable[Shape]) -> TaskCounts:
    """Return the typical tasks of these, the most frequent first; of equally frequent ones the smaller."""
    counts = Counter(
        Shape(
            nodes=1,
            gpus=shape.gpus,
            gpu_type=shape.gpu_type,
            other_types=shape.other_types,
            cpu_milli=shape.cpu_milli,
            gpu_milli=shape.gpu_milli,
        )
        for shape in shapes
    )
    typical: list[tuple[Shape, int]] = []
    covered = 0
    for task, count in sorted(counts.items(), key=lambda item: (-item[1], item[0].cpu_milli, str(item[0]))):
        if 100 * covered >= TYPICAL_PERCENT * counts.total():
            break
        typical.append((task, count))
        covered += count
    return typical


def fragmentation(nodes: Iterable[IdleResources], capacity_milli: int, tasks: TaskCounts) -> Fragmentation:
    """Return the fragmentation of nodes whose GPUs are `capacity_milli` together."""
    all_nodes = list(nodes)
    idle_milli, task_count = sum(sum(node.gpu_milli) for node in all_nodes), sum(count for _, count in tasks)
    distinct = Counter(all_nodes)  # of a thousand nodes most have the same left
    fragmented = sum(count * fragmented_milli(node, tasks) for node, count in distinct.items())
    gpu_milli = fragmented / max(1, task_count)
    return Fragmentation(
        gpu_milli=gpu_milli,
        of_capacity=gpu_milli / capacity_milli if capacity_milli else None,
        of_idle=gpu_milli / idle_milli if idle_milli else None,
    )


def fragmented_milli(node: IdleResources, tasks: TaskCounts) -> int:
    """Return the fragmented amount of a node, summed over all times that a task is asked for."""
    idle_milli = sum(node.gpu_milli)
    return sum(count * (idle_milli - _useful_milli(node, task)) for task, count in tasks) if idle_milli else 0


def largest_gang(nodes: Iterable[IdleResources]) -> int:
    """Return the GPUs of the largest gang of whole GPUs that fits: of one type, with as many on each of its nodes."""
    idle_gpus: dict[str, list[int]] = {}
    for node in nodes:
        idle_gpus.setdefault(node.gpu_type, []).append(sum(milli == DEVICE_MILLI for milli in node.gpu_milli))
    return max(
        (
            gpus * node_count
            for gpus_by_node in idle_gpus.values()
            for node_count, gpus in enumerate(sorted(gpus_by_node, reverse=True), 1)
        ),
        default=0,
    )


def _useful_milli(node: IdleResources, task: Shape) -> int:
    """Return the thousandths of GPUs that are of use to a task."""
    is_of_type = task.gpu_type is None or node.gpu_type in task.gpu_types
    if not task.has_gpus or node.cpu_milli < task.cpu_milli or not is_of_type:
        return 0
    size = task.gpu_milli or DEVICE_MILLI
    large_enough = [milli for milli in node.gpu_milli if milli >= size]
    return sum(large_enough) if len(large_enough) >= max(1, task.gpus) else 0
