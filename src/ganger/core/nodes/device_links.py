"""The best-connected devices of a node for a request, by the matrix of its links.

Idea: a collective operation is as fast as the weakest link of its ring, so that of all sets of free devices of the
    requested size those are best whose best ring has the strongest weakest link; among equals, those with the largest
    sum of links inside; then those that leave the largest sum of links among the rest, so that an island of fast links
    stays whole while another set is as good; then those with the lowest indices. All of it is looked up in tables over
    the subsets of a node's devices, made once per matrix: the best rings by the dynamic program of Held and Karp, with
    the minimum in place of the sum. Nodes without a matrix, or with one in which all links are equal, have no tables
    (reference: elastic-network-data, section 4).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.model.cluster import Node

MAX_DEVICES: Final = 16
"""Devices of a node beyond which no set is preferred: the tables double with each device."""
_MAX_CHOICES: Final = 1 << 16
"""The number of choices kept per matrix."""
_UNLIMITED: Final = np.iinfo(np.int64).max
"""The weakest link of a ring of one device."""


class DeviceLinks:
    """Tables over the subsets of a node's devices, as bit masks, by one matrix of links.

    ring: (2^d,) int64, the weakest link of the best ring through the devices of a subset.
    inside: (2^d,) int64, the sum of the links within it.
    """

    def __init__(self, matrix: tuple[tuple[int, ...], ...]) -> None:
        """Make the tables: O(2^d d^2)."""
        links = np.array(matrix, dtype=np.int64)
        np.fill_diagonal(links, 0)
        self._bits = 1 << np.arange(len(matrix), dtype=np.int64)
        members = (np.arange(1 << len(matrix))[:, None] & self._bits) > 0
        self.inside: Ints = ((members @ links) * members).sum(axis=1) // 2
        self.ring = _best_rings(links, members)
        self._subsets: dict[int, NDArray[np.int64]] = {}
        self._choices: dict[tuple[int, int], tuple[int, ...]] = {}

    def groups(self, free: Sequence[int], size: int, count: int) -> Iterator[tuple[int, ...]]:
        """Iterate over `count` groups of `size` devices, each the best of the free ones that the others leave."""
        mask = sum(1 << device for device in free)
        for _ in range(count):
            group = self.best(mask, size)
            yield group
            mask ^= sum(1 << device for device in group)

    def best(self, free: int, size: int) -> tuple[int, ...]:
        """Return the best subset of this size of the devices in the mask, which has at least as many."""
        choice = self._choices.get((free, size))
        if choice is None:
            if len(self._choices) >= _MAX_CHOICES:
                self._choices.clear()
            choice = self._choices[free, size] = self._find_best(free, size)
        return choice

    def _find_best(self, free: int, size: int) -> tuple[int, ...]:
        subsets = self._subsets_of(size)
        subsets = subsets[subsets & ~free == 0]
        for table, base in ((self.ring, 0), (self.inside, 0), (self.inside, free)):
            strength = table[subsets ^ base]
            subsets = subsets[strength == strength.max()]
        return tuple(np.flatnonzero(subsets[0] & self._bits).tolist())

    def _subsets_of(self, size: int) -> NDArray[np.int64]:
        """Return the subsets of this size, those with the lowest indices first."""
        subsets = self._subsets.get(size)
        if subsets is None:
            chosen = combinations(self._bits.tolist(), size)
            subsets = self._subsets[size] = np.array([sum(bits) for bits in chosen], dtype=np.int64)
        return subsets


def links_of(node: Node) -> DeviceLinks | None:
    """Return the tables of a node; None if it does not matter which devices a gang gets."""
    matrix = node.gpu_links
    if not matrix or len(matrix) != node.gpus or len(matrix) > MAX_DEVICES:
        return None
    return _tables(matrix)


@lru_cache(maxsize=256)
def _tables(matrix: tuple[tuple[int, ...], ...]) -> DeviceLinks | None:
    links = {link for row, values in enumerate(matrix) for column, link in enumerate(values) if row != column}
    return DeviceLinks(matrix) if len(links) > 1 else None


def _best_rings(links: Ints, members: NDArray[np.bool_]) -> Ints:
    """Return the weakest link of the best ring through each subset; of two devices, their link.

    A path begins at the first device of its subset: `path[s, d]` is the weakest link of the best one through all of
    subset s that ends at device d, -1 if there is none.
    """
    count = len(links)
    subsets, sizes, first = np.arange(1 << count), members.sum(axis=1), members.argmax(axis=1)
    path = np.full((1 << count, count), -1, dtype=np.int64)
    path[1 << np.arange(count), np.arange(count)] = _UNLIMITED
    for size in range(1, count):
        for device in range(count):
            begun = subsets[(sizes == size) & ~members[:, device] & (first < device)]
            path[begun | (1 << device), device] = np.minimum(path[begun], links[:, device]).max(axis=1)
    ring: Ints = np.minimum(path, links[first]).max(axis=1)
    ring[sizes < 2] = _UNLIMITED
    return ring
