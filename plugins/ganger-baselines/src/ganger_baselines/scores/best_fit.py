"""`best-fit`: the node that is left with the least CPU and GPU, each relative to the largest node, with equal weight.

Source: the best-fit rule of multi-dimensional packing, the comparison in "Beware of Fragmentation" (Weng et al., ATC
2023), whose largest node has 128 CPUs and 8 GPUs.
"""

from typing import Final

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape
from ganger_baselines.grades import grades, largest

NAME: Final = "best-fit"
LASTS: Final = True
SEEDED: Final = False


def of_nodes(nodes: NodeArrays, part: Shape, indices: Ints) -> Ints:
    """Return (n,) what would be left."""
    most_cpu_milli, most_gpu_milli = largest(nodes)
    cpu_milli = nodes.free.cpu_milli[indices] - part.cpu_milli
    gpu_milli = nodes.devices.left_milli(indices).sum(axis=1) - part.gpu_milli_of(0)
    left = cpu_milli * most_gpu_milli + gpu_milli * most_cpu_milli
    return grades(left, 2 * most_cpu_milli * most_gpu_milli, nodes.listing.rules.gpu_shares.cut)


def of_devices(_nodes: NodeArrays, _part: Shape, _devices: Ints) -> None:
    """Leave the choice to the device with the least left."""
    return
