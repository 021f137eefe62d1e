"""How much of what GPUs have left is of no use to what jobs here ask for.

A device's rest is a fragment for a kind of need when it is too small for it, and so is all that a node has left where
the kind fits nowhere on the node, or asks for no GPU. The expected fragment is the sum over the typical kinds, each as
often as it is asked for. Asked by `core.nodes.scores.fgd`; `core.cycle.cycle` says what is asked for. Source:
fragmentation gradient descent (Weng et al., ATC 2023); here on integers: sums are weighted by counts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

Floats = NDArray[np.float64]

TYPICAL: Final = 95
"""Per cent of what is asked for that the typical kinds cover, the most frequent first."""
MOST_KINDS: Final = 48
"""Of so many of them at most the fragments are counted."""


class DemandKind(NamedTuple):
    """A need of one node, without what says where it may be; how often it is asked for."""

    need: Shape
    times: int


def kinds_of(shapes: Iterable[tuple[Shape, int]]) -> tuple[DemandKind, ...]:
    """Return the typical needs of gangs of these shapes, each with the number of gangs that have it."""
    counts: dict[Shape, int] = {}
    for shape, many in shapes:
        for part in shape.parts:
            alike = Shape(
                nodes=1,
                gpus=part.gpus,
                gpu_type=part.gpu_type if not part.other_types else None,
                cpu_milli=part.cpu_milli,
                memory_bytes=part.memory_bytes,
                gpu_milli=part.gpu_milli,
            )
            counts[alike] = counts.get(alike, 0) + many * part.nodes
    return typical(counts)


def typical(counts: Mapping[Shape, int]) -> tuple[DemandKind, ...]:
    """The most frequent needs, until nearly all of what is asked for is covered."""
    found: list[DemandKind] = []
    missing = -(-TYPICAL * sum(counts.values()) // 100)
    for need, times in sorted(counts.items(), key=lambda each: (-each[1], *_size(each[0])))[:MOST_KINDS]:
        if missing <= 0:
            break
        found.append(DemandKind(need, times))
        missing -= times
    return tuple(found)


def _size(need: Shape) -> tuple[int, int, str, int, int]:
    """Different ones of different needs; any type before all others."""
    return need.gpus, need.gpu_milli, need.gpu_type or "", need.cpu_milli, need.memory_bytes


class Fragments:
    """Kinds as arrays, to be asked of any nodes in any state. `times`: of all kinds together."""

    def __init__(self, kinds: Sequence[DemandKind], of_type: Callable[[str | None], NDArray[np.bool_]]) -> None:
        """Of these kinds; of_type: (N,) the nodes with a GPU type, all of them for None."""
        useful = [kind for kind in kinds if kind.need.has_gpus]
        needs = [kind.need for kind in useful]
        self.times = sum(kind.times for kind in kinds)
        self._times = np.array([kind.times for kind in useful], dtype=np.float64)
        each = np.array([need.gpu_milli or DEVICE_MILLI for need in needs], dtype=np.int64)
        self._sizes, self._size_of = np.unique(each, return_inverse=True)
        self._counts = np.array([max(1, need.gpus) for need in needs], dtype=np.float64)
        self._cpu_milli = np.array([need.cpu_milli for need in needs], dtype=np.int64)
        memory_bytes = np.array([need.memory_bytes for need in needs], dtype=np.int64)
        self._memory_bytes = memory_bytes if memory_bytes.any() else None
        usable = np.array([of_type(need.gpu_type) for need in needs], dtype=bool)
        self._usable = None if usable.all() else usable.reshape(len(needs), -1).T

    def of(self, at: Ints, left: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Ints:
        """(n,) of each of these nodes, summed over the kinds, if that much is free on it; left: (n, most devices),
        what each device has left. A node may be there more than once."""
        total = left.sum(axis=1)
        many, useful = self._large_enough(left)
        fits = many[:, self._size_of] >= self._counts
        fits &= cpu_milli[:, None] >= self._cpu_milli
        if self._memory_bytes is not None:
            fits &= memory_bytes[:, None] >= self._memory_bytes
        if self._usable is not None:
            fits &= self._usable[at]
        # Floats that are whole numbers, and small ones: products are exact, and fast.
        found: Ints = total * self.times - ((useful[:, self._size_of] * fits) @ self._times).astype(np.int64)
        return found

    def _large_enough(self, left: Ints) -> tuple[Floats, Floats]:
        """(n, sizes) each, of each of these nodes: how many devices have at least that much left, and how much these
        have."""
        rows, sizes = len(left), len(self._sizes) + 1
        place = np.searchsorted(self._sizes, left, side="right") + np.arange(0, rows * sizes, sizes)[:, None]
        many, much = (
            np.bincount(place.ravel(), weights, rows * sizes).reshape(rows, sizes)[:, ::-1].cumsum(axis=1)[:, -2::-1]
            for weights in (np.ones(left.size), left.ravel())
        )
        return many, much
