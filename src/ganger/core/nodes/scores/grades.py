"""What several scores are made of: amounts as parts of the largest node's, and numbers cut into whole grades."""

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.units import DEVICE_MILLI


def largest(nodes: NodeArrays) -> tuple[int, int]:
    """The most CPU that any node has, and the most GPUs, in thousandths; 1 for none."""
    cpu_milli, gpus = int(nodes.cpu_milli.max(initial=0)), int(nodes.gpus.max(initial=0))
    return max(1, cpu_milli), max(1, gpus * DEVICE_MILLI)


def grades(badness: Ints, of: int, cut: int) -> Ints:
    """From 0, the best, to `cut`, for what is `of` at the worst: so many points, of which whole ones count, are given
    for what it is better than that. As it is without a cut."""
    found: Ints = -(-badness * cut // of) if cut else badness
    return found
