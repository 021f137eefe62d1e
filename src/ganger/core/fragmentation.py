"""How much of what GPUs have left is of no use to what jobs here ask for, and which device makes it least of more.

Called by `core.place` under `gpu_shares.score: fgd`. A device's rest is a fragment for a kind of need when it is too
small for it, and so is all that a node has left where the kind fits nowhere on the node. The expected fragment is the
sum over the kinds that jobs here ask for, each as often as it is asked for. A part goes to the node, and to the device
there, where the sum rises least. Source: fragmentation gradient descent (Weng et al., ATC 2023); here on integers: sums
are weighted by counts, and divided only where the policy asks for grades.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ganger.core.devices import FREE, SHARED_OUT
from ganger.core.topology import Ints
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

if TYPE_CHECKING:
    from ganger.core.nodes import NodeTable
    from ganger.core.state import State

MOST_KINDS: Final = 48
"""Kinds of need that are looked at: those asked for most often."""
NOWHERE: Final = np.iinfo(np.int64).max


class Kind(NamedTuple):
    """A need of one node, without what says where it may be; how often it is asked for."""

    need: Shape
    times: int


def kinds_of(state: "State") -> tuple[Kind, ...]:
    """What the live gangs ask for, the most frequent first. O(classes that wait + gangs that hold something)."""
    counts: dict[Shape, int] = {}
    waiting = ((members[0].shape, len(members)) for members in state.classes.values())
    holding = ((state.gangs[name].shape, 1) for name in state.shares)
    for shape, many in (*waiting, *holding):
        for part in shape.parts:
            alike = Shape(
                nodes=1,
                gpus=part.gpus,
                gpu_type=part.gpu_type if not part.other_types else None,
                cpu_milli=part.cpu_milli,
                memory_bytes=part.memory_bytes,
                gpu_milli=part.gpu_milli,
            )
            # What asks for no GPU has no use for the rest of any, wherever another goes.
            if part.has_gpus:
                counts[alike] = counts.get(alike, 0) + many * part.nodes
    most = sorted(counts.items(), key=lambda each: (-each[1], *_size(each[0])))
    return tuple(Kind(need, times) for need, times in most[:MOST_KINDS])


def _size(need: Shape) -> tuple[int, int, str, int, int]:
    """Different ones of different needs; any type before all others."""
    return need.gpus, need.gpu_milli, need.gpu_type or "", need.cpu_milli, need.memory_bytes


class Gradient:
    """What a part of a gang would add to the fragments, wherever it went."""

    def __init__(self, nodes: "NodeTable", kinds: Sequence[Kind]) -> None:
        """As the nodes are now."""
        self._nodes, self._kinds = nodes, kinds
        devices = nodes.devices
        is_open = (devices.owner == FREE) | (devices.owner == SHARED_OUT)
        self._left = np.where(is_open, DEVICE_MILLI - devices.used_milli, 0)
        self._total = self._sums(self._left)

    def of_devices(self, part: Shape) -> Ints:
        """(D,) for a share, of each device that holds it; NOWHERE for the others."""
        devices = self._nodes.devices
        found = np.full(len(self._left), NOWHERE, dtype=np.int64)
        at = np.flatnonzero(devices.rooms(part) > 0)
        found[at] = self._added(part, devices.node[at], at)
        return found

    def of_nodes(self, part: Shape) -> Ints:
        """(N,) for whole devices, or none."""
        every = np.arange(len(self._total))
        return self._added(part, every, None)

    def _added(self, part: Shape, at: Ints, device: Ints | None) -> Ints:
        """Summed over the kinds, for each of these nodes; on that device of each for a share."""
        nodes = self._nodes
        cpu_milli = nodes.free_cpu_milli[at] - part.cpu_milli
        memory_bytes = nodes.free_memory_bytes[at] - part.memory_bytes
        taken = part.gpu_milli if device is not None else part.gpus * DEVICE_MILLI
        added = np.zeros(len(at), dtype=np.int64)
        for need, times in self._kinds:
            size, count = need.gpu_milli or DEVICE_MILLI, max(1, need.gpus)
            before, small = self._before(need, size, count)
            hold, small = self._holding(size)[at], small[at]
            if device is None:
                hold = hold - part.gpus
            else:
                rest = self._left[device]
                left = rest - taken
                hold = hold - (rest >= size) + (left >= size)
                small = small - np.where(rest < size, rest, 0) + np.where(left < size, left, 0)
            fits = (hold >= count) & (cpu_milli >= need.cpu_milli) & (memory_bytes >= need.memory_bytes)
            fits &= nodes.of_type(need.gpu_type)[at]
            added += times * (np.where(fits, small, self._total[at] - taken) - before[at])
        return added

    def _before(self, need: Shape, size: int, count: int) -> tuple[Ints, Ints]:
        """(N,) the fragment for a kind as things are; what is too small for it on each node."""
        nodes = self._nodes
        small = self._sums(np.where(self._left < size, self._left, 0))
        fits = (self._holding(size) >= count) & (nodes.free_cpu_milli >= need.cpu_milli)
        fits &= (nodes.free_memory_bytes >= need.memory_bytes) & nodes.of_type(need.gpu_type)
        return np.where(fits, small, self._total), small

    def _holding(self, size: int) -> Ints:
        """(N,) devices with that much left."""
        return self._sums((self._left >= size).astype(np.int64))

    def _sums(self, values: Ints) -> Ints:
        """Over the devices of each node."""
        total = np.concatenate(([0], np.cumsum(values)))
        found: Ints = total[self._nodes.first_device[1:]] - total[self._nodes.first_device[:-1]]
        return found


def graded(added: Ints, kinds: Iterable[Kind], grades: int) -> Ints:
    """What is added, on average over the kinds, as a whole grade from 0, the best, to `grades`: equal grades tie. As it
    is without grades. The curve is the published one, a logistic of whole GPUs."""
    if not grades:
        return added
    of = DEVICE_MILLI * max(1, sum(kind.times for kind in kinds))
    there = added != NOWHERE
    scores = np.full(len(added), grades + 1, dtype=np.int64)
    scores[there] = grades - np.floor(grades / (1 + np.exp(added[there] / of))).astype(np.int64)
    return scores
