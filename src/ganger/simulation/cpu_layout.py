"""The nodes of a recorded job that asks for CPUs alone, of which the trace does not say on how many nodes they were."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ganger.model.cluster import Node

CPU_MILLI: Final = 1_000


class CpuLayouts:
    """The CPUs and memory of a cluster's nodes, and how jobs are spread over them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Count equal nodes, of which most clusters have few kinds."""
        self._kinds = Counter((node.cpu_milli, node.memory_bytes) for node in nodes)

    def layout(self, cpu_milli: int, memory_bytes: int) -> tuple[int, int, int] | None:
        """Return the number of nodes, the CPUs on each of them, and the CPUs on one more; None if a job cannot fit.

        A job is on one node if one can hold it; else on full nodes and, with the CPUs that remain, on one more. Memory
        is divided in proportion. Where nodes differ, they are the largest of which there are enough.
        """
        nodes = Counter[int]()
        for (node_cpu_milli, node_bytes), count in self._kinds.items():
            nodes[_usable_milli(node_cpu_milli, node_bytes, cpu_milli, memory_bytes)] += count
        if max(nodes, default=0) >= cpu_milli and any(size >= memory_bytes for _, size in self._kinds):
            return 1, cpu_milli, 0
        for part in sorted(nodes, reverse=True):
            if not part:
                break
            full, rest = divmod(cpu_milli, part)
            if _count(nodes, part) >= full and (not rest or _count(nodes, rest) > full):
                return full, part, rest
        return None


def _usable_milli(node_cpu_milli: int, node_bytes: int, cpu_milli: int, memory_bytes: int) -> int:
    """Return the part of a job's CPUs that a node can hold with its part of the memory: whole CPUs if it is not all."""
    usable = min(node_cpu_milli, node_bytes * cpu_milli // memory_bytes) if memory_bytes else node_cpu_milli
    return cpu_milli if usable >= cpu_milli else usable // CPU_MILLI * CPU_MILLI


def _count(nodes: Counter[int], part: int) -> int:
    """Return the number of nodes that can hold a part."""
    return sum(count for usable, count in nodes.items() if usable >= part)
