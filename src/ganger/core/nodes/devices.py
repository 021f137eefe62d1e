"""Devices one by one: who holds each, and what is left of those that are shared.

Owned by `core.nodes.node_table`. A device is free, one gang's, or shared; whole and shared never mix on one. A share
lives on one device, and its compute and its memory are counted separately: what several devices have left together is
no room for it. It goes to the device with the least left that holds it (reference: elastic-network-data, section 4).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.core.undo import Undo
from ganger.model.cluster import Node
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

FREE: Final = -1
"""Owner of a device that nobody holds."""
SHARED_OUT: Final = -2
"""Owner of a device that is shared."""
FOREIGN: Final = int(np.iinfo(np.int64).max)
"""Owner of a device that others use, whom ganger does not place: a number that no gang has."""
Places = NDArray[np.intp] | slice
EVERY: Final = slice(None)
_NO_DEVICE: Final = np.iinfo(np.int64).max
_MEMORY_BITS: Final = 50
"""More than the memory of any device has."""
Order = Callable[[Shape, Ints], Ints]
"""Of a part and of devices of one node: these by index, the first to be had first."""


class Devices:
    """Struct of arrays over D devices.

    first: (N + 1,) int64, those of node n are first[n] : first[n + 1]; node, place: (D,) int64, the node of each, and
    its index there; memory_bytes: (N,) int64, what each device of a node has; owner: (D,) int64, number of the gang
    that holds it whole, FREE, SHARED_OUT or FOREIGN, which no round changes; sharers, used_milli, used_memory_bytes:
    (D,) int64, how many shares are on it, and what they have together.
    """

    def __init__(self, nodes: Sequence[Node], undo: Undo) -> None:
        """All free but those that others use."""
        self._undo = undo
        gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.first = np.concatenate(([0], np.cumsum(gpus, dtype=np.int64)))
        count = int(self.first[-1])
        self.node = np.repeat(np.arange(len(nodes)), gpus)
        self.place = np.arange(count) - self.first[self.node]
        places = np.arange(int(gpus.max(initial=0)))
        self._there = places < gpus[:, None]
        self._grid = np.where(self._there, self.first[:-1, None] + places, 0)
        self.memory_bytes = np.array([node.gpu_memory_bytes for node in nodes], dtype=np.int64)
        self.owner = np.full(count, FREE, dtype=np.int64)
        used = ((at, device) for at, node in enumerate(nodes) for device in node.foreign)
        foreign = [int(self.first[at]) + device for at, device in used]
        self.owner[foreign] = FOREIGN
        self.sharers, self.used_milli, self.used_memory_bytes = np.zeros((3, count), dtype=np.int64)

    def counts(self, part: Shape, at: Places) -> Ints:
        """How many of a part that asks for a share, or for certain devices, the devices of each of these nodes could
        take now."""
        counts: Ints = self.rooms_at(part, at).sum(axis=1)
        return counts // part.gpus if part.gpus > 1 else counts

    def most(self, part: Shape) -> Ints:
        """(N,) the same if nobody held any."""
        sizes = self._sizes(part, self._grid.ravel()).reshape(self._grid.shape) * self._there
        most: Ints = sizes.sum(axis=1) // max(1, part.gpus)
        return most

    def left(self, part: Shape, at: Ints) -> Ints:
        """(n,) of each of these nodes what would be left, at the least, of a device that takes a share: compute first,
        then memory."""
        keys = np.where(self.rooms_at(part, at) > 0, self.keys(part, self._grid[at]), _NO_DEVICE)
        found: Ints = keys.min(axis=1, initial=_NO_DEVICE)
        return found

    def rooms_at(self, part: Shape, at: Ints | Places) -> Ints:
        """(n, most devices of a node) how many of a part's shares each device of these nodes could take now."""
        grid = self._grid[at]
        rooms: Ints = self._rooms(part, grid.ravel()).reshape(grid.shape) * self._there[at]
        return rooms

    def left_milli(self, at: Ints) -> Ints:
        """(n, most devices of a node) what each device of these nodes has left: nothing where there is none."""
        grid = self._grid[at]
        is_open = (self.owner[grid] < 0) & self._there[at]
        left: Ints = (DEVICE_MILLI - self.used_milli[grid]) * is_open
        return left

    def owners(self, at: Ints) -> Ints:
        """(n, most devices of a node) who holds each device of these nodes: FREE where there is none."""
        return np.where(self._there[at], self.owner[self._grid[at]], FREE)

    def choose(self, part: Shape, at: Ints, many: Ints, order: Order | None = None) -> Iterator[tuple[int, ...]]:
        """`many` times for each of these nodes: the devices that one of the part's nodes gets there. There is room.
        order: of the devices of a node, that which a share gets first; else by what would be left."""
        for node, times in zip(at.tolist(), many.tolist(), strict=True):
            devices = np.arange(self.first[node], self.first[node + 1])
            rooms = self._rooms(part, devices)
            if part.gpus:
                free = self.place[devices[rooms > 0]].tolist()
                yield from (tuple(free[begin : begin + part.gpus]) for begin in range(0, times * part.gpus, part.gpus))
                continue
            turn = np.argsort(self.keys(part, devices), kind="stable") if order is None else order(part, devices)
            # The tightest is filled before the next is begun: it only becomes tighter.
            filled = (int(self.place[devices[which]]) for which in turn.tolist() for _ in range(int(rooms[which])))
            yield from ((next(filled),) for _ in range(times))

    def take(self, part: Shape, at: Ints, devices: Ints) -> Ints:
        """Shares of a part on these devices, on these nodes; gives how many of the devices were free, by entry of `at`.
        ValueError if one of them has not that much left: nothing is ever given twice."""
        where, first, times = _each(devices)
        if (self._rooms(part, where) < times).any():
            raise ValueError("a device has not enough left")
        fresh = self.owner[where] == FREE
        self._add(part, where, times)
        self._undo.put(self.owner, where, SHARED_OUT)
        return _counted(at, first, fresh)

    def release(self, part: Shape, at: Ints, devices: Ints) -> Ints:
        """The same shares are free again; gives how many of the devices nobody shares any more."""
        where, first, times = _each(devices)
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

    def _rooms(self, part: Shape, devices: Ints) -> Ints:
        """How many of a part's shares each of these devices could take now; 1 for one that may be had whole."""
        owner = self.owner[devices]
        if not part.has_share:
            free: Ints = ((owner == FREE) & self._meant(part, devices)).astype(np.int64)
            return free
        milli = DEVICE_MILLI - self.used_milli[devices]
        if not part.gpu_memory_bytes and not part.selector.devices:
            alone: Ints = milli // part.gpu_milli * (owner < 0)
            return alone
        memory = self._memory(devices) - self.used_memory_bytes[devices]
        rooms: Ints = _times(part, milli, memory) * (owner < 0)
        return rooms * self._meant(part, devices) if part.selector.devices else rooms

    def _sizes(self, part: Shape, devices: Ints) -> Ints:
        """The same if nobody held any."""
        if not part.has_share:
            return self._meant(part, devices).astype(np.int64)
        whole = np.full(len(devices), DEVICE_MILLI, dtype=np.int64)
        sizes: Ints = _times(part, whole, self._memory(devices)) * self._meant(part, devices)
        return sizes

    def keys(self, part: Shape, devices: Ints) -> Ints:
        """What would be left of each of these: compute first, then memory."""
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


def _counted(at: Ints, first: Ints, which: NDArray[np.bool_]) -> Ints:
    """How many devices are meant, by entry of `at`, each at its first occurrence."""
    found = np.zeros(len(at), dtype=np.int64)
    found[first[which]] = 1
    return found


def _each(devices: Ints) -> tuple[Ints, Ints, Ints]:
    """Different ones, where each is first, and how often it is there."""
    if devices.size == 1:
        return devices, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    return np.unique(devices, return_index=True, return_counts=True)
