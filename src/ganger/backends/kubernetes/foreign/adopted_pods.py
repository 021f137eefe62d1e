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
    SchedulingUnit,
    UnsupportedPodError,
    build_job,
    is_foreign,
    unit_of,
)
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory, slots_of
from ganger.backends.kubernetes.nodes.pod_requests import pod_request
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Key, Pod
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job

SCHEDULED: Final = "PodScheduled"
SlotsByNode = dict[str, set[int]]
"""Device slots in use, by node."""


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
) -> list[AdoptedGang]:
    """Return the gangs of bound foreign pods, oldest first; `new_id` gives each an id."""
    gpus = {node.name: node.gpus for node in inventory.cluster().nodes}
    used: SlotsByNode = {}
    by_unit: dict[SchedulingUnit, list[Pod]] = {}
    for pod in pods:
        if not pod.spec.node_name or is_over(pod):
            continue
        if not is_foreign(pod):
            if object_names.GANG in pod.metadata.annotations:
                used.setdefault(pod.spec.node_name, set()).update(slots_of(pod))
        elif pod.spec.node_name in gpus:
            by_unit.setdefault(unit_of(pod), []).append(pod)
    gangs = []
    for unit in sorted(by_unit, key=lambda unit: min(map(_created_ms, by_unit[unit]))):
        unit_pods = [pod for pod in by_unit[unit] if _claim_slots(pod, gpus[pod.spec.node_name], used)]
        if not unit_pods:
            continue
        group = groups.get(unit.key) if unit.is_group else None
        unit_pods.sort(key=lambda pod: (pod.spec.node_name, pod.metadata.name))
        try:
            job, ordered = build_job(new_id(unit), unit.key.name, unit_pods, group, inventory.level_of)
        except UnsupportedPodError:
            continue
        times = min(map(_created_ms, ordered)), max(map(_bound_ms, ordered))
        gangs.append(AdoptedGang(unit, job, tuple(ordered), _start(job, ordered), *times))
    return gangs


def _claim_slots(pod: Pod, gpus: int, used: SlotsByNode) -> bool:
    """Claim the slots of a pod. Return whether it has as many as it requests, and all are free."""
    slots, used_here = slots_of(pod), used.setdefault(pod.spec.node_name, set())
    is_valid = len(set(slots)) == len(slots) == pod_request(pod).gpus and all(slot < gpus for slot in slots)
    if not is_valid or not used_here.isdisjoint(slots):
        return False
    used_here.update(slots)
    return True


def _start(job: Job, ordered: list[Pod]) -> Start:
    """Return the start of a gang. Each rank is a share by itself; ranks of one role have as many slots each."""
    part_of = {resources: part for part, resources in enumerate(dict.fromkeys(map(pod_request, ordered)))}
    shares = tuple(
        NodeShare(node=pod.spec.node_name, ranks=(rank,), devices=slots_of(pod), part=part_of[pod_request(pod)])
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
