"""Requests of foreign pods as a job of the model; and which pods are foreign, and placed together.

Each pod is a process, which may share a node with others; pods with equal requests are one role. What the model does
not support is rejected, and never ignored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.devices.published_devices import DeviceRequestError
from ganger.backends.kubernetes.foreign.gang_kinds import KUEUE_ADMITTED, GangNeeds, find_kind, owner_key
from ganger.backends.kubernetes.foreign.node_affinity import UnsupportedAffinityError, parse_affinity
from ganger.backends.kubernetes.gpus.node_gpus import PLUGIN_LABEL
from ganger.backends.kubernetes.nodes.pod_requests import CPU, MEMORY, PodResources, is_extended, pod_request
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.kubeapi.objects import Key, Pod, Toleration
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources, Role
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.queue import DEFAULT
from ganger.model.terms import REQUIRED
from ganger.registry import gpu_resources

"""Resources that pods may request, beside extended ones."""
MAX_PRIORITY: Final = 1000
HOST_NAME: Final = "kubernetes.io/hostname"


class UnsupportedPodError(Exception):
    """ganger cannot place these pods. The message says why, and what to do."""


class ClusterLookup(NamedTuple):
    """View of the cluster on pods.

    level_of: returns the topology level of a node label; empty for other labels.
    request_of: returns what a pod requests, with the devices of its claims. Raises DeviceRequestError.
    """

    level_of: Callable[[str], str]
    request_of: Callable[[Pod], PodResources]


class SchedulingUnit(NamedTuple):
    """Pods that are placed together: those of a PodGroup or another owner, or of a part of it; or a single pod."""

    kind: str
    key: Key
    part: str = ""

    @property
    def name(self) -> str:
        """Name for messages and ids."""
        return f"{self.key.name}-{self.part}" if self.part else self.key.name


POD_GROUP: Final = "PodGroup"
"""Kind of the units of upstream PodGroups."""


def build_job(
    gang: str, name: str, pods: Sequence[Pod], needs: GangNeeds, lookup: ClusterLookup
) -> tuple[Job, list[Pod]]:
    """Return the job, and the pods in the order of its ranks. Raises UnsupportedPodError."""
    queue, placement = _queue(pods[0], needs), _placement(pods[0])
    plugin = _sharing_plugin(pods)
    by_request: dict[object, list[Pod]] = {}
    for pod in pods:
        _check_supported(pod)
        if _placement(pod) != placement:
            raise UnsupportedPodError(f"{pod.metadata.name}: {_placements_differ(pod)}")
        if (other := _queue(pod, needs)) != queue:
            reason = f"it asks for the queue {other}, others of its gang for {queue}"
            raise UnsupportedPodError(f"{pod.metadata.name}: {reason}")
        by_request.setdefault(asks_of(pod), []).append(pod)
    roles = {
        "worker" if index == 0 else f"pods-{index}": Role(count=len(members), resources=_resources(members[0], lookup))
        for index, members in enumerate(by_request.values())
    }
    spec = JobSpec(
        name=name,
        queue=queue,
        priority=max(-MAX_PRIORITY, min(MAX_PRIORITY, max(pod.spec.priority for pod in pods))),
        roles=roles,
        placement=_with_topology(_with_plugin(placement, plugin), needs, lookup),
        retry=Retry(max=0),
    )
    job = Job(id=gang, user=pods[0].metadata.namespace, spec=spec, origin=Origin(directory="/"))
    return job, [pod for members in by_request.values() for pod in members]


def _placements_differ(pod: Pod) -> str:
    reason = "its nodeSelector, nodeAffinity or tolerations differ from those of others in its gang"
    if KUEUE_ADMITTED not in pod.metadata.labels:
        return reason
    return f"{reason}: let the levels of Kueue's Topology end above {HOST_NAME}, and ganger chooses the nodes"


def _queue(pod: Pod, needs: GangNeeds) -> str:
    """Return the queue named by a pod, or else by its owner, also one that was noted when the pod was bound."""
    named = pod.metadata.labels.get(object_names.QUEUE) or pod.metadata.annotations.get(object_names.QUEUE)
    return named or needs.queue or DEFAULT


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


def _with_topology(placement: Placement, needs: GangNeeds, lookup: ClusterLookup) -> Placement:
    """Add the owner's topology constraint to a placement."""
    keys = needs.topology
    if not keys:
        return placement
    level = lookup.level_of(keys[0]) if len(keys) == 1 else ""
    if not level:
        reason = f"its gang asks for one domain of {', '.join(keys)}, which is not one topology level here"
        raise UnsupportedPodError(f"{reason}; use a label that SchedulingPolicy `topology` has and nodes carry")
    return replace(placement, topology=level, mode=REQUIRED)


def _sharing_plugin(pods: Sequence[Pod]) -> str:
    """Return the device plugin of the nodes that a gang's shares of GPUs need; empty without shares."""
    plugins = {share.plugin: None for pod in pods if (share := pod_request(pod).share) is not None and share.plugin}
    if len(plugins) > 1:
        reason = f"its gang asks for GPUs of the device plugins {' and '.join(plugins)}; use one of them in a gang"
        raise UnsupportedPodError(f"{pods[0].metadata.name}: {reason}")
    return next(iter(plugins), "")


def _with_plugin(placement: Placement, plugin: str) -> Placement:
    """Add the nodes with a device plugin to a placement."""
    if not plugin:
        return placement
    return replace(placement, node_selector={**placement.node_selector, PLUGIN_LABEL: plugin})


def asks_of(pod: Pod) -> tuple[object, ...]:
    """Return what a pod asks of its node; pods of a gang that ask for the same have one role."""
    claims = pod.spec.resource_claims
    return pod_request(pod), tuple((each.resource_claim_name, each.resource_claim_template_name) for each in claims)


def _resources(pod: Pod, lookup: ClusterLookup) -> Resources:
    try:
        request = lookup.request_of(pod)
    except DeviceRequestError as error:
        raise UnsupportedPodError(f"{pod.metadata.name}: {error}") from None
    gpu, share = GpuRequest(count=request.gpus), request.share
    if share is None:
        gpu = replace(gpu, resources=_gpu_resources(pod))
    if share is not None:
        first, *others = share.gpu_types or (None,)
        gpu = replace(gpu, type=first, other_types=tuple(filter(None, others)))
        if not share.is_whole:
            gpu = replace(gpu, milli=share.milli or None, memory_bytes=share.memory_bytes or None)
    extended = dict(request.extended)
    return Resources(gpu=gpu, cpu_milli=request.cpu_milli, memory_bytes=request.memory_bytes, extended=extended)


def _gpu_resources(pod: Pod) -> tuple[str, ...]:
    """Return the resource by which a pod asks for whole GPUs, if it does.

    A kubelet drops an extended resource that its node does not have: on a node of another vendor the pod would run
    without any device.
    """
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    amounts = (container.resources.limits | container.resources.requests for container in containers)
    asked = {
        name: None for amount in amounts for name, text in amount.items() if name in gpu_resources() and text != "0"
    }
    if len(asked) > 1:
        reason = f"it asks for {' and '.join(asked)}, which no node has both; ask for one of them"
        raise UnsupportedPodError(f"{pod.metadata.name}: {reason}")
    return tuple(asked)


def _check_supported(pod: Pod) -> None:
    """Raise UnsupportedPodError if a pod requests something that the model does not have."""
    spec, name, share = pod.spec, pod.metadata.name, pod_request(pod).share
    if share is not None and share.error:
        raise UnsupportedPodError(f"{name}: {share.error}")
    for container in (*spec.containers, *spec.init_containers):
        resources = container.resources.limits.keys() | container.resources.requests.keys()
        for unknown in sorted(name for name in resources - {CPU, MEMORY, *gpu_resources()} if not is_extended(name)):
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
    if group is not None and group.pod_group_name:
        return SchedulingUnit(POD_GROUP, Key(pod.metadata.namespace, group.pod_group_name))
    if (kind := find_kind(pod)) is not None:
        return SchedulingUnit(kind.name, owner_key(kind, pod), pod.metadata.labels.get(kind.part_key, ""))
    return SchedulingUnit("", pod.metadata.key)
