"""`dotprod`: the node whose free CPU and GPU, as a vector, has the smallest dot product with the part's request.

Both are relative to the largest node. Small remainders are so given to small requests. Source: the alignment of Tetris
(Grandl et al., SIGCOMM 2014), which prefers the largest product; here the smallest, as in the comparison of "Beware of
Fragmentation" (Weng et al., ATC 2023).
"""

from typing import Final

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger_baselines.grades import grades, largest

NAME: Final = "dotprod"
LASTS: Final = True
SEEDED: Final = False
_ONE: Final = 1 << 20
"""The product of an empty node and a part that requests all of one resource."""


def of_nodes(nodes: NodeArrays, part: Shape, indices: Ints) -> Ints:
    """Return (n,) the products."""
    most_cpu_milli, most_gpu_milli = largest(nodes)
    cpu_milli, gpu_milli = nodes.free.cpu_milli[indices], nodes.devices.left_milli(indices).sum(axis=1)
    product = (cpu_milli * _ONE // most_cpu_milli) * part.cpu_milli // most_cpu_milli
    product += (gpu_milli * _ONE // most_gpu_milli) * part.gpu_milli_of(0) // most_gpu_milli
    return grades(product, 2 * _ONE, nodes.listing.rules.gpu_shares.cut)


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """Leave the choice to the device with the least left."""
    return
