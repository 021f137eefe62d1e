"""`pack`: the device with the least left that holds the share. Of whole devices it says nothing: nodes with the least
left are first anyway. The default; best fit of one resource, as Kubernetes device plugins that share GPUs place them
(reference: elastic-network-data, section 4)."""

from typing import Final

import numpy as np

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape

NAME: Final = "pack"
LASTS: Final = True


def of_nodes(nodes: NodeArrays, part: Shape, at: Ints) -> Ints:
    """(n,) what would be left, at the least, of a device that takes the share."""
    return nodes.devices.left(part, at) if part.has_share else np.zeros(len(at), dtype=np.int64)


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """The one with the least left."""
    return
