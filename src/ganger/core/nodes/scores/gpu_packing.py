"""`gpu-packing`: first a device that is shared already, the one with the least left; then free devices of a node where
one is in use; then those of an idle node, one with few devices first. Parts without GPUs go anywhere.

Source: the packing of GPU sharing in Alibaba's PAI (Weng et al., "MLaaS in the Wild", NSDI 2022), as it is the rival in
"Beware of Fragmentation" (Weng et al., ATC 2023). There the rest of a device counts in ten grades, of a hundred that
the whole score has: here it counts in a tenth of the grades that the policy says.
"""

from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

NAME: Final = "gpu-packing"
LASTS: Final = True
_FREE: Final = 1 << 20
_IDLE: Final = 2 << 20
"""Of a free device, and of an idle node: more than any rest is."""


def of_nodes(nodes: NodeArrays, part: Shape, at: Ints) -> Ints:
    """(n,) by what would have to be begun."""
    if not part.has_gpus:
        return np.zeros(len(at), dtype=np.int64)
    left, gpus, cut = nodes.devices.left_milli(at), nodes.gpus[at].astype(np.int64), nodes.rules.gpu_shares.cut
    is_idle = (left == DEVICE_MILLI).sum(axis=1) == gpus
    found = np.full(len(at), _FREE, dtype=np.int64)
    if part.has_share:
        shared = np.where((nodes.devices.rooms_at(part, at) > 0) & (left < DEVICE_MILLI), left, DEVICE_MILLI)
        rest = shared.min(axis=1, initial=DEVICE_MILLI)
        graded = rest * cut // (10 * DEVICE_MILLI) if cut else rest
        found = np.where(rest < DEVICE_MILLI, graded, found)
    return np.where(is_idle, _IDLE + gpus, found)


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """The one with the least left."""
    return
