"""Resources that a pod uses of its node, as kube-scheduler and the kubelet count them.

Containers run together; init containers run before them, one after the other, except sidecars (`restartPolicy:
Always`), which keep running beside all that come after them. The larger of the two phases counts, plus the overhead of
the pod's runtime class. Pod-level requests replace the sum of the containers'. Source: "Resource Management for Pods
and Containers" and "Sidecar Containers" of the Kubernetes documentation.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ganger.kubeapi.objects import Pod, ResourceRequirements
from ganger.kubeapi.quantity import requested_amount

CPU, MEMORY = "cpu", "memory"
GPU_RESOURCES: Final = {
    "nvidia.com/gpu": "nvidia",
    "amd.com/gpu": "amd",
    "habana.ai/gaudi": "gaudi",
    "gpu.intel.com/xe": "intel",
    "gpu.intel.com/i915": "intel",
}
"""Device plugin resources of whole GPUs, and the GPU type if no label tells more.

A node has the first of these that pods may use; parts of GPUs with a resource of their own (`nvidia.com/mig-1g.5gb`) do
not count.
"""

_INDEX: Final = {CPU: 0, MEMORY: 1} | dict.fromkeys(GPU_RESOURCES, 2)
_PER_UNIT: Final = (1000, 1, 1)
_POD_LEVEL: Final = (CPU, MEMORY)
"""Resources that may be requested at pod level."""


class PodResources(NamedTuple):
    """Amounts of the resources that ganger counts."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def plus(self, other: "PodResources", sign: int = 1) -> "PodResources":
        """Return the sum, or the difference with sign -1."""
        return PodResources(*(own + sign * added for own, added in zip(self, other, strict=True)))

    def larger(self, other: "PodResources") -> "PodResources":
        """Return the larger amount of each resource."""
        return PodResources(*map(max, self, other))


ZERO: Final = PodResources()


def pod_request(pod: Pod) -> PodResources:
    """Return what the pod uses of its node. An invalid amount is logged with the pod's name and counts as 0."""
    spec, subject = pod.spec, f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    running = ZERO
    for container in spec.containers:
        running = running.plus(_container_amounts(container.resources, subject))
    sidecars = starting = ZERO
    for container in spec.init_containers:
        with_sidecars = sidecars.plus(_container_amounts(container.resources, subject))
        starting = starting.larger(with_sidecars)
        if container.restart_policy == "Always":
            sidecars = with_sidecars
    total = running.plus(sidecars).larger(starting)
    if spec.resources is not None:
        total = _with_pod_level(total, spec.resources, subject)
    return total.plus(_amounts(spec.overhead, subject)) if spec.overhead else total


def _container_amounts(requirements: ResourceRequirements, subject: str) -> PodResources:
    """Return a container's amounts. A limit without a request counts as one, as the API server defaults it."""
    quantities = requirements.requests
    return _amounts({**requirements.limits, **quantities} if requirements.limits else quantities, subject)


def _amounts(quantities: Mapping[str, str], subject: str) -> PodResources:
    amounts = [0, 0, 0]
    for resource, text in quantities.items():
        index = _INDEX.get(resource)
        if index is not None:
            amounts[index] += requested_amount(text, _PER_UNIT[index], f"{subject}: {resource}")
    return PodResources(*amounts)


def _with_pod_level(total: PodResources, requirements: ResourceRequirements, subject: str) -> PodResources:
    quantities = {**requirements.limits, **requirements.requests}
    of_pod = _amounts(quantities, subject)
    cpu, memory = (resource in quantities for resource in _POD_LEVEL)
    return PodResources(
        of_pod.cpu_milli if cpu else total.cpu_milli,
        of_pod.memory_bytes if memory else total.memory_bytes,
        total.gpus,
    )
