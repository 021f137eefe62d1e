"""Whether what really runs could run: no device has two users, and no node more work than CPUs and memory for it.

Kept by `backends.simulator.virtual_cluster`, which tells it what begins and what leaves. It knows nothing of how
anybody came to decide so, and looks at what begins only: everything else was looked at when it began."""

from collections import Counter
from collections.abc import Iterable, Mapping

from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import Job
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

Held = tuple[tuple[int, ...], Shape]
"""Devices of a node, and what of them is used."""


class Impossible(AssertionError):
    """The world was told to do what cannot be done: use a device twice, run two generations of a gang at once."""


class Witness:
    """Who is on which node, with which devices."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Nothing runs."""
        self._nodes = nodes
        self._here: dict[str, dict[str, list[Held]]] = {name: {} for name in nodes}
        self._users: dict[tuple[str, int], list[tuple[str, Shape]]] = {}
        self._used: Counter[tuple[str, str]] = Counter()

    def on(self, node: str) -> tuple[str, ...]:
        """Gangs that have something there, in the order in which they began."""
        return tuple(self._here[node])

    def begin(self, start: Start, job: Job, nodes: Iterable[str]) -> None:
        """A generation begins on these of its nodes. Impossible if it cannot be there."""
        there, parts = dict.fromkeys(nodes), job.spec.shape.parts
        for share in start.shares:
            if share.node in there:
                self._take(start.gang, share.node, (share.devices, parts[share.part]))
        for node in there:
            self._check(start.gang, self._nodes[node])

    def leave(self, gang: str, node: str) -> None:
        """Nothing of a gang is there any more."""
        for devices, part in self._here[node].pop(gang, ()):
            for device in devices:
                users = self._users[node, device]
                users.remove((gang, part))
                if not users:
                    del self._users[node, device]
            self._count(node, part, -1)

    def _take(self, gang: str, node: str, held: Held) -> None:
        self._here[node].setdefault(gang, []).append(held)
        for device in held[0]:
            self._users.setdefault((node, device), []).append((gang, held[1]))
        self._count(node, held[1], +1)

    def _count(self, node: str, part: Shape, sign: int) -> None:
        self._used[node, "cpu"] += sign * part.cpu_milli
        self._used[node, "memory"] += sign * part.memory_bytes

    def _check(self, gang: str, node: Node) -> None:
        for devices, part in self._here[node.name][gang]:
            for device in devices:
                if device not in range(node.gpus):
                    raise Impossible(f"device {device} of {node.name} is not there: {gang}")
                if _is_too_much([of for _, of in self._users[node.name, device]], node):
                    users = [name for name, _ in self._users[node.name, device]]
                    raise Impossible(f"device {device} of {node.name} is used twice, or more than all of it: {users}")
            if part.devices != len(devices):
                raise Impossible(f"{gang} has {len(devices)} devices of {node.name} for {part}")
        if self._used[node.name, "cpu"] > node.cpu_milli:
            raise Impossible(f"{node.name} has too few CPUs for {self.on(node.name)}")
        if self._used[node.name, "memory"] > node.memory_bytes:
            raise Impossible(f"{node.name} has too little memory for {self.on(node.name)}")


def _is_too_much(parts: list[Shape], node: Node) -> bool:
    """Whether one device of a node cannot be had by all of these at once."""
    if len(parts) == 1 and parts[0].gpus:
        return False
    milli, memory = sum(part.gpu_milli for part in parts), sum(part.gpu_memory_bytes for part in parts)
    return any(part.gpus for part in parts) or milli > DEVICE_MILLI or memory > node.gpu_memory_bytes
