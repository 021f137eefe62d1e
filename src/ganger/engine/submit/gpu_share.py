"""How much compute belongs to a part of a GPU's memory, where a job says no more than that. Called at submission.

Compute and memory of a device are counted separately, and quota counts compute: a share that asked for memory alone
would cost nothing, and could slow down all others on its device.
"""

from dataclasses import replace

import numpy as np

from ganger.core.nodes.node_table import NodeTable
from ganger.model.job import JobSpec, Resources
from ganger.model.units import DEVICE_MILLI


def with_compute(nodes: NodeTable, spec: JobSpec) -> JobSpec:
    """The spec with as large a part of the compute as it asks for of the memory: of the smallest GPU that could hold
    it, rounded up, so that it is no less of any other."""
    roles = {name: replace(role, resources=_filled(nodes, role.resources)) for name, role in spec.roles.items()}
    return replace(spec, resources=_filled(nodes, spec.resources), roles=roles)


def _filled(nodes: NodeTable, resources: Resources) -> Resources:
    gpu = resources.gpu
    if gpu.memory_bytes is None or gpu.milli is not None:
        return resources
    sizes = nodes.devices.memory_bytes[nodes.gpus > 0]
    able = sizes[sizes >= gpu.memory_bytes]
    if not able.size:
        return resources  # refused a moment later, with what there is
    milli = -(-DEVICE_MILLI * gpu.memory_bytes // int(np.min(able)))
    return replace(resources, gpu=replace(gpu, milli=milli))
