"""Share of the GPUs' free capacity that is useless for the jobs that are usual here.

Idea: what is left of a device is a fragment for a demand that is larger than it; and everything left on a node is a
    fragment where the demand does not fit on the node at all (too few such devices, too little CPU or memory, wrong
    type), or needs no GPU. The expected fragment of a node is the sum over the typical demands, weighted by how often
    each is requested. A placement that adds least to it keeps the cluster usable: fragmentation gradient descent (Weng
    et al., ATC 2023). Here on integers: sums are weighted by counts instead of averaged.

`Fragments` computes this for many nodes and demands at once: per node it sorts the devices into buckets by the distinct
demand sizes, and suffix sums over the buckets give, for each size, how many devices have at least that much left and
how much these have together. Demands that differ only in CPU and GPU type form one class: a table says how often those
of a class are made that a node has the CPU and the type for. So the cost grows with the classes, not with the demands.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

Floats = NDArray[np.float64]

COVERED_PERCENT: Final = 95
"""Per cent of all requests that the typical demands cover, the most frequent first."""
MAX_CELLS: Final = 1 << 20
"""The maximum number of nodes times classes of demands that are computed at once, so that arrays stay small."""


class DemandKind(NamedTuple):
    """Request for what one node must provide, regardless of its place, and how often it is made."""

    need: Shape
    times: int


def demand_kinds(shapes: Iterable[tuple[Shape, int]]) -> tuple[DemandKind, ...]:
    """Return the typical demands of gangs of these shapes, each with the number of gangs that have it."""
    counts: dict[Shape, int] = {}
    for shape, count in shapes:
        for part in shape.parts:
            need = Shape(
                nodes=1,
                gpus=part.gpus,
                gpu_type=part.gpu_type,
                other_types=part.other_types,
                cpu_milli=part.cpu_milli,
                memory_bytes=part.memory_bytes,
                gpu_milli=part.gpu_milli,
            )
            counts[need] = counts.get(need, 0) + count * part.nodes
    return most_frequent(counts)


def most_frequent(counts: Mapping[Shape, int]) -> tuple[DemandKind, ...]:
    """Return the most frequent demands that together cover nearly all requests."""
    kinds: list[DemandKind] = []
    uncovered = -(-COVERED_PERCENT * sum(counts.values()) // 100)
    for need, times in sorted(counts.items(), key=lambda item: (-item[1], *_size(item[0]))):
        if uncovered <= 0:
            break
        kinds.append(DemandKind(need, times))
        uncovered -= times
    return tuple(kinds)


def _size(need: Shape) -> tuple[int, int, str, int, int]:
    """Return a sort key that differs for different demands; any GPU type comes before all others."""
    return need.gpus, need.gpu_milli, "|".join(filter(None, need.gpu_types)), need.cpu_milli, need.memory_bytes


class Fragments:
    """Typical demands as arrays, for nodes in any state.

    kinds: the demands.
    times: the requests of all of them together.
    """

    def __init__(self, kinds: tuple[DemandKind, ...], gpu_types: Sequence[str]) -> None:
        """Prepare the arrays. gpu_types: of the N nodes."""
        self.kinds = kinds
        type_index = {gpu_type: index for index, gpu_type in enumerate(dict.fromkeys(gpu_types))}
        self._type_of = np.array([type_index[gpu_type] for gpu_type in gpu_types], dtype=np.int64)
        useful = [kind for kind in kinds if kind.need.has_gpus]
        classes = list(dict.fromkeys(_class_of(need) for need, _ in useful))
        self.times = sum(kind.times for kind in kinds)
        self._cpu_milli = np.unique(np.array([need.cpu_milli for need, _ in useful], dtype=np.int64))
        self._times = _times_table(useful, classes, self._cpu_milli, list(type_index))
        sizes = np.array([demand.gpu_milli or DEVICE_MILLI for demand in classes], dtype=np.int64)
        self._sizes, self._size_of = np.unique(sizes, return_inverse=True)
        self._counts = np.array([max(1, demand.gpus) for demand in classes], dtype=np.float64)
        memory_bytes = np.array([demand.memory_bytes for demand in classes], dtype=np.int64)
        self._memory_bytes = memory_bytes if memory_bytes.any() else None

    def expected(self, nodes: Ints, left: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Ints:
        """Return (n,) the fragments of each of these nodes, summed over the demands, for these free amounts.

        left: (n, most devices) what each device has left. A node may occur more than once.
        """
        rows = max(1, MAX_CELLS // max(1, len(self._counts)))
        if len(left) <= rows:
            return self._expected(nodes, left, cpu_milli, memory_bytes)
        amounts = (nodes, left, cpu_milli, memory_bytes)
        return np.concatenate(
            [self._expected(*(amount[at : at + rows] for amount in amounts)) for at in range(0, len(left), rows)]
        )

    def _expected(self, nodes: Ints, left: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Ints:
        count, useful = self._large_enough(left)
        fits = count[:, self._size_of] >= self._counts
        if self._memory_bytes is not None:
            fits &= memory_bytes[:, None] >= self._memory_bytes
        amounts_met = np.searchsorted(self._cpu_milli, cpu_milli, side="right")
        # Small whole numbers as floats: the products are exact, and faster than those of integers.
        useful_times = useful[:, self._size_of] * fits * self._times[self._type_of[nodes], amounts_met]
        fragments: Ints = left.sum(axis=1) * self.times - useful_times.sum(axis=1).astype(np.int64)
        return fragments

    def _large_enough(self, left: Ints) -> tuple[Floats, Floats]:
        """Return (n, sizes) how many devices of each node have at least that size left, and their sum."""
        rows, sizes = len(left), len(self._sizes) + 1
        bucket = np.searchsorted(self._sizes, left, side="right") + np.arange(0, rows * sizes, sizes)[:, None]
        count, sums = (
            np.bincount(bucket.ravel(), weights, rows * sizes).reshape(rows, sizes)[:, ::-1].cumsum(axis=1)[:, -2::-1]
            for weights in (np.ones(left.size), left.ravel())
        )
        return count, sums


def _class_of(need: Shape) -> Shape:
    """Return the class of a demand: all demands of it are useful to the same devices of a node, if at all."""
    return replace(need, cpu_milli=0, gpu_type=None, other_types=())


def _times_table(
    kinds: Sequence[DemandKind], classes: Sequence[Shape], cpu_milli: Ints, gpu_types: Sequence[str]
) -> Floats:
    """Return (GPU types, CPU amounts + 1, classes) how often the demands of a class are made that a node can meet.

    That is a node of this GPU type, which has at least the first so many of the amounts of CPU.
    """
    times = np.zeros((len(gpu_types), len(cpu_milli) + 1, len(classes)))
    index_of = {demand: index for index, demand in enumerate(classes)}
    for need, count in kinds:
        amount = int(np.searchsorted(cpu_milli, need.cpu_milli)) + 1
        is_met = [None in need.gpu_types or gpu_type in need.gpu_types for gpu_type in gpu_types]
        times[is_met, amount, index_of[_class_of(need)]] += count
    return times.cumsum(axis=1)
