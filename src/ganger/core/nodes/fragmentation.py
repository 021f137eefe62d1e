"""Share of the GPUs' free capacity that is useless for the jobs that are usual here.

Idea: what is left of a device is a fragment for a demand that is larger than it; and everything left on a node is a
    fragment where the demand does not fit on the node at all (too few such devices, too little CPU or memory, wrong
    type), or needs no GPU. The expected fragment of a node is the sum over the typical demands, weighted by how often
    each is requested. A placement that adds least to it keeps the cluster usable: fragmentation gradient descent (Weng
    et al., ATC 2023). Here on integers: sums are weighted by counts instead of averaged.

`Fragments` computes this for many nodes and demands at once: per node it sorts the devices into buckets by the distinct
demand sizes, and suffix sums over the buckets give, for each size, how many devices have at least that much left and
how much these have together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

Floats = NDArray[np.float64]

COVERED_PERCENT: Final = 95
"""Per cent of all requests that the typical demands cover, the most frequent first."""
MAX_KINDS: Final = 48
"""The maximum number of typical demands."""


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
                gpu_type=part.gpu_type if not part.other_types else None,
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
    for need, times in sorted(counts.items(), key=lambda item: (-item[1], *_size(item[0])))[:MAX_KINDS]:
        if uncovered <= 0:
            break
        kinds.append(DemandKind(need, times))
        uncovered -= times
    return tuple(kinds)


def _size(need: Shape) -> tuple[int, int, str, int, int]:
    """Return a sort key that differs for different demands; any GPU type comes before all others."""
    return need.gpus, need.gpu_milli, need.gpu_type or "", need.cpu_milli, need.memory_bytes


class Fragments:
    """Typical demands as arrays, for nodes in any state. `times`: the requests of all demands together."""

    def __init__(self, kinds: Sequence[DemandKind], of_type: Callable[[str | None], NDArray[np.bool_]]) -> None:
        """Prepare the arrays. `of_type`: (N,) the nodes with a GPU type, all nodes for None."""
        useful = [kind for kind in kinds if kind.need.has_gpus]
        needs = [kind.need for kind in useful]
        self.times = sum(kind.times for kind in kinds)
        self._times = np.array([kind.times for kind in useful], dtype=np.float64)
        sizes = np.array([need.gpu_milli or DEVICE_MILLI for need in needs], dtype=np.int64)
        self._sizes, self._size_of = np.unique(sizes, return_inverse=True)
        self._counts = np.array([max(1, need.gpus) for need in needs], dtype=np.float64)
        self._cpu_milli = np.array([need.cpu_milli for need in needs], dtype=np.int64)
        memory_bytes = np.array([need.memory_bytes for need in needs], dtype=np.int64)
        self._memory_bytes = memory_bytes if memory_bytes.any() else None
        usable = np.array([of_type(need.gpu_type) for need in needs], dtype=bool)
        self._usable = None if usable.all() else usable.reshape(len(needs), -1).T

    def expected(self, nodes: Ints, left: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Ints:
        """Return (n,) the fragments of each of these nodes, summed over the demands, for these free amounts.

        left: (n, most devices) what each device has left. A node may occur more than once.
        """
        total = left.sum(axis=1)
        count, useful = self._large_enough(left)
        fits = count[:, self._size_of] >= self._counts
        fits &= cpu_milli[:, None] >= self._cpu_milli
        if self._memory_bytes is not None:
            fits &= memory_bytes[:, None] >= self._memory_bytes
        if self._usable is not None:
            fits &= self._usable[nodes]
        # Small whole numbers as floats: the products are exact, and faster than those of integers.
        fragments: Ints = total * self.times - ((useful[:, self._size_of] * fits) @ self._times).astype(np.int64)
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
