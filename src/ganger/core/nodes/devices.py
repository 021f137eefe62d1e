"""Devices one by one: the holder of each, and what is left of those that are shared.

Idea: a device is free, held whole by one gang, or shared, never both. A share uses one device, and its compute and its
    memory are counted separately, so that remainders of several devices do not add up to room. All devices of all nodes
    are one flat array, in which node n has the slice first[n] : first[n + 1]. Questions about nodes go through `_grid`,
    an (N, most devices of a node) table of indices into it: one indexing operation gives a rectangular array whose rows
    are summed or minimized, with `_exists` masking the cells of nodes that have fewer devices. A share goes to the
    device with the least left that takes it (reference: elastic-network-data, section 4).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.device_links import links_of
from ganger.core.nodes.topology import Ints
from ganger.core.undo import Undo
from ganger.model.cluster import Node
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

FREE: Final = -1
"""Owner of a free device."""
SHARED_OUT: Final = -2
"""Owner of a device that is shared."""
FOREIGN: Final = int(np.iinfo(np.int64).max)
"""Owner of a device used from outside ganger: a number that no gang has."""
NodeIndices = NDArray[np.intp] | slice
ALL: Final = slice(None)
_NO_DEVICE: Final = np.iinfo(np.int64).max
_MEMORY_BITS: Final = 50
"""More bits than any device's memory in bytes needs."""
DeviceOrder = Callable[[Shape, Ints], Ints]
"""(part, devices of one node) -> the order of these by index, the preferred first."""


class Devices:
    """Arrays over D devices of N nodes.

    first: (N + 1,) int64, node n has the devices first[n] : first[n + 1].
    node, place: (D,) int64, the node of each device and its index there.
    memory_bytes: (N,) int64, the memory of each device of a node.
    owner: (D,) int64, the number of the gang that holds it whole, FREE, SHARED_OUT or FOREIGN (constant).
    sharers, used_milli, used_memory_bytes: (D,) int64, the number of shares on it and their sums.
    links: by node, for those of which it is known how their devices are connected.
    """

    def __init__(self, nodes: Sequence[Node], undo: Undo) -> None:
        """Start with all devices free but the foreign ones."""
        self._undo = undo
        gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.first = np.concatenate(([0], np.cumsum(gpus, dtype=np.int64)))
        count = int(self.first[-1])
        self.node = np.repeat(np.arange(len(nodes)), gpus)
        self.place = np.arange(count) - self.first[self.node]
        places = np.arange(int(gpus.max(initial=0)))
        self._exists = places < gpus[:, None]
        self._grid = np.where(self._exists, self.first[:-1, None] + places, 0)
        self.memory_bytes = np.array([node.gpu_memory_bytes for node in nodes], dtype=np.int64)
        self.owner = np.full(count, FREE, dtype=np.int64)
        foreign_devices = ((index, device) for index, node in enumerate(nodes) for device in node.foreign)
        foreign = [int(self.first[index]) + device for index, device in foreign_devices]
        self.owner[foreign] = FOREIGN
        self.sharers, self.used_milli, self.used_memory_bytes = np.zeros((3, count), dtype=np.int64)
        linked = ((index, links_of(node)) for index, node in enumerate(nodes) if node.gpu_links)
        self.links = {index: links for index, links in linked if links is not None}

    def set_foreign(self, node: int, before: Sequence[int], after: Sequence[int]) -> None:
        """Replace the foreign devices of a node by others, none of which a gang has any part of."""
        first = int(self.first[node])
        self.owner[[first + device for device in before]] = FREE
        self.owner[[first + device for device in after]] = FOREIGN

    def counts(self, part: Shape, nodes: NodeIndices) -> Ints:
        """Return how many of a part that wants shares or named devices the devices of each node can take now."""
        counts: Ints = self.room_at(part, nodes).sum(axis=1)
        return counts // part.gpus if part.gpus > 1 else counts

    def capacity_when_idle(self, part: Shape) -> Ints:
        """Return the same (N,) counts if no gang held anything."""
        room = self._idle_room(part, self._grid.ravel()).reshape(self._grid.shape) * self._exists
        capacity_when_idle: Ints = room.sum(axis=1) // max(1, part.gpus)
        return capacity_when_idle

    def least_left(self, part: Shape, nodes: Ints) -> Ints:
        """Return (n,) the packing key of the tightest device of each node that takes the share."""
        keys = np.where(self.room_at(part, nodes) > 0, self.packing_keys(part, self._grid[nodes]), _NO_DEVICE)
        least: Ints = keys.min(axis=1, initial=_NO_DEVICE)
        return least

    def room_at(self, part: Shape, nodes: Ints | NodeIndices) -> Ints:
        """Return (n, most devices of a node) how many of a part's shares each device can take now."""
        grid = self._grid[nodes]
        room: Ints = self._room(part, grid.ravel()).reshape(grid.shape) * self._exists[nodes]
        return room

    def left_milli(self, nodes: Ints) -> Ints:
        """Return (n, most devices of a node) the compute left on each device, 0 where there is no device."""
        grid = self._grid[nodes]
        is_open = (self.owner[grid] < 0) & self._exists[nodes]
        left: Ints = (DEVICE_MILLI - self.used_milli[grid]) * is_open
        return left

    def owners(self, nodes: Ints) -> Ints:
        """Return (n, most devices of a node) the owner of each device, FREE where there is no device."""
        return np.where(self._exists[nodes], self.owner[self._grid[nodes]], FREE)

    def choose(
        self, part: Shape, nodes: Ints, counts: Ints, order: DeviceOrder | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Iterate over the devices that the part's nodes get, `counts` times on each node, which has the room.

        order: gives the device that a share gets first; by default the one with the least left.
        """
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            devices = np.arange(self.first[node], self.first[node + 1])
            if part.gpus:
                free = self.place[devices[self._room(part, devices) > 0]].tolist()
                yield from self.groups(node, free, part.gpus, count)
                continue
            devices = self._least_connected_first(node, devices)
            room = self._room(part, devices)
            preference = (
                np.argsort(self.packing_keys(part, devices), kind="stable") if order is None else order(part, devices)
            )
            # The tightest is filled before the next is begun: it only becomes tighter.
            filled = (
                int(self.place[devices[choice]]) for choice in preference.tolist() for _ in range(int(room[choice]))
            )
            yield from ((next(filled),) for _ in range(count))

    def groups(self, node: int, free: list[int], size: int, count: int) -> Iterator[tuple[int, ...]]:
        """Iterate over `count` groups of `size` free devices of a node: well connected ones, or else the first."""
        if (links := self.links.get(node)) is not None:
            return links.groups(free, size, count)
        return (tuple(free[begin : begin + size]) for begin in range(0, count * size, size))

    def _least_connected_first(self, node: int, devices: Ints) -> Ints:
        """Return the devices of a node, the free ones in the order in which shares should take them, and then last."""
        if (links := self.links.get(node)) is None:
            return devices
        is_free = self.owner[devices] == FREE
        free = self.place[devices[is_free]].tolist()
        order = [device for group in links.groups(free, 1, len(free)) for device in group]
        return np.concatenate((devices[~is_free], self.first[node] + np.array(order, dtype=np.int64)))

    def take(self, part: Shape, nodes: Ints, devices: Ints) -> Ints:
        """Add shares of a part on these devices and return the number of newly used devices by entry of `nodes`.

        Raise ValueError if a device has too little left: nothing is ever allocated twice.
        """
        indices, first, times = _distinct(devices)
        if (self._room(part, indices) < times).any():
            raise ValueError("a device has not enough left")
        was_free = self.owner[indices] == FREE
        self._change_use(part, indices, times)
        self._undo.put(self.owner, indices, SHARED_OUT)
        return _count_first(nodes, first, was_free)

    def release(self, part: Shape, nodes: Ints, devices: Ints) -> Ints:
        """Remove the same shares and return the number of devices that became free by entry of `nodes`."""
        indices, first, times = _distinct(devices)
        self._change_use(part, indices, -times)
        idle = self.sharers[indices] == 0
        self._undo.put(self.owner, indices[idle], FREE)
        return _count_first(nodes, first, idle)

    def validate(self, rebuilt: "Devices") -> None:
        """Raise AssertionError naming the difference from devices rebuilt from the gangs, or an over-allocation."""
        for name in ("sharers", "used_milli", "used_memory_bytes"):
            assert (getattr(self, name) == getattr(rebuilt, name)).all(), f"devices.{name} differs from its gangs"
        assert (self.used_milli <= DEVICE_MILLI).all(), "the compute of a device is over-allocated"
        assert (self.used_memory_bytes <= self._memory(np.arange(len(self.owner)))).all(), (
            "the memory of a device is over-allocated"
        )
        assert ((self.sharers > 0) == (self.owner == SHARED_OUT)).all(), "whole and shared are mixed on a device"

    def _change_use(self, part: Shape, indices: Ints, times: Ints) -> None:
        self._undo.put(self.sharers, indices, self.sharers[indices] + times)
        self._undo.put(self.used_milli, indices, self.used_milli[indices] + times * part.gpu_milli)
        more = times * part.gpu_memory_bytes
        self._undo.put(self.used_memory_bytes, indices, self.used_memory_bytes[indices] + more)

    def _room(self, part: Shape, devices: Ints) -> Ints:
        """Return how many of a part's shares each device can take now; 1 for a device that it can hold whole."""
        owner = self.owner[devices]
        if not part.has_share:
            free: Ints = ((owner == FREE) & self._allowed(part, devices)).astype(np.int64)
            return free
        milli = DEVICE_MILLI - self.used_milli[devices]
        if not part.gpu_memory_bytes and not part.selector.devices:
            by_compute: Ints = milli // part.gpu_milli * (owner < 0)
            return by_compute
        memory = self._memory(devices) - self.used_memory_bytes[devices]
        room: Ints = _shares_in(part, milli, memory) * (owner < 0)
        return room * self._allowed(part, devices) if part.selector.devices else room

    def _idle_room(self, part: Shape, devices: Ints) -> Ints:
        """Return the same if no gang held anything."""
        if not part.has_share:
            return self._allowed(part, devices).astype(np.int64)
        whole = np.full(len(devices), DEVICE_MILLI, dtype=np.int64)
        room: Ints = _shares_in(part, whole, self._memory(devices)) * self._allowed(part, devices)
        return room

    def packing_keys(self, part: Shape, devices: Ints) -> Ints:
        """Return what would be left of each device, compute before memory, as one comparable integer."""
        milli = DEVICE_MILLI - self.used_milli[devices] - part.gpu_milli
        memory = self._memory(devices) - self.used_memory_bytes[devices] - part.gpu_memory_bytes
        keys: Ints = (milli << _MEMORY_BITS) + memory
        return keys

    def _memory(self, devices: Ints) -> Ints:
        memory_bytes: Ints = self.memory_bytes[self.node[devices]]
        return memory_bytes

    def _allowed(self, part: Shape, devices: Ints) -> NDArray[np.bool_]:
        """Return which devices the part may have: those that its selector names, or all."""
        named = part.selector.devices
        return np.isin(self.place[devices], named) if named else np.ones(len(devices), dtype=bool)


def _shares_in(part: Shape, milli: Ints, memory: Ints) -> Ints:
    """Return how many shares fit into so much compute and memory."""
    limits = [amount // need for need, amount in ((part.gpu_milli, milli), (part.gpu_memory_bytes, memory)) if need]
    counts: Ints = np.minimum.reduce(limits)
    return counts


def _count_first(nodes: Ints, first: Ints, mask: NDArray[np.bool_]) -> Ints:
    """Return (n,) 1 for the entries at which a masked device occurs first, else 0."""
    counts = np.zeros(len(nodes), dtype=np.int64)
    counts[first[mask]] = 1
    return counts


def _distinct(devices: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct devices, the first occurrence of each, and its number of occurrences."""
    if devices.size == 1:
        return devices, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    return np.unique(devices, return_index=True, return_counts=True)
