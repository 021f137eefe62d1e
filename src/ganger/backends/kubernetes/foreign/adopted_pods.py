"""Pods of others that an earlier controller bound, as the gangs that they are. Pure; called by `backend` as it begins.

What is bound of a PodGroup is one gang, whatever it was bound as; a pod alone is one. They are found of pods, PodGroups
and nodes alone. What cannot be a gang here (a node that is gone, slots that somebody else has, a spec that the model
does not say) stays what it is to anybody who looks: use by others.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.foreign.foreign_job import NotExpressible, Unit, is_of_others, job_of, unit_of
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.backends.kubernetes.nodes.node_inventory import Inventory, slots_of
from ganger.backends.kubernetes.nodes.pod_requests import requested
from ganger.kubeapi.objects import Key, Pod
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job

SCHEDULED: Final = "PodScheduled"
Held = dict[str, set[int]]
"""Slots that somebody has, by node."""


@dataclass(frozen=True, slots=True)
class AdoptedGang:
    """A gang that runs. pods: in rank order; submitted_ms: when the first of them was made; began_ms: when the last of
    them was bound."""

    unit: Unit
    job: Job
    pods: tuple[Pod, ...]
    start: Start
    submitted_ms: int
    began_ms: int


def taken_over(
    pods: Iterable[Pod], groups: Mapping[Key, PodGroup], inventory: Inventory, name: Callable[[Unit], str]
) -> list[AdoptedGang]:
    """The gangs that bound pods of others make, oldest first; `name` gives each an id."""
    gpus = {node.name: node.gpus for node in inventory.cluster().nodes}
    held: Held = {}
    by_unit: dict[Unit, list[Pod]] = {}
    for pod in pods:
        if not pod.spec.node_name or is_over(pod):
            continue
        if not is_of_others(pod):
            if object_names.GANG in pod.metadata.annotations:
                held.setdefault(pod.spec.node_name, set()).update(slots_of(pod))
        elif pod.spec.node_name in gpus:
            by_unit.setdefault(unit_of(pod), []).append(pod)
    found = []
    for unit in sorted(by_unit, key=lambda unit: min(map(_made_ms, by_unit[unit]))):
        theirs = [pod for pod in by_unit[unit] if _takes(pod, gpus[pod.spec.node_name], held)]
        if not theirs:
            continue
        group = groups.get(unit.key) if unit.is_group else None
        theirs.sort(key=lambda pod: (pod.spec.node_name, pod.metadata.name))
        try:
            job, ordered = job_of(name(unit), unit.key.name, theirs, group, inventory.level_of)
        except NotExpressible:
            continue
        times = min(map(_made_ms, ordered)), max(map(_bound_ms, ordered))
        found.append(AdoptedGang(unit, job, tuple(ordered), _start(job, ordered), *times))
    return found


def _takes(pod: Pod, gpus: int, held: Held) -> bool:
    """Whether it has the slots that it asks for, and nobody else has one of them: from now on it does."""
    slots, there = slots_of(pod), held.setdefault(pod.spec.node_name, set())
    fits = len(set(slots)) == len(slots) == requested(pod).gpus and all(slot < gpus for slot in slots)
    if not fits or not there.isdisjoint(slots):
        return False
    there.update(slots)
    return True


def _start(job: Job, ordered: list[Pod]) -> Start:
    """Where its ranks are: each is a share by itself, since those of one role have as many slots each."""
    part_of = {needs: at for at, needs in enumerate(dict.fromkeys(map(requested, ordered)))}
    shares = tuple(
        NodeShare(node=pod.spec.node_name, ranks=(rank,), devices=slots_of(pod), part=part_of[requested(pod)])
        for rank, pod in enumerate(ordered)
    )
    # No launcher runs in them: nobody asks where ranks would meet.
    return Start(gang=job.id, generation=1, shares=shares, host=shares[0].node, port=0)


def _made_ms(pod: Pod) -> int:
    return _ms(pod.metadata.creation_timestamp)


def _bound_ms(pod: Pod) -> int:
    told = (each.last_transition_time for each in pod.status.conditions if each.type == SCHEDULED)
    return max(_made_ms(pod), _ms(next(told, "")))


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000) if time else 0
