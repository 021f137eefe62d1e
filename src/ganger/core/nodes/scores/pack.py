"""`pack`, the default: the device with the least left that takes the share; for whole devices no preference.

Nodes with the least left come first anyway. Best fit of one resource, as Kubernetes device plugins that share GPUs
place them (reference: elastic-network-data, section 4).
"""

from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape

NAME: Final = "pack"
LASTS: Final = True
SEEDED: Final = False


def of_nodes(nodes: NodeArrays, part: Shape, indices: Ints) -> Ints:
    """Return (n,) what would be left of the tightest device that takes the share."""
    return nodes.devices.least_left(part, indices) if part.has_share else np.zeros(len(indices), dtype=np.int64)


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """Leave the choice to the device with the least left."""
    return
