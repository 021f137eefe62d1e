"""What pods that somebody else made ask for, as a job of the model. Pure; called by `others` and `taken_over`.

Each pod is a process, which may share a node with others; pods that ask for the same are one role. What the model does
not say is refused, and never passed over. Here too: which pods are others', and with which of them each is placed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.custom_resources import SCHEDULER
from ganger.backends.kubernetes.foreign.node_affinity import Unreadable, read
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.pod_requests import CPU, GPU_RESOURCES, MEMORY, Requested, requested
from ganger.kubeapi.objects import Key, Pod, Toleration
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Placement, Resources, Retry, Role
from ganger.model.queue import DEFAULT
from ganger.model.terms import REQUIRED

COUNTED: Final = (CPU, MEMORY, "ephemeral-storage", *GPU_RESOURCES)
"""What pods may ask for. Disks of nodes are left to kubelets."""
MOST_PRIORITY: Final = 1000


class NotExpressible(Exception):
    """Why pods cannot be placed by ganger, and what to do."""


LevelOf = Callable[[str], str]
"""The level of the network that a label of nodes says; empty for a label that says none."""


class Unit(NamedTuple):
    """What is placed together: the pods of a PodGroup, or one pod."""

    is_group: bool
    key: Key


def job_of(
    gang: str, name: str, pods: Sequence[Pod], group: PodGroup | None, level_of: LevelOf
) -> tuple[Job, list[Pod]]:
    """The job, and the pods in the order of its ranks. Raises NotExpressible."""
    queue, placement = _queue(pods[0], group), _placement(pods[0])
    by_needs: dict[Requested, list[Pod]] = {}
    for pod in pods:
        _check(pod)
        if _placement(pod) != placement:
            why = "its nodeSelector, nodeAffinity or tolerations differ from those of others in its PodGroup"
            raise NotExpressible(f"{pod.metadata.name}: {why}")
        if (other := _queue(pod, group)) != queue:
            why = f"it asks for the queue {other}, others of its PodGroup for {queue}"
            raise NotExpressible(f"{pod.metadata.name}: {why}")
        by_needs.setdefault(requested(pod), []).append(pod)
    named = [("worker" if at == 0 else f"pods-{at}", needs) for at, needs in enumerate(by_needs)]
    roles = {role: Role(count=len(by_needs[needs]), resources=_resources(needs)) for role, needs in named}
    spec = JobSpec(
        name=name,
        queue=queue,
        priority=max(-MOST_PRIORITY, min(MOST_PRIORITY, max(pod.spec.priority for pod in pods))),
        roles=roles,
        placement=_together(placement, group, level_of),
        retry=Retry(max=0),
    )
    job = Job(id=gang, user=pods[0].metadata.namespace, spec=spec, origin=Origin(directory="/"))
    ordered = [pod for needs in by_needs for pod in by_needs[needs]]
    return job, ordered


def _queue(pod: Pod, group: PodGroup | None) -> str:
    """The queue that a pod says itself, or else its PodGroup."""
    said = pod.metadata.labels.get(object_names.QUEUE) or (
        group.metadata.labels.get(object_names.QUEUE) if group else None
    )
    return said or DEFAULT


def _placement(pod: Pod) -> Placement:
    """On which nodes a pod may be."""
    spec = pod.spec
    try:
        affinity = read(spec.affinity)
    except Unreadable as why:
        raise NotExpressible(f"{pod.metadata.name}: {why}") from None
    return Placement(
        node_selector=spec.node_selector, affinity=affinity, tolerations=tuple(_tolerated(spec.tolerations))
    )


def _together(placement: Placement, group: PodGroup | None, level_of: LevelOf) -> Placement:
    """The same, and in one domain of the level that a PodGroup asks for."""
    keys = [each.key for each in group.spec.scheduling_constraints.topology] if group else []
    if not keys:
        return placement
    level = level_of(keys[0]) if len(keys) == 1 else ""
    if not level:
        why = f"its PodGroup is to be in one domain of {', '.join(keys)}, which is no one level of the network here"
        raise NotExpressible(f"{why}; use a label that SchedulingPolicy `topology` has and nodes carry")
    return replace(placement, topology=level, mode=REQUIRED)


def _resources(needs: Requested) -> Resources:
    gpu = GpuRequest(count=needs.gpus)
    return Resources(gpu=gpu, cpu_milli=needs.cpu_milli, memory_bytes=needs.memory_bytes)


def _check(pod: Pod) -> None:
    """Whether a pod asks for nothing that the model does not have."""
    spec, name = pod.spec, pod.metadata.name
    if spec.resource_claims:
        raise NotExpressible(f"{name}: ganger gives no ResourceClaims to pods; ask for nvidia.com/gpu")
    for container in (*spec.containers, *spec.init_containers):
        asked = {**container.resources.limits, **container.resources.requests}
        for unknown in sorted(asked.keys() - set(COUNTED)):
            raise NotExpressible(f"{name}: ganger does not count {unknown}; leave the pod to another scheduler")


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


def is_of_others(pod: Pod) -> bool:
    """Whether somebody else made it, for ganger to place."""
    return pod.spec.scheduler_name == SCHEDULER and object_names.GANG not in pod.metadata.annotations


def waits(pod: Pod) -> bool:
    """Whether it may be bound, and is not."""
    held = pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp is not None
    return not held and not is_over(pod)


def unit_of(pod: Pod) -> Unit:
    """With what it is placed."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return Unit(is_group=False, key=pod.metadata.key)
    return Unit(is_group=True, key=Key(pod.metadata.namespace, group.pod_group_name))
