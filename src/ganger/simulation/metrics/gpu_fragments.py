"""Fragmentation of a cluster: how much of what its GPUs have left is of no use to what is asked for there. Pure.

Called by whoever measures a state, simulated or real. Definition: "Beware of Fragmentation" (Weng et al., ATC 2023). Of
a node and a kind of need all that the node's GPUs have left is fragmented if the kind asks for no GPU, or may not have
the node, or does not fit on it; else what is left of those GPUs that are too small for it. A node's fragmentation is
the mean over the typical kinds, each as often as it is asked for; these are the most frequent, until they cover 95 % of
what is asked for. A kind is CPU, GPUs or a share of one, and type: memory is not looked at.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

TYPICAL: Final = 95
"""Per cent of what is asked for that the typical kinds cover."""
Kinds = Sequence[tuple[Shape, int]]
"""Needs of one node, and how often each is asked for."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What a node has left: gpu_milli of each of its devices."""

    gpu_type: str
    cpu_milli: int
    gpu_milli: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """gpu_milli: expected to be of no use; of_capacity, of_idle: as a part of all there is, and of all that is left;
    None where that is nothing."""

    gpu_milli: float
    of_capacity: float | None
    of_idle: float | None


def typical_kinds(asked: Iterable[Shape]) -> Kinds:
    """Of single nodes that are asked for; of equally frequent kinds the smaller one first."""
    counts = Counter(
        Shape(nodes=1, gpus=each.gpus, gpu_type=each.gpu_type, cpu_milli=each.cpu_milli, gpu_milli=each.gpu_milli)
        for each in asked
    )
    found: list[tuple[Shape, int]] = []
    covered = 0
    for need, times in sorted(counts.items(), key=lambda each: (-each[1], each[0].cpu_milli, str(each[0]))):
        if 100 * covered >= TYPICAL * counts.total():
            break
        found.append((need, times))
        covered += times
    return found


def fragmentation(rests: Iterable[Rest], capacity_milli: int, kinds: Kinds) -> Fragmentation:
    """Of nodes with that much left, whose GPUs are `capacity_milli` together."""
    every = list(rests)
    idle_milli, times = sum(sum(rest.gpu_milli) for rest in every), sum(times for _, times in kinds)
    alike = Counter(every)  # of a thousand nodes most have the same left
    gpu_milli = sum(many * fragmented(rest, kinds) for rest, many in alike.items()) / max(1, times)
    return Fragmentation(
        gpu_milli=gpu_milli,
        of_capacity=gpu_milli / capacity_milli if capacity_milli else None,
        of_idle=gpu_milli / idle_milli if idle_milli else None,
    )


def fragmented(rest: Rest, kinds: Kinds) -> int:
    """Of one node, summed over all times that a kind is asked for."""
    idle_milli = sum(rest.gpu_milli)
    return sum(times * (idle_milli - _useful(rest, need)) for need, times in kinds) if idle_milli else 0


def largest_gang(rests: Iterable[Rest]) -> int:
    """GPUs of the largest gang of whole GPUs that has room there: of one type, with as many on each of its nodes."""
    free: dict[str, list[int]] = {}
    for rest in rests:
        free.setdefault(rest.gpu_type, []).append(sum(left == DEVICE_MILLI for left in rest.gpu_milli))
    return max(
        (gpus * at for most in free.values() for at, gpus in enumerate(sorted(most, reverse=True), 1)), default=0
    )


def _useful(rest: Rest, need: Shape) -> int:
    """Thousandths of GPUs that are of use to a kind."""
    if not need.has_gpus or rest.cpu_milli < need.cpu_milli or need.gpu_type not in (None, rest.gpu_type):
        return 0
    size = need.gpu_milli or DEVICE_MILLI
    enough = [left for left in rest.gpu_milli if left >= size]
    return sum(enough) if len(enough) >= max(1, need.gpus) else 0
