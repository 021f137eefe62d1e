"""Devices one by one: who holds each, and what is left of those that are shared.

Owned by `core.nodes`. A device is free, one gang's, or shared; whole and shared never mix on one. A share lives on one
device, and its compute and its memory are counted separately: what several devices have left together is no room for
it. It goes to the device with the least left that holds it (reference: elastic-network-data, section 4).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.topology import Ints
from ganger.core.undo import Undo
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ganger.model.cluster import Node

FREE: Final = -1
"""Owner of a device that nobody holds."""
SHARED_OUT: Final = -2
"""Owner of a device that is shared."""
Places = NDArray[np.intp] | slice
EVERY: Final = slice(None)
_NO_DEVICE: Final = np.iinfo(np.int64).max
_MEMORY_BITS: Final = 50
"""More than the memory of any device has."""


class Devices:
    """Struct of arrays over D devices.

    first: (N + 1,) int64, those of node n are first[n] : first[n + 1]; node, place: (D,) int64, the node of each, and
    its index there; memory_bytes: (N,) int64, what each device of a node has; owner: (D,) int64, number of the gang
    that holds it whole, FREE or SHARED_OUT; sharers, used_milli, used_memory_bytes: (D,) int64, how many shares are on
    it, and what they have together.
    """

    def __init__(self, nodes: "Sequence[Node]", undo: Undo) -> None:
        """All free."""
        self._undo = undo
        gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.first = np.concatenate(([0], np.cumsum(gpus, dtype=np.int64)))
        count = int(self.first[-1])
        self.node = np.repeat(np.arange(len(nodes)), gpus)
        self.place = np.arange(count) - self.first[self.node]
        self.memory_bytes = np.array([node.gpu_memory_bytes for node in nodes], dtype=np.int64)
        self.owner = np.full(count, FREE, dtype=np.int64)
        self.sharers, self.used_milli, self.used_memory_bytes = np.zeros((3, count), dtype=np.int64)

    def counts(self, part: Shape, at: Places) -> Ints:
        """How many of a part that asks for a share, or for certain devices, the devices of each of these nodes could
        take now."""
        devices, sums = self._of(at)
        return _sums(self._rooms(part, devices), sums) // max(1, part.gpus)

    def most(self, part: Shape) -> Ints:
        """(N,) the same if nobody held any."""
        devices, sums = self._of(EVERY)
        return _sums(self._sizes(part, devices), sums) // max(1, part.gpus)

    def left(self, part: Shape) -> Ints:
        """(N,) what would be left, at the least, of a device that takes a share: compute first, then memory."""
        return self.least(np.where(self.rooms(part) > 0, self.keys(part), _NO_DEVICE))

    def least(self, keys: Ints) -> Ints:
        """(N,) the least over the devices of each node."""
        sums = self.first
        found = np.full(len(self.memory_bytes), _NO_DEVICE, dtype=np.int64)
        there = sums[:-1] < sums[1:]
        if keys.size:
            found[there] = np.minimum.reduceat(keys, sums[:-1][there])
        return found

    def rooms(self, part: Shape) -> Ints:
        """(D,) how many of a part's shares each device could take now."""
        return self._rooms(part, np.arange(len(self.owner)))

    def keys(self, part: Shape) -> Ints:
        """(D,) what would be left of each: compute first, then memory."""
        return self._keys(part, np.arange(len(self.owner)))

    def choose(self, part: Shape, at: Ints, many: Ints, first: Ints | None = None) -> Iterator[tuple[int, ...]]:
        """`many` times for each of these nodes: the devices that one of the part's nodes gets there. There is room.
        first: (D,) what is compared for a share, the least first, instead of what would be left."""
        for node, times in zip(at.tolist(), many.tolist(), strict=True):
            devices = np.arange(self.first[node], self.first[node + 1])
            rooms = self._rooms(part, devices)
            if part.gpus:
                free = self.place[devices[rooms > 0]].tolist()
                yield from (tuple(free[begin : begin + part.gpus]) for begin in range(0, times * part.gpus, part.gpus))
                continue
            order = np.argsort(self._keys(part, devices) if first is None else first[devices], kind="stable")
            # The tightest is filled before the next is begun: it only becomes tighter.
            filled = (int(self.place[devices[which]]) for which in order.tolist() for _ in range(int(rooms[which])))
            yield from ((next(filled),) for _ in range(times))

    def take(self, part: Shape, at: Ints, devices: Ints) -> Ints:
        """Shares of a part on these devices, on these nodes; gives how many of the devices were free, by entry of `at`.
        ValueError if one of them has not that much left: nothing is ever given twice."""
        where, first, times = np.unique(devices, return_index=True, return_counts=True)
        if (self._rooms(part, where) < times).any():
            raise ValueError("a device has not enough left")
        fresh = self.owner[where] == FREE
        self._add(part, where, times)
        self._undo.put(self.owner, where, SHARED_OUT)
        return _counted(at, first, fresh)

    def release(self, part: Shape, at: Ints, devices: Ints) -> Ints:
        """The same shares are free again; gives how many of the devices nobody shares any more."""
        where, first, times = np.unique(devices, return_index=True, return_counts=True)
        self._add(part, where, -times)
        idle = self.sharers[where] == 0
        self._undo.put(self.owner, where[idle], FREE)
        return _counted(at, first, idle)

    def validate(self, anew: "Devices") -> None:
        """Compare with one that every share was put into anew, and with what there is. AssertionError names what
        differs."""
        for name in ("sharers", "used_milli", "used_memory_bytes"):
            assert (getattr(self, name) == getattr(anew, name)).all(), f"devices.{name} differs from its gangs"
        assert (self.used_milli <= DEVICE_MILLI).all(), "the compute of a device is over-allocated"
        assert (self.used_memory_bytes <= self._memory(np.arange(len(self.owner)))).all(), "the memory of a device is"
        assert ((self.sharers > 0) == (self.owner == SHARED_OUT)).all(), "whole and shared are mixed on a device"

    def _add(self, part: Shape, where: Ints, times: Ints) -> None:
        self._undo.put(self.sharers, where, self.sharers[where] + times)
        self._undo.put(self.used_milli, where, self.used_milli[where] + times * part.gpu_milli)
        more = times * part.gpu_memory_bytes
        self._undo.put(self.used_memory_bytes, where, self.used_memory_bytes[where] + more)

    def _of(self, at: Places) -> tuple[Ints, Ints]:
        """The devices of these nodes, and where those of each begin and end."""
        if isinstance(at, slice):
            return np.arange(len(self.owner)), self.first
        begin, sizes = self.first[at], self.first[at + 1] - self.first[at]
        sums = np.concatenate(([0], np.cumsum(sizes)))
        return np.arange(sums[-1]) + np.repeat(begin - sums[:-1], sizes), sums

    def _rooms(self, part: Shape, devices: Ints) -> Ints:
        """How many of a part's shares each of these devices could take now; 1 for one that may be had whole."""
        owner = self.owner[devices]
        if not part.has_share:
            free: Ints = ((owner == FREE) & self._meant(part, devices)).astype(np.int64)
            return free
        milli, memory = DEVICE_MILLI - self.used_milli[devices], self._memory(devices) - self.used_memory_bytes[devices]
        is_open = ((owner == FREE) | (owner == SHARED_OUT)) & self._meant(part, devices)
        rooms: Ints = _times(part, milli, memory) * is_open
        return rooms

    def _sizes(self, part: Shape, devices: Ints) -> Ints:
        """The same if nobody held any."""
        if not part.has_share:
            return self._meant(part, devices).astype(np.int64)
        whole = np.full(len(devices), DEVICE_MILLI, dtype=np.int64)
        sizes: Ints = _times(part, whole, self._memory(devices)) * self._meant(part, devices)
        return sizes

    def _keys(self, part: Shape, devices: Ints) -> Ints:
        """What would be left of each: compute, then memory."""
        milli = DEVICE_MILLI - self.used_milli[devices] - part.gpu_milli
        memory = self._memory(devices) - self.used_memory_bytes[devices] - part.gpu_memory_bytes
        keys: Ints = (milli << _MEMORY_BITS) + memory
        return keys

    def _memory(self, devices: Ints) -> Ints:
        found: Ints = self.memory_bytes[self.node[devices]]
        return found

    def _meant(self, part: Shape, devices: Ints) -> NDArray[np.bool_]:
        """Which of these the part may have: those that its selector names, or all."""
        named = part.selector.devices
        return np.isin(self.place[devices], named) if named else np.ones(len(devices), dtype=bool)


def _times(part: Shape, milli: Ints, memory: Ints) -> Ints:
    """How many shares of so much compute and so much memory there are in what is there."""
    rooms = [has // need for need, has in ((part.gpu_milli, milli), (part.gpu_memory_bytes, memory)) if need]
    found: Ints = np.minimum.reduce(rooms)
    return found


def _sums(values: Ints, bounds: Ints) -> Ints:
    """Sums over values[bounds[i] : bounds[i + 1]], any of which may be empty."""
    total = np.concatenate(([0], np.cumsum(values)))
    found: Ints = total[bounds[1:]] - total[bounds[:-1]]
    return found


def _counted(at: Ints, first: Ints, which: NDArray[np.bool_]) -> Ints:
    """How many devices are meant, by entry of `at`, each at its first occurrence."""
    found = np.zeros(len(at), dtype=np.int64)
    found[first[which]] = 1
    return found
