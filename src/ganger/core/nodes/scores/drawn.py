"""`random`: any node that has room, drawn anew for every placement, and for a share any device there.

Deterministic, since the core knows no chance: a node's number is mixed of `gpu_shares.seed`, of the node's place in the
topology, and of how many are on each node now. So a round that is planned twice comes out the same, and the next
placement finds another number on every node. Nothing is drawn by the gang: what `explain` tries out for a gang is what
is placed. Mixing: the finaliser of splitmix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape

NAME: Final = "random"
LASTS: Final = False
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def of_nodes(nodes: NodeArrays, _part: Shape, at: Ints) -> Ints:
    """(n,) the draw."""
    return _drawn(_turn(nodes), at)


def of_devices(nodes: NodeArrays, _part: Shape, devices: Ints) -> Ints:
    """(d,) the draw, independent of that of nodes."""
    return _drawn(~_turn(nodes), devices)


def _turn(nodes: NodeArrays) -> NDArray[np.uint64]:
    """(1,) another one whenever another number of guests is on any node, and with another seed."""
    each = _mixed(np.arange(1, len(nodes.nodes) + 1).astype(np.uint64) * _STEP)
    now = (nodes.guests.astype(np.uint64) * each).sum(dtype=np.uint64, keepdims=True)
    seed = np.array([nodes.rules.gpu_shares.seed], dtype=np.uint64)
    return _mixed(now + _mixed(seed * _STEP + _STEP))


def _drawn(turn: NDArray[np.uint64], at: Ints) -> Ints:
    return (_mixed(turn + at.astype(np.uint64) * _STEP) >> np.uint64(2)).astype(np.int64)


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    number = (number ^ (number >> np.uint64(30))) * _FIRST
    number = (number ^ (number >> np.uint64(27))) * _SECOND
    return number ^ (number >> np.uint64(31))
