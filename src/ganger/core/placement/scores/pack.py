"""`pack`: the device with the least left that holds the share. Of whole devices it says nothing: nodes with the least
left are first anyway. The default; best fit of one resource, as Kubernetes device plugins that share GPUs place them
(reference: elastic-network-data, section 4)."""

from typing import TYPE_CHECKING, Final

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape

if TYPE_CHECKING:
    from ganger.core.nodes.node_table import NodeTable

NAME: Final = "pack"
LASTS: Final = True


def of_nodes(nodes: "NodeTable", part: Shape, at: Ints) -> Ints:
    """(n,) what would be left, at the least, of a device that takes the share."""
    return nodes.devices.left(part, at) if part.has_share else np.zeros(len(at), dtype=np.int64)


def of_devices(_nodes: "NodeTable", _part: Shape, _devices: Ints) -> None:
    """The one with the least left."""
    return
