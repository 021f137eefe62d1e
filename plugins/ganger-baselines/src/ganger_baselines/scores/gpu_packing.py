"""`gpu-packing`: first a shared device, the one with the least left; then free devices of a busy node; then idle nodes.

Among idle nodes those with few devices come first. Parts without GPUs go anywhere. Source: the packing of GPU sharing
in Alibaba's PAI (Weng et al., "MLaaS in the Wild", NSDI 2022), as in the comparison of "Beware of Fragmentation" (Weng
et al., ATC 2023). There the remainder of a device counts in ten of the hundred grades of the score; here it counts in a
tenth of the policy's grades.
"""

from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

NAME: Final = "gpu-packing"
LASTS: Final = True
SEEDED: Final = False
_FREE: Final = 1 << 20
_IDLE: Final = 2 << 20
"""Scores of a free device and of an idle node: more than any remainder."""


def of_nodes(nodes: NodeArrays, part: Shape, indices: Ints) -> Ints:
    """Return (n,) scores by what the part would newly occupy."""
    if not part.has_gpus:
        return np.zeros(len(indices), dtype=np.int64)
    left, gpus, cut = (
        nodes.devices.left_milli(indices),
        nodes.total.gpus[indices].astype(np.int64),
        nodes.listing.rules.gpu_shares.cut,
    )
    is_idle = (left == DEVICE_MILLI).sum(axis=1) == gpus
    scores = np.full(len(indices), _FREE, dtype=np.int64)
    if part.has_share:
        shared = np.where((nodes.devices.room_at(part, indices) > 0) & (left < DEVICE_MILLI), left, DEVICE_MILLI)
        rest = shared.min(axis=1, initial=DEVICE_MILLI)
        graded = rest * cut // (10 * DEVICE_MILLI) if cut else rest
        scores = np.where(rest < DEVICE_MILLI, graded, scores)
    return np.where(is_idle, _IDLE + gpus, scores)


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """Leave the choice to the device with the least left."""
    return
