"""What a pod takes of its node, as kube-scheduler and the kubelet count it. Pure; called by `nodes`.

Containers run together; init containers run before them, one after the other, except those that are restarted always,
which stay beside all that come after them. The larger of the two moments counts, and the overhead of the pod's runtime
besides. What is asked for the pod as a whole counts in place of what its containers ask for.
Source: "Resource Management for Pods and Containers" and "Sidecar Containers" of the Kubernetes documentation.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ganger.kubeapi.objects import Needs, Pod
from ganger.kubeapi.quantity import wanted

CPU, MEMORY = "cpu", "memory"
GPU_RESOURCES: Final = {
    "nvidia.com/gpu": "nvidia",
    "amd.com/gpu": "amd",
    "habana.ai/gaudi": "gaudi",
    "gpu.intel.com/xe": "intel",
    "gpu.intel.com/i915": "intel",
}
"""What device plugins call a whole GPU, and its type where no label tells more. A node offers the first of these that
pods may have any of; parts of GPUs that have a resource of their own (`nvidia.com/mig-1g.5gb`) are none of them."""

_PLACE: Final = {CPU: 0, MEMORY: 1} | dict.fromkeys(GPU_RESOURCES, 2)
_PER_UNIT: Final = (1000, 1, 1)
_WHOLE_POD: Final = (CPU, MEMORY)
"""What may be asked for a pod as a whole."""


class Requested(NamedTuple):
    """An amount of each resource that ganger counts."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def plus(self, other: "Requested", sign: int = 1) -> "Requested":
        """The two together, or the first less the other."""
        return Requested(*(mine + sign * its for mine, its in zip(self, other, strict=True)))

    def most(self, other: "Requested") -> "Requested":
        """The larger of each."""
        return Requested(*map(max, self, other))


NOTHING: Final = Requested()


def requested(pod: Pod) -> Requested:
    """What the pod takes of its node. An amount that cannot be read is said, with the pod's name, and counts as 0."""
    spec, whose = pod.spec, f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    running = NOTHING
    for container in spec.containers:
        running = running.plus(_of(container.resources, whose))
    beside = starting = NOTHING
    for container in spec.init_containers:
        needs = beside.plus(_of(container.resources, whose))
        starting = starting.most(needs)
        if container.restart_policy == "Always":
            beside = needs
    found = running.plus(beside).most(starting)
    if spec.resources is not None:
        found = _in_place_of(found, spec.resources, whose)
    return found.plus(_amounts(spec.overhead, whose)) if spec.overhead else found


def _of(needs: Needs, whose: str) -> Requested:
    """A limit without a request is one, as the API server writes it down."""
    return _amounts({**needs.limits, **needs.requests} if needs.limits else needs.requests, whose)


def _amounts(said: Mapping[str, str], whose: str) -> Requested:
    amounts = [0, 0, 0]
    for resource, text in said.items():
        at = _PLACE.get(resource)
        if at is not None:
            amounts[at] += wanted(text, _PER_UNIT[at], f"{whose}: {resource}")
    return Requested(*amounts)


def _in_place_of(found: Requested, needs: Needs, whose: str) -> Requested:
    said = {**needs.limits, **needs.requests}
    whole = _amounts(said, whose)
    cpu, memory = (resource in said for resource in _WHOLE_POD)
    return Requested(
        whole.cpu_milli if cpu else found.cpu_milli, whole.memory_bytes if memory else found.memory_bytes, found.gpus
    )
