"""`gpu-clustering`: nodes that run only gangs of the same GPU size, then nodes with such gangs among others.

Then idle nodes, then nodes with other gangs only; among equals the node with the fewest GPUs left. The size is a share,
or the number of devices on the node. Parts without GPUs go anywhere. Source: the job affinity of Gandiva (Xiao et al.,
OSDI 2018), as in the comparison of "Beware of Fragmentation" (Weng et al., ATC 2023), whose hundred grades are four
times twenty-five.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import SHARED_OUT
from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger_baselines.grades import largest

NAME: Final = "gpu-clustering"
LASTS: Final = True
SEEDED: Final = False
_STEP: Final = 1 << 30
"""The distance between the four groups: more than any node has left."""


def of_nodes(nodes: NodeArrays, part: Shape, indices: Ints) -> Ints:
    """Return (n,) scores by the group of the node, then by what is left."""
    if not part.has_gpus:
        return np.zeros(len(indices), dtype=np.int64)
    largest_gpu_milli, cut = largest(nodes)[1], nodes.listing.rules.gpu_shares.cut
    left = nodes.devices.left_milli(indices).sum(axis=1)
    graded = -((largest_gpu_milli - left) * cut // (4 * largest_gpu_milli)) if cut else left
    sizes = _sizes(nodes, indices)
    same, size_count = (
        sizes[:, part.gpus] if part.gpus < sizes.shape[1] else np.zeros(len(indices), dtype=bool),
        sizes.sum(axis=1),
    )
    group = np.where(same, size_count > 1, np.where(size_count == 0, 2, 3))
    scores: Ints = _STEP * group + graded
    return scores


def _sizes(nodes: NodeArrays, indices: Ints) -> NDArray[np.bool_]:
    """Return (n, most devices of a node + 1) whether a gang holds that many whole devices; column 0 is for shares."""
    owner = nodes.devices.owners(indices)
    held = ((owner[:, :, None] == owner[:, None, :]) & (owner >= 0)[:, :, None]).sum(axis=2)
    sizes: NDArray[np.bool_] = (held[:, :, None] == np.arange(owner.shape[1] + 1)).any(axis=1)
    sizes[:, 0] = (owner == SHARED_OUT).any(axis=1)
    return sizes


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """Leave the choice to the device with the least left."""
    return
