"""Amounts relative to the largest node, and integers rounded to grades, for the scores."""

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.units import DEVICE_MILLI


def largest(nodes: NodeArrays) -> tuple[int, int]:
    """Return the most CPU, and the most GPUs in thousandths, of any node; at least 1."""
    cpu_milli, gpus = int(nodes.total.cpu_milli.max(initial=0)), int(nodes.total.gpus.max(initial=0))
    return max(1, cpu_milli), max(1, gpus * DEVICE_MILLI)


def grades(badness: Ints, worst: int, cut: int) -> Ints:
    """Return grades from 0, the best, to `cut` at `worst`, rounded up; the value itself without a cut."""
    graded: Ints = -(-badness * cut // worst) if cut else badness
    return graded
