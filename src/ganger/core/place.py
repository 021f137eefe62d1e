"""Where a gang goes: which nodes, and which devices on each. All of its nodes, or none.

Called by `core.plan`, `core.backfill` and `core.explain`, on the arrays as they stand. Rule: the rack that is left with
the fewest fitting nodes, else as few racks as possible; inside a rack the nodes that are left with the least; ranks
in topology order. Ties go to the first in topology order. Source of the idea: buddy cells (HiveD, OSDI 2020) and
Kueue's best fit, on one level of topology until issue 6.

A gang of several parts is placed part by part, those with the largest need first, each on what the others leave; where
that leads nowhere, in the other orders. Processes of a stacked part go where the gang is already, then to the nodes
that are left with the least.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes import NodeTable
from ganger.model.decision import NodeShare
from ganger.model.job import Shape

Shares = tuple[NodeShare, ...]

ORDERS_OF_PARTS: Final = 24
"""How many orders of the parts are tried: all of four."""
_TRIED: Final = 0
"""Owner of what a trial placement takes; no gang has this number."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part to place: its shape, its index among the gang's, its first rank."""

    shape: Shape
    index: int
    first_rank: int

    def share(self, nodes: NodeTable, at: int, n: int) -> NodeShare:
        """The n-th of it, on node `at`, on the first devices that are free there."""
        first = self.first_rank + n * self.shape.ranks
        devices = tuple(int(device) for device in nodes.free_devices(at)[: self.shape.gpus])
        return NodeShare(nodes.nodes[at].name, tuple(range(first, first + self.shape.ranks)), devices, self.index)


def place(nodes: NodeTable, shape: Shape) -> Shares | None:
    """Shares in rank order for every node of the gang, or None when it cannot be placed whole. O(nodes) for a part."""
    if not shape.more:
        return _place_part(nodes, _Part(shape, 0, 0), {})
    parts = list(_parts(shape))
    for order, _ in zip(permutations(sorted(parts, key=_demand)), range(ORDERS_OF_PARTS), strict=False):
        placed: dict[int, Shares] = {}
        with nodes.trial():
            for part in order:
                there = {nodes.index[share.node]: None for shares in placed.values() for share in shares}
                found = _place_part(nodes, part, there)
                if found is None:
                    break
                nodes.take(_TRIED, shape, found)
                placed[part.index] = found
        if len(placed) == len(parts):
            return tuple(share for part in parts for share in placed[part.index])
    return None


def _parts(shape: Shape) -> Iterator[_Part]:
    first_rank = 0
    for index, part in enumerate(shape.parts):
        yield _Part(part, index, first_rank)
        first_rank += part.nodes * part.ranks


def _demand(part: _Part) -> tuple[bool, int, int, int]:
    """Different nodes before processes that share them, the largest need first."""
    shape = part.shape
    return shape.stacked, -shape.gpus, -shape.memory_bytes, -shape.cpu_milli


def _place_part(nodes: NodeTable, part: _Part, there: dict[int, None]) -> Shares | None:
    """Shares for one part; `there` are nodes that the gang is on already."""
    fitting = np.flatnonzero(nodes.fitting(part.shape))
    if part.shape.stacked:
        return _stack(nodes, part, fitting, there)
    if fitting.size < part.shape.nodes:
        return None
    chosen = np.sort(_choose(nodes, part.shape, fitting))
    return tuple(part.share(nodes, int(at), n) for n, at in enumerate(chosen))


def _stack(nodes: NodeTable, part: _Part, fitting: NDArray[np.intp], there: dict[int, None]) -> Shares | None:
    """As many on a node as it holds, before the next node."""
    shape = part.shape
    if nodes.room(shape) < shape.nodes:
        return None
    shares: list[NodeShare] = []
    near = [at for at in there if at in fitting]
    for at in [*near, *(at for at in _tightest(nodes, fitting).tolist() if at not in there)]:
        with nodes.trial():
            while len(shares) < shape.nodes and nodes.holds(at, shape):
                share = part.share(nodes, at, len(shares))
                nodes.take_part(_TRIED, at, shape, share.devices)
                shares.append(share)
        if len(shares) == shape.nodes:
            break
    return tuple(shares)


def _choose(nodes: NodeTable, shape: Shape, fitting: NDArray[np.intp]) -> NDArray[np.intp]:
    """`shape.nodes` of the fitting nodes."""
    rack = nodes.rack[fitting]
    room = np.bincount(rack, minlength=len(nodes.racks))
    enough = np.flatnonzero(room >= shape.nodes)
    if enough.size:
        tightest = enough[room[enough].argmin()]
        return _tightest(nodes, fitting[rack == tightest])[: shape.nodes]
    picked: list[NDArray[np.intp]] = []
    missing = shape.nodes
    while missing:
        # The fullest rack first; the rest goes to the tightest rack that holds all of it.
        holds_rest = np.flatnonzero(room >= missing)
        at = holds_rest[room[holds_rest].argmin()] if holds_rest.size else room.argmax()
        part = _tightest(nodes, fitting[rack == at])[:missing]
        picked.append(part)
        missing -= part.size
        room[at] = 0
    return np.concatenate(picked)


def _tightest(nodes: NodeTable, among: NDArray[np.intp]) -> NDArray[np.intp]:
    """Nodes with the least left first: GPUs, then CPUs, then memory; ties in topology order."""
    keys = (nodes.free_memory_bytes[among], nodes.free_cpu_milli[among], nodes.free_gpus[among])
    return among[np.lexsort(keys)]
