"""`fgd`: the node and device where a placement adds the least to the fragments for the typical demands here.

Fragments are those of `core.nodes.fragmentation`. With a cut the change is put on a logistic curve of whole GPUs first,
so that nodes with about the same change tie: as published, with 100 grades. Source: fragmentation gradient descent,
"Beware of Fragmentation" (Weng et al., ATC 2023).
"""

from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.policy import FRAGMENTATION
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

NAME: Final = FRAGMENTATION
LASTS: Final = True
SEEDED: Final = False
NOWHERE: Final = np.iinfo(np.int64).max


def of_nodes(nodes: NodeArrays, part: Shape, indices: Ints) -> Ints:
    """Return (n,) the smallest added fragments, in grades."""
    left = nodes.devices.left_milli(indices)
    if part.has_share:
        # Devices of a node with equal remainders give equal results: only the first of them is evaluated.
        able = nodes.devices.room_at(part, indices) > 0
        able &= ~np.tril((left[:, :, None] == left[:, None, :]) & able[:, None, :], -1).any(axis=2)
        row, column = np.nonzero(able)
        added: Ints = np.full(len(indices), NOWHERE, dtype=np.int64)
        np.minimum.at(added, row, _added(nodes, part, indices[row], column))
    else:
        added = _added(nodes, part, indices, None)
    return _grade(nodes, added)


def of_devices(nodes: NodeArrays, part: Shape, devices: Ints) -> Ints:
    """Return (d,) the added fragments on each of these devices, which have room, in grades."""
    indices = nodes.devices.node[devices]
    return _grade(nodes, _added(nodes, part, indices, nodes.devices.place[devices]))


def _added(nodes: NodeArrays, part: Shape, indices: Ints, device: Ints | None) -> Ints:
    """Return (n,) the added fragments on these nodes, summed over the demands; for a share on that device of each."""
    left, cpu_milli, memory_bytes = (
        nodes.devices.left_milli(indices),
        nodes.free.cpu_milli[indices],
        nodes.free.memory_bytes[indices],
    )
    after = left.copy()
    if device is not None:
        after[np.arange(len(indices)), device] -= part.gpu_milli
    else:
        # Free devices are interchangeable: take the first ones.
        is_free = left == DEVICE_MILLI
        after[is_free & (np.cumsum(is_free, axis=1) <= part.gpus)] = 0
    both = nodes.fragments.expected(
        np.concatenate((indices, indices)),
        np.concatenate((left, after)),
        np.concatenate((cpu_milli, cpu_milli - part.cpu_milli)),
        np.concatenate((memory_bytes, memory_bytes - part.memory_bytes)),
    )
    return both[len(indices) :] - both[: len(indices)]


def _grade(nodes: NodeArrays, added: Ints) -> Ints:
    """Return the average over the demands in grades, 0 being the best."""
    cut = nodes.listing.rules.gpu_shares.cut
    if not cut:
        return added
    scale = DEVICE_MILLI * max(1, nodes.fragments.times)
    possible = added != NOWHERE
    graded = np.full(len(added), cut + 1, dtype=np.int64)
    graded[possible] = cut - np.floor(cut / (1 + np.exp(added[possible] / scale))).astype(np.int64)
    return graded
