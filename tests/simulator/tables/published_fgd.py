"""The published rule of FGD, pod by pod in plain Python, as the oracle of the placement score.

"Beware of Fragmentation" (Weng et al., ATC 2023), with the details of its experiment that `bench.tables.fgd` lists. A
node's state is what it has left: the oracle shares no code with `ganger.core` but the shapes of pods.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from ganger.model.cluster import Node
from ganger.model.shape import Shape

COVERED = 0.95
WHOLE = 1000


class Left(NamedTuple):
    """GPU type of a node, and what is left of its CPU and of each of its GPUs."""

    gpu_type: str
    cpu_milli: int
    gpu_milli: tuple[int, ...]


def spec(pod: Shape) -> tuple[int, int, str, int]:
    """Return the sort key of equally frequent pods, which the paper leaves open."""
    return pod.gpus, pod.gpu_milli, "|".join((pod.gpu_type or "", *pod.other_types)), pod.cpu_milli


def could_have(pod: Shape, left: Left) -> bool:
    """Return whether a pod may have this type of GPU."""
    return pod.gpu_type is None or left.gpu_type in (pod.gpu_type, *pod.other_types)


def outcomes(pod: Shape, left: Left) -> Iterator[tuple[tuple[int, ...], Left]]:
    """Yield the devices that a pod could get, and what the node has left then; no other whole devices are tried."""
    if left.cpu_milli < pod.cpu_milli or (pod.has_gpus and not could_have(pod, left)):
        return
    free = [device for device, milli in enumerate(left.gpu_milli) if milli == WHOLE]
    choices = [tuple(free[: pod.gpus])] if len(free) >= pod.gpus else []
    if pod.gpu_milli:
        choices = [(device,) for device, milli in enumerate(left.gpu_milli) if milli >= pod.gpu_milli]
    for devices in choices:
        gpu_milli = list(left.gpu_milli)
        for device in devices:
            gpu_milli[device] -= pod.gpu_milli or WHOLE
        yield devices, Left(left.gpu_type, left.cpu_milli - pod.cpu_milli, tuple(gpu_milli))


class PublishedFgd:
    """Nodes by name, onto which pods are placed one after the other."""

    def __init__(self, nodes: Iterable[Node], pods: Sequence[Shape]) -> None:
        """Begin with empty nodes; the typical pods are those of the list."""
        self.left = {
            node.name: Left(node.gpu_type.lower(), node.cpu_milli, (WHOLE,) * node.gpus)
            for node in sorted(nodes, key=lambda node: node.name)
        }
        self.typical: list[tuple[Shape, int]] = []
        for pod, count in sorted(Counter(pods).items(), key=lambda item: (-item[1], *spec(item[0]))):
            if sum(times for _, times in self.typical) >= COVERED * len(pods):
                break
            self.typical.append((pod, count))
        self.fragments, self.best = cache(self.fragments), cache(self.best)  # type: ignore[method-assign]

    def place(self, pod: Shape) -> tuple[str, tuple[int, ...]] | None:
        """Place a pod on the first node with the best score; return its name and the devices, or None."""
        scores = ((self.best(pod, left), name) for name, left in self.left.items())
        possible = [(*found, name) for found, name in scores if found is not None]
        if not possible:
            return None
        _, devices, left, name = max(possible, key=lambda choice: choice[0])
        self.left[name] = left
        return name, devices

    def best(self, pod: Shape, left: Left) -> tuple[int, tuple[int, ...], Left] | None:
        """Return the best score of a pod on a node, the devices of the first choice that has it, and what is left."""
        scores = [(self.score(left, after), devices, after) for devices, after in outcomes(pod, left)]
        return max(scores, key=lambda choice: choice[0], default=None)

    def score(self, before: Left, after: Left) -> int:
        """Return the score from 0 to 100 of a change of fragments: 50 for none."""
        added = (self.fragments(after) - self.fragments(before)) / sum(times for _, times in self.typical)
        return int(100 / (1 + math.exp(added / WHOLE)))

    def fragments(self, left: Left) -> int:
        """Return the thousandths of GPUs that a typical pod cannot use, summed over the requests."""
        return sum(times * (sum(left.gpu_milli) - self._useful(pod, left)) for pod, times in self.typical)

    def _useful(self, pod: Shape, left: Left) -> int:
        if not pod.has_gpus or not any(outcomes(pod, left)):
            return 0
        return sum(milli for milli in left.gpu_milli if milli >= (pod.gpu_milli or WHOLE))
