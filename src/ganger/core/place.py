"""Where a gang goes: which nodes, and which devices on each. All of its nodes, or none.

Called by `core.plan`, `core.backfill` and `core.explain`, on the arrays as they stand. Rule: the rack that is left with
the fewest fitting nodes, else as few racks as possible; inside a rack the nodes that are left with the least; ranks
in topology order. Ties go to the first in topology order. Source of the idea: buddy cells (HiveD, OSDI 2020) and
Kueue's best fit, on one level of topology until issue 6.
"""

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes import NodeTable
from ganger.model.decision import NodeShare
from ganger.model.job import Shape


def place(nodes: NodeTable, shape: Shape, ranks_per_node: int) -> tuple[NodeShare, ...] | None:
    """Shares in rank order for every node of the gang, or None when it cannot be placed whole. O(nodes)."""
    fitting = np.flatnonzero(nodes.fitting(shape))
    if fitting.size < shape.nodes:
        return None
    chosen = np.sort(_choose(nodes, shape, fitting))
    return tuple(_share(nodes, shape, int(at), rank * ranks_per_node, ranks_per_node) for rank, at in enumerate(chosen))


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


def _share(nodes: NodeTable, shape: Shape, at: int, first_rank: int, ranks: int) -> NodeShare:
    devices = tuple(int(device) for device in nodes.free_devices(at)[: shape.gpus])
    return NodeShare(nodes.nodes[at].name, tuple(range(first_rank, first_rank + ranks)), devices)
