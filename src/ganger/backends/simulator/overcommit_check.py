"""A check that no device has two users, and no node more work than CPUs and memory for it.

It knows nothing of how a decision was made. Only an attempt that begins is checked: all others were checked when they
began.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import Job
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

Allocation = tuple[tuple[int, ...], Shape]
"""Devices of a node, and what is used of each."""


class Impossible(AssertionError):
    """A decision that no cluster could carry out: a device used twice, two attempts of a gang at once."""


class OvercommitCheck:
    """The allocations of all nodes, checked whenever an attempt begins."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Begin with empty nodes."""
        self._nodes = nodes
        self._allocations: dict[str, dict[str, list[Allocation]]] = {name: {} for name in nodes}
        self._users: dict[tuple[str, int], list[tuple[str, Shape]]] = {}
        self._used: Counter[tuple[str, str]] = Counter()

    def gangs_on(self, node: str) -> tuple[str, ...]:
        """Return the gangs with an allocation on a node, in the order in which they began."""
        return tuple(self._allocations[node])

    def begin(self, start: Start, job: Job, nodes: Iterable[str]) -> None:
        """Begin an attempt on `nodes`, all or some of its start. Impossible: they have no room for it."""
        names, parts = dict.fromkeys(nodes), job.spec.shape.parts
        for share in start.shares:
            if share.node in names:
                self._allocate(start.gang, share.node, (share.devices, parts[share.part]))
        for name in names:
            self._check(start.gang, self._nodes[name])

    def leave(self, gang: str, node: str) -> None:
        """Free the allocations of a gang on a node."""
        for devices, part in self._allocations[node].pop(gang, ()):
            for device in devices:
                users = self._users[node, device]
                users.remove((gang, part))
                if not users:
                    del self._users[node, device]
            self._count(node, part, -1)

    def _allocate(self, gang: str, node: str, allocation: Allocation) -> None:
        self._allocations[node].setdefault(gang, []).append(allocation)
        devices, part = allocation
        for device in devices:
            self._users.setdefault((node, device), []).append((gang, part))
        self._count(node, part, +1)

    def _count(self, node: str, part: Shape, sign: int) -> None:
        self._used[node, "cpu"] += sign * part.cpu_milli
        self._used[node, "memory"] += sign * part.memory_bytes

    def _check(self, gang: str, node: Node) -> None:
        for devices, part in self._allocations[node.name][gang]:
            for device in devices:
                if device not in range(node.gpus):
                    raise Impossible(f"{node.name} has no device {device}, which {gang} is to use")
                if _is_overcommitted([shape for _, shape in self._users[node.name, device]], node):
                    users = [name for name, _ in self._users[node.name, device]]
                    raise Impossible(f"device {device} of {node.name} is used twice, or more than all of it: {users}")
            if part.devices != len(devices):
                raise Impossible(f"{gang} has {len(devices)} devices of {node.name} for {part}")
        if self._used[node.name, "cpu"] > node.cpu_milli:
            raise Impossible(f"{node.name} has too few CPUs for {self.gangs_on(node.name)}")
        if self._used[node.name, "memory"] > node.memory_bytes:
            raise Impossible(f"{node.name} has too little memory for {self.gangs_on(node.name)}")


def _is_overcommitted(parts: list[Shape], node: Node) -> bool:
    """Return whether these users need more than one device of a node has."""
    if len(parts) == 1 and parts[0].gpus:
        return False
    milli, memory = sum(part.gpu_milli for part in parts), sum(part.gpu_memory_bytes for part in parts)
    return any(part.gpus for part in parts) or milli > DEVICE_MILLI or memory > node.gpu_memory_bytes
