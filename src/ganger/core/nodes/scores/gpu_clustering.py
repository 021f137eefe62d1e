"""`gpu-clustering`: nodes with gangs of the same size only, a share or so many devices on the node; then such where
there are others besides; then idle ones; then those with others only. Among these the one with the fewest GPUs left.
Parts without GPUs go anywhere.

Source: the job affinity of Gandiva (Xiao et al., OSDI 2018), as it is the rival in "Beware of Fragmentation" (Weng et
al., ATC 2023), whose hundred grades are four times twenty-five.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import SHARED_OUT
from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.scores.grades import largest
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape

NAME: Final = "gpu-clustering"
LASTS: Final = True
_STEP: Final = 1 << 30
"""From one of the four to the next: more than any node has left."""


def of_nodes(nodes: NodeArrays, part: Shape, at: Ints) -> Ints:
    """(n,) by what is there, then by what is left."""
    if not part.has_gpus:
        return np.zeros(len(at), dtype=np.int64)
    most, cut = largest(nodes)[1], nodes.rules.gpu_shares.cut
    left = nodes.devices.left_milli(at).sum(axis=1)
    graded = -((most - left) * cut // (4 * most)) if cut else left
    sizes = _sizes(nodes, at)
    same, many = sizes[:, part.gpus] if part.gpus < sizes.shape[1] else np.zeros(len(at), dtype=bool), sizes.sum(axis=1)
    others = np.where(same, many > 1, np.where(many == 0, 2, 3))
    found: Ints = _STEP * others + graded
    return found


def _sizes(nodes: NodeArrays, at: Ints) -> NDArray[np.bool_]:
    """(n, most devices of a node + 1) whether a gang has so many whole devices on the node; at 0: a share."""
    owner = nodes.devices.owners(at)
    many = ((owner[:, :, None] == owner[:, None, :]) & (owner >= 0)[:, :, None]).sum(axis=2)
    sizes: NDArray[np.bool_] = (many[:, :, None] == np.arange(owner.shape[1] + 1)).any(axis=1)
    sizes[:, 0] = (owner == SHARED_OUT).any(axis=1)
    return sizes


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """The one with the least left."""
    return
