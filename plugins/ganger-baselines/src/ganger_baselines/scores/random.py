"""`random`: any node that has room, drawn again for every placement, and any device of it for a share.

Deterministic, since the core has no random source: a node's number is a hash of `gpu_shares.seed`, the node's position
in the topology, and the number of guests on every node. A cycle that is planned twice comes out the same, and the next
placement gives every node another number. The gang is not part of the hash: what `explain` tries for a gang is what is
placed. Mixing: the finalizer of splitmix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape

NAME: Final = "random"
LASTS: Final = False
SEEDED: Final = True
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def of_nodes(nodes: NodeArrays, _part: Shape, indices: Ints) -> Ints:
    """Return (n,) the drawn numbers."""
    return _draw(_state(nodes), indices)


def of_devices(nodes: NodeArrays, _part: Shape, devices: Ints) -> Ints:
    """Return (d,) drawn numbers, independent of those of nodes."""
    return _draw(~_state(nodes), devices)


def _state(nodes: NodeArrays) -> NDArray[np.uint64]:
    """Return (1,) a number that changes with the guests of any node and with the seed."""
    weights = _mix(np.arange(1, len(nodes.nodes) + 1).astype(np.uint64) * _STEP)
    guests = (nodes.occupancy.guests.astype(np.uint64) * weights).sum(dtype=np.uint64, keepdims=True)
    seed = np.array([nodes.listing.rules.gpu_shares.seed], dtype=np.uint64)
    return _mix(guests + _mix(seed * _STEP + _STEP))


def _draw(state: NDArray[np.uint64], indices: Ints) -> Ints:
    return (_mix(state + indices.astype(np.uint64) * _STEP) >> np.uint64(2)).astype(np.int64)


def _mix(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    number = (number ^ (number >> np.uint64(30))) * _FIRST
    number = (number ^ (number >> np.uint64(27))) * _SECOND
    return number ^ (number >> np.uint64(31))
