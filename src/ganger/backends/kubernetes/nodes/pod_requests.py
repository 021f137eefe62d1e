"""Resources that a pod uses of its node, as kube-scheduler and the kubelet count them.

Containers run together; init containers run before them, one after the other, except sidecars (`restartPolicy:
Always`), which keep running beside all that come after them. The larger of the two phases counts, plus the overhead of
the pod's runtime class. Pod-level requests replace the sum of the containers'. Source: "Resource Management for Pods
and Containers" and "Sidecar Containers" of the Kubernetes documentation.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ganger.backends.kubernetes.gpus.sharing_dialects import SHARE_RESOURCES, ShareRequest, share_request
from ganger.kubeapi.objects import Pod, ResourceRequirements
from ganger.kubeapi.quantity import requested_amount
from ganger.model.units import EPHEMERAL_STORAGE
from ganger.registry import gpu_resources

CPU, MEMORY = "cpu", "memory"

_INDEX: Final = {CPU: 0, MEMORY: 1}
_GPUS: Final = 2
_PER_UNIT: Final = (1000, 1, 1)
_POD_LEVEL: Final = (CPU, MEMORY)
"""Resources that may be requested at pod level."""


class PodResources(NamedTuple):
    """Amounts of the resources that ganger counts; those of extended resources by name, sorted, none of them 0.

    share: what a pod asks for in a dialect of GPU sharing; such a pod has `gpus` only if these are whole, or if it
        contradicts itself: then its resources count as requested.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    share: ShareRequest | None = None

    def plus(self, other: "PodResources", sign: int = 1) -> "PodResources":
        """Return the sum, or the difference with sign -1."""
        return self._combined(other, lambda own, added: own + sign * added)

    def larger(self, other: "PodResources") -> "PodResources":
        """Return the larger amount of each resource."""
        return self._combined(other, max)

    def _combined(self, other: "PodResources", combine: Callable[[int, int], int]) -> "PodResources":
        cpu_milli, memory_bytes, gpus = map(combine, self[:3], other[:3])
        if not (self.extended or other.extended):
            return PodResources(cpu_milli, memory_bytes, gpus)
        own, added = dict(self.extended), dict(other.extended)
        extended = {name: combine(own.get(name, 0), added.get(name, 0)) for name in sorted(own.keys() | added)}
        rest = tuple((name, amount) for name, amount in extended.items() if amount)
        return PodResources(cpu_milli, memory_bytes, gpus, rest)


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
    total = total.plus(_amounts(spec.overhead, subject)) if spec.overhead else total
    share = share_request(pod)
    return total if share is None else _with_share(total, share)


def _with_share(total: PodResources, share: ShareRequest) -> PodResources:
    """Return the amounts of a pod that asks for GPUs in a dialect, whose resources are not counted twice."""
    extended = tuple((name, amount) for name, amount in total.extended if name not in SHARE_RESOURCES)
    if not share.error and total.gpus not in (0, share.devices):
        error = f"it asks for {total.gpus} GPUs and for a share of {share.devices}; leave one of them out"
        share = share._replace(error=error)
    gpus = share.devices if share.is_whole else 0
    if share.error:
        gpus = max(total.gpus, len(extended) < len(total.extended))
    return total._replace(gpus=gpus, extended=extended, share=share)


def _container_amounts(requirements: ResourceRequirements, subject: str) -> PodResources:
    """Return a container's amounts. A limit without a request counts as one, as the API server defaults it."""
    quantities = requirements.requests
    return _amounts({**requirements.limits, **quantities} if requirements.limits else quantities, subject)


def _amounts(quantities: Mapping[str, str], subject: str) -> PodResources:
    amounts, extended = [0, 0, 0], dict[str, int]()
    for resource, text in quantities.items():
        index = _GPUS if resource in gpu_resources() else _INDEX.get(resource)
        if index is not None:
            amounts[index] += requested_amount(text, _PER_UNIT[index], f"{subject}: {resource}")
        elif is_extended(resource) and (amount := requested_amount(text, 1, f"{subject}: {resource}")):
            extended[resource] = amount
    cpu_milli, memory_bytes, gpus = amounts
    return PodResources(cpu_milli, memory_bytes, gpus, tuple(sorted(extended.items())))


def is_extended(resource: str) -> bool:
    """Return whether a resource is counted as an extended one.

    It is one, other than whole GPUs, if its name has a domain of another program; and the disk of nodes counts as one.
    """
    domain, slash, _ = resource.partition("/")
    if not slash:
        return resource == EPHEMERAL_STORAGE
    return resource not in gpu_resources() and not f".{domain}".endswith(".kubernetes.io")


def _with_pod_level(total: PodResources, requirements: ResourceRequirements, subject: str) -> PodResources:
    quantities = {**requirements.limits, **requirements.requests}
    of_pod = _amounts(quantities, subject)
    cpu, memory = (resource in quantities for resource in _POD_LEVEL)
    return PodResources(
        of_pod.cpu_milli if cpu else total.cpu_milli,
        of_pod.memory_bytes if memory else total.memory_bytes,
        total.gpus,
        total.extended,
    )
