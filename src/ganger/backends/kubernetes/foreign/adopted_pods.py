"""Foreign pods that an earlier controller bound, recovered as running gangs.

The bound pods of a PodGroup are one gang, however they were bound; a single pod is one. Pods, PodGroups and nodes are
the only sources. What cannot be a gang here (its node is gone, its slots are in use, or its spec is not supported)
counts as foreign usage.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.foreign.foreign_job import (
    POD_GROUP,
    ClusterLookup,
    SchedulingUnit,
    UnsupportedPodError,
    asks_of,
    build_job,
    is_foreign,
    unit_of,
)
from ganger.backends.kubernetes.foreign.gang_kinds import SINGLE
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory, slots_of
from ganger.backends.kubernetes.nodes.pod_requests import pod_request
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Key, Pod
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job
from ganger.model.units import DEVICE_MILLI

SCHEDULED: Final = "PodScheduled"
SlotUse = dict[int, tuple[int, int]]
"""Compute and memory in use of each device slot that is in use; of one that a pod has whole, all of the compute."""


@dataclass(frozen=True, slots=True)
class AdoptedGang:
    """A running gang of foreign pods.

    Attributes:
        pods: in rank order.
        submitted_ms: when the first of them was created.
        began_ms: when the last of them was bound.
    """

    unit: SchedulingUnit
    job: Job
    pods: tuple[Pod, ...]
    start: Start
    submitted_ms: int
    began_ms: int


def find_bound_gangs(
    pods: Iterable[Pod],
    groups: Mapping[Key, PodGroup],
    inventory: NodeInventory,
    new_id: Callable[[SchedulingUnit], str],
    lookup: ClusterLookup,
) -> list[AdoptedGang]:
    """Return the gangs of bound foreign pods, oldest first; `new_id` gives each an id."""
    nodes = {node.name: node for node in inventory.cluster().nodes}
    used: dict[str, SlotUse] = {}
    by_unit: dict[SchedulingUnit, list[Pod]] = {}
    for pod in pods:
        if not pod.spec.node_name or is_over(pod):
            continue
        if not is_foreign(pod):
            if object_names.GANG in pod.metadata.annotations:
                used.setdefault(pod.spec.node_name, {}).update(dict.fromkeys(slots_of(pod), (DEVICE_MILLI, 0)))
        elif pod.spec.node_name in nodes:
            by_unit.setdefault(unit_of(pod), []).append(pod)
    gangs = []
    for unit in sorted(by_unit, key=lambda unit: min(map(_created_ms, by_unit[unit]))):
        unit_pods = [pod for pod in by_unit[unit] if _claim_slots(pod, nodes[pod.spec.node_name], used)]
        if not unit_pods:
            continue
        group = groups.get(unit.key) if unit.kind == POD_GROUP else None
        unit_pods.sort(key=lambda pod: (pod.spec.node_name, pod.metadata.name))
        try:
            job, ordered = build_job(new_id(unit), unit.name, unit_pods, group.needs if group else SINGLE, lookup)
        except UnsupportedPodError:
            continue
        times = min(map(_created_ms, ordered)), max(map(_bound_ms, ordered))
        gangs.append(AdoptedGang(unit, job, tuple(ordered), _start(job, ordered), *times))
    return gangs


def _claim_slots(pod: Pod, node: Node, used: dict[str, SlotUse]) -> bool:
    """Claim the slots of a pod. Return whether it has as many as it requests, and all have room for it."""
    request, slots, used_here = pod_request(pod), slots_of(pod), used.setdefault(node.name, {})
    is_share = request.share is not None and not request.share.is_whole
    if len(set(slots)) != len(slots) or len(slots) != (1 if is_share else request.gpus):
        return False
    if not all(slot < node.gpus for slot in slots):
        return False
    if not is_share or request.share is None:
        is_free = used_here.keys().isdisjoint(slots)
        used_here.update(dict.fromkeys(slots if is_free else (), (DEVICE_MILLI, 0)))
        return is_free
    milli, memory_bytes = used_here.get(slots[0], (0, 0))
    milli, memory_bytes = milli + request.share.milli, memory_bytes + request.share.memory_bytes
    fits = milli <= DEVICE_MILLI and memory_bytes <= (
        node.gpu_memory_bytes if request.share.memory_bytes else memory_bytes
    )
    if fits:
        used_here[slots[0]] = milli, memory_bytes
    return fits


def _start(job: Job, ordered: list[Pod]) -> Start:
    """Return the start of a gang. Each rank is a share by itself; ranks of one role have as many slots each."""
    part_of = {resources: part for part, resources in enumerate(dict.fromkeys(map(asks_of, ordered)))}
    shares = tuple(
        NodeShare(node=pod.spec.node_name, ranks=(rank,), devices=slots_of(pod), part=part_of[asks_of(pod)])
        for rank, pod in enumerate(ordered)
    )
    # No launcher runs in these pods, so no rendezvous address is needed.
    return Start(gang=job.id, generation=1, shares=shares, host=shares[0].node, port=0)


def _created_ms(pod: Pod) -> int:
    return _ms(pod.metadata.creation_timestamp)


def _bound_ms(pod: Pod) -> int:
    times = (condition.last_transition_time for condition in pod.status.conditions if condition.type == SCHEDULED)
    return max(_created_ms(pod), _ms(next(times, None)))


def _ms(time: str | None) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000) if time else 0
