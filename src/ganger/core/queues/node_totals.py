"""The amounts of all nodes together, which bound every quota."""

from collections import Counter

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.queues.quota import Vector
from ganger.core.queues.quota_figures import EXTENDED_PREFIX, GPU_TYPE_PREFIX
from ganger.model.units import DEVICE_MILLI


def capacity(nodes: NodeArrays) -> Vector:
    """Return the GPUs, CPUs and memory of all nodes."""
    gpus, cpu_milli, memory_bytes = (int(amounts.sum()) for amounts in nodes.total)
    return (DEVICE_MILLI * gpus, cpu_milli, memory_bytes)


def named_totals(nodes: NodeArrays) -> Counter[str]:
    """Return the GPUs of each type and the amount of each extended resource."""
    totals = Counter[str]()
    for gpu_type, gpus in zip(nodes.attributes.gpu_types, nodes.total.gpus.tolist(), strict=True):
        totals[GPU_TYPE_PREFIX + gpu_type] += DEVICE_MILLI * gpus
    for name, amounts in nodes.extended.total.items():
        totals[EXTENDED_PREFIX + name] = int(amounts.sum())
    return totals
