"""Requests of foreign pods as a job of the model; and which pods are foreign, and placed together.

Each pod is a process, which may share a node with others; pods with equal requests are one role. What the model does
not support is rejected, and never ignored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.foreign.node_affinity import UnsupportedAffinityError, parse_affinity
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.pod_requests import CPU, GPU_RESOURCES, MEMORY, PodResources, pod_request
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.kubeapi.objects import Key, Pod, Toleration
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources, Retry, Role
from ganger.model.placement_spec import Placement
from ganger.model.queue import DEFAULT
from ganger.model.terms import REQUIRED

SUPPORTED_RESOURCES: Final = (CPU, MEMORY, "ephemeral-storage", *GPU_RESOURCES)
"""Resources that pods may request. Disks of nodes are left to kubelets."""
MAX_PRIORITY: Final = 1000


class UnsupportedPodError(Exception):
    """ganger cannot place these pods. The message says why, and what to do."""


LevelLookup = Callable[[str], str]
"""Return the topology level of a node label; empty for other labels."""


class SchedulingUnit(NamedTuple):
    """Pods that are placed together: those of a PodGroup, or a single pod."""

    is_group: bool
    key: Key


def build_job(
    gang: str, name: str, pods: Sequence[Pod], group: PodGroup | None, level_of: LevelLookup
) -> tuple[Job, list[Pod]]:
    """Return the job, and the pods in the order of its ranks. Raises UnsupportedPodError."""
    queue, placement = _queue(pods[0], group), _placement(pods[0])
    by_request: dict[PodResources, list[Pod]] = {}
    for pod in pods:
        _check_supported(pod)
        if _placement(pod) != placement:
            reason = "its nodeSelector, nodeAffinity or tolerations differ from those of others in its PodGroup"
            raise UnsupportedPodError(f"{pod.metadata.name}: {reason}")
        if (other := _queue(pod, group)) != queue:
            reason = f"it asks for the queue {other}, others of its PodGroup for {queue}"
            raise UnsupportedPodError(f"{pod.metadata.name}: {reason}")
        by_request.setdefault(pod_request(pod), []).append(pod)
    roles = {
        "worker" if index == 0 else f"pods-{index}": Role(count=len(members), resources=_resources(request))
        for index, (request, members) in enumerate(by_request.items())
    }
    spec = JobSpec(
        name=name,
        queue=queue,
        priority=max(-MAX_PRIORITY, min(MAX_PRIORITY, max(pod.spec.priority for pod in pods))),
        roles=roles,
        placement=_with_topology(placement, group, level_of),
        retry=Retry(max=0),
    )
    job = Job(id=gang, user=pods[0].metadata.namespace, spec=spec, origin=Origin(directory="/"))
    return job, [pod for members in by_request.values() for pod in members]


def _queue(pod: Pod, group: PodGroup | None) -> str:
    """Return the queue named by a pod, or else by its PodGroup."""
    of_group = group.metadata.labels.get(object_names.QUEUE) if group else None
    return pod.metadata.labels.get(object_names.QUEUE) or of_group or DEFAULT


def _placement(pod: Pod) -> Placement:
    """Return the node constraints of a pod."""
    spec = pod.spec
    try:
        affinity = parse_affinity(spec.affinity)
    except UnsupportedAffinityError as error:
        raise UnsupportedPodError(f"{pod.metadata.name}: {error}") from None
    return Placement(
        node_selector=spec.node_selector, affinity=affinity, tolerations=tuple(_tolerations(spec.tolerations))
    )


def _with_topology(placement: Placement, group: PodGroup | None, level_of: LevelLookup) -> Placement:
    """Add the PodGroup's topology constraint to a placement."""
    keys = [constraint.key for constraint in group.spec.scheduling_constraints.topology] if group else []
    if not keys:
        return placement
    level = level_of(keys[0]) if len(keys) == 1 else ""
    if not level:
        reason = f"its PodGroup asks for one domain of {', '.join(keys)}, which is not one topology level here"
        raise UnsupportedPodError(f"{reason}; use a label that SchedulingPolicy `topology` has and nodes carry")
    return replace(placement, topology=level, mode=REQUIRED)


def _resources(request: PodResources) -> Resources:
    gpu = GpuRequest(count=request.gpus)
    return Resources(gpu=gpu, cpu_milli=request.cpu_milli, memory_bytes=request.memory_bytes)


def _check_supported(pod: Pod) -> None:
    """Raise UnsupportedPodError if a pod requests something that the model does not have."""
    spec, name = pod.spec, pod.metadata.name
    if spec.resource_claims:
        raise UnsupportedPodError(f"{name}: ganger does not allocate ResourceClaims; ask for nvidia.com/gpu")
    for container in (*spec.containers, *spec.init_containers):
        resources = container.resources.limits.keys() | container.resources.requests.keys()
        for unknown in sorted(resources - set(SUPPORTED_RESOURCES)):
            raise UnsupportedPodError(f"{name}: ganger does not count {unknown}; leave the pod to another scheduler")


def _tolerations(tolerations: Sequence[Toleration]) -> Iterator[str]:
    """Yield tolerations in the model's form, without those for effects that do not prevent scheduling."""
    for toleration in tolerations:
        if toleration.effect in ("", "NoSchedule"):
            if not toleration.key:
                yield "*"
            elif toleration.operator == "Exists" or not toleration.value:
                yield toleration.key
            else:
                yield f"{toleration.key}={toleration.value}"


def is_foreign(pod: Pod) -> bool:
    """Return whether another program created the pod for ganger to place."""
    return pod.spec.scheduler_name == SCHEDULER and object_names.GANG not in pod.metadata.annotations


def is_bindable(pod: Pod) -> bool:
    """Return whether the pod may be bound, and is not."""
    is_blocked = pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp is not None
    return not is_blocked and not is_over(pod)


def unit_of(pod: Pod) -> SchedulingUnit:
    """Return the unit with which a pod is placed."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return SchedulingUnit(is_group=False, key=pod.metadata.key)
    return SchedulingUnit(is_group=True, key=Key(pod.metadata.namespace, group.pod_group_name))
