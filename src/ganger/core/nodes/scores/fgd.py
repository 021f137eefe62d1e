"""`fgd`: the node, and the device there, where the least more becomes a fragment for what jobs here ask for.

Fragments are those of `core.nodes.fragmentation`. With a cut the change is first put on a logistic curve of whole GPUs,
and nodes of about the same change tie: as published, with 100 grades. Source: fragmentation gradient descent, "Beware
of Fragmentation" (Weng et al., ATC 2023)."""

from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.policy import FRAGMENTATION
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

NAME: Final = FRAGMENTATION
LASTS: Final = True
NOWHERE: Final = np.iinfo(np.int64).max


def of_nodes(nodes: NodeArrays, part: Shape, at: Ints) -> Ints:
    """(n,) what it would add, at the least, in grades."""
    left = nodes.devices.left_milli(at)
    if part.has_share:
        # Devices of a node that have the same left are the same to it: the first of them stands for all.
        able = nodes.devices.rooms_at(part, at) > 0
        able &= ~np.tril((left[:, :, None] == left[:, None, :]) & able[:, None, :], -1).any(axis=2)
        row, column = np.nonzero(able)
        found: Ints = np.full(len(at), NOWHERE, dtype=np.int64)
        np.minimum.at(found, row, _added(nodes, part, at[row], column))
    else:
        found = _added(nodes, part, at, None)
    return _graded(nodes, found)


def of_devices(nodes: NodeArrays, part: Shape, devices: Ints) -> Ints:
    """(d,) what it would add on each of these devices, which hold it, in grades."""
    at = nodes.devices.node[devices]
    return _graded(nodes, _added(nodes, part, at, nodes.devices.place[devices]))


def _added(nodes: NodeArrays, part: Shape, at: Ints, place: Ints | None) -> Ints:
    """(n,) summed over the kinds, on these nodes; for a share on the device at that place of each."""
    left, cpu_milli, memory_bytes = nodes.devices.left_milli(at), nodes.free_cpu_milli[at], nodes.free_memory_bytes[at]
    after = left.copy()
    if place is not None:
        after[np.arange(len(at)), place] -= part.gpu_milli
    else:
        # Free devices are alike: any so many of them.
        is_free = left == DEVICE_MILLI
        after[is_free & (np.cumsum(is_free, axis=1) <= part.gpus)] = 0
    both = nodes.fragments.of(
        np.concatenate((at, at)),
        np.concatenate((left, after)),
        np.concatenate((cpu_milli, cpu_milli - part.cpu_milli)),
        np.concatenate((memory_bytes, memory_bytes - part.memory_bytes)),
    )
    return both[len(at) :] - both[: len(at)]


def _graded(nodes: NodeArrays, added: Ints) -> Ints:
    """On average over the kinds, from 0, the best, to the number of grades."""
    cut = nodes.rules.gpu_shares.cut
    if not cut:
        return added
    of = DEVICE_MILLI * max(1, nodes.fragments.times)
    there = added != NOWHERE
    found = np.full(len(added), cut + 1, dtype=np.int64)
    found[there] = cut - np.floor(cut / (1 + np.exp(added[there] / of))).astype(np.int64)
    return found
