"""What pods that somebody else made ask for, as a job of the model. Pure; called by `others`.

Each pod is a process, which may share a node with others; pods that ask for the same are one role. What the model does
not say is refused, and never passed over.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ganger.backends.kubernetes.requested import CPU, GPU_RESOURCES, MEMORY, Requested, requested
from ganger.backends.kubernetes.types import Pod, PodSpec, Toleration
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Placement, Resources, Retry, Role

COUNTED: Final = (CPU, MEMORY, "ephemeral-storage", *GPU_RESOURCES)
"""What pods may ask for. Disks of nodes are left to kubelets."""
MOST_PRIORITY: Final = 1000


class NotExpressible(Exception):
    """Why pods cannot be placed by ganger, and what to do."""


def job_of(gang: str, name: str, pods: Sequence[Pod]) -> tuple[Job, list[Pod]]:
    """The job, and the pods in the order of its ranks. Raises NotExpressible."""
    first = pods[0].spec
    by_needs: dict[Requested, list[Pod]] = {}
    for pod in pods:
        _check(pod, first)
        by_needs.setdefault(requested(pod), []).append(pod)
    named = [("worker" if at == 0 else f"pods-{at}", needs) for at, needs in enumerate(by_needs)]
    roles = {role: Role(count=len(by_needs[needs]), resources=_resources(needs)) for role, needs in named}
    spec = JobSpec(
        name=name,
        priority=max(-MOST_PRIORITY, min(MOST_PRIORITY, max(pod.spec.priority for pod in pods))),
        roles=roles,
        placement=Placement(node_selector=first.node_selector, tolerations=tuple(_tolerated(first.tolerations))),
        retry=Retry(max=0),
    )
    job = Job(id=gang, user=pods[0].metadata.namespace, spec=spec, origin=Origin(directory="/"))
    ordered = [pod for needs in by_needs for pod in by_needs[needs]]
    return job, ordered


def _resources(needs: Requested) -> Resources:
    gpu = GpuRequest(count=needs.gpus)
    return Resources(gpu=gpu, cpu_milli=needs.cpu_milli, memory_bytes=needs.memory_bytes)


def _check(pod: Pod, first: PodSpec) -> None:
    """Whether a pod asks for nothing else, and for the same nodes as the others."""
    spec, name = pod.spec, pod.metadata.name
    if spec.affinity:
        raise NotExpressible(f"{name}: ganger does not read spec.affinity of pods; use spec.nodeSelector")
    if spec.resource_claims:
        raise NotExpressible(f"{name}: ganger gives no ResourceClaims to pods; ask for nvidia.com/gpu")
    for container in (*spec.containers, *spec.init_containers):
        asked = {**container.resources.limits, **container.resources.requests}
        for unknown in sorted(asked.keys() - set(COUNTED)):
            raise NotExpressible(f"{name}: ganger does not count {unknown}; leave the pod to another scheduler")
    if (spec.node_selector, spec.tolerations) != (first.node_selector, first.tolerations):
        raise NotExpressible(f"{name}: its nodeSelector or tolerations differ from those of others in its PodGroup")


def _tolerated(tolerations: Sequence[Toleration]) -> Iterator[str]:
    """As the model has taints. One for an effect that keeps nobody from being placed says nothing here."""
    for each in tolerations:
        if each.effect in ("", "NoSchedule"):
            if not each.key:
                yield "*"
            elif each.operator == "Exists" or not each.value:
                yield each.key
            else:
                yield f"{each.key}={each.value}"
