"""MIG slices that a job asks for by their type: `gpu: mig-1g.10gb:2` is two of the resource `nvidia.com/mig-1g.10gb`.

NVIDIA's device plugin with the strategy `mixed` has a resource for each profile, and a node may have several kinds of
slices beside whole GPUs, so slices are counted as extended resources and never as GPUs. Source: "MIG Support in
Kubernetes" of NVIDIA.
"""

import re
from dataclasses import replace
from typing import Final

from ganger.errors import RequestError
from ganger.model.job import GpuRequest, JobSpec, Resources

_SLICE: Final = re.compile(r"mig-[0-9]{1,2}g\.[0-9]{1,4}gb(?:\.[a-z0-9.]{1,20})?")
_VENDOR: Final = "nvidia.com/"


def with_slices(spec: JobSpec) -> JobSpec:
    """Return a spec that asks for the resources of the MIG slices that it names as GPU types. Raises RequestError.

    A node has one process per slice unless the spec says otherwise: a process of CUDA uses one slice.
    """
    roles = {name: replace(role, resources=_sliced(role.resources)) for name, role in spec.roles.items()}
    resources = _sliced(spec.resources)
    if resources == spec.resources:
        return replace(spec, roles=roles) if roles != spec.roles else spec
    processes = spec.nproc_per_node or spec.resources.gpu.count or None
    return replace(spec, roles=roles, resources=resources, nproc_per_node=processes)


def _sliced(resources: Resources) -> Resources:
    gpu = resources.gpu
    types = [name.lower() for name in (gpu.type, *gpu.other_types) if name is not None]
    slices = [name for name in types if _SLICE.fullmatch(name)]
    if not slices:
        return resources
    if len(types) > 1:
        detail = f"resources.gpu names {', '.join(types)}: MIG slices are a resource of their own"
        raise RequestError("bad_spec", detail, f"name one type of slices: gpu: {slices[0]}:1")
    resource = f"{_VENDOR}{slices[0]}"
    if gpu.is_share or resource in resources.extended:
        what = "a share of a MIG slice" if gpu.is_share else f"resources.extended has {resource} too"
        raise RequestError("bad_spec", f"resources.gpu names {slices[0]}: {what}", f"write gpu: {slices[0]}:1 alone")
    return replace(resources, gpu=GpuRequest(), extended={**resources.extended, resource: gpu.count})
