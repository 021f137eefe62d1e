"""Demand for nodes that is requested from the autoscaler: which gangs, in which order, and as which pods."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ganger.backends.kubernetes.foreign.foreign_gang import is_foreign_gang
from ganger.controller.autoscaling.request_notes import Note
from ganger.core.explain.unmet_demand import short_of_nodes
from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.gang_jobs.node_request_template import (
    PAUSE_IMAGE,
    PodSet,
    RequestNames,
    UnknownGpuTypeError,
    gpu_forms,
    pod_sets,
)
from ganger.gang_jobs.object_names import id_of, key_of, node_request
from ganger.gang_jobs.pod_template import is_device_kind, owner_reference
from ganger.kubeapi.objects import CustomObject, Key
from ganger.model.pending_reason import standing_sentence

MAX_GANGS: Final = 20
"""Gangs for which nodes are requested at a time, the oldest first."""
MAX_NODES: Final = 1_000
"""Nodes that are requested at a time, always for whole gangs."""
UNKNOWN_DEVICES: Final = "no autoscaler knows the devices of its claims; add nodes"


class NodeDemand(NamedTuple):
    """The nodes that one gang needs."""

    names: RequestNames
    pod_sets: list[PodSet]

    @property
    def key(self) -> Key:
        """Namespace and name of the request."""
        return Key(self.names.namespace, self.names.name)

    @property
    def job(self) -> str:
        """Id of the job."""
        return id_of(Key(self.names.namespace, self.names.job))


class Demand(NamedTuple):
    """All demand, and the pending reason of each job that has some, or that had a note."""

    by_key: dict[Key, NodeDemand]
    notes: dict[str, Note]


def find_demand(
    state: State,
    now_ms: int,
    job_of: Callable[[Key], CustomObject | None],
    gpu_resources: Mapping[str, str],
    noted: frozenset[str],
) -> Demand:
    """Return the demand of a state.

    job_of: returns a GangJob.
    gpu_resources: the resource of the GPUs of each node that has some.
    noted: jobs whose pending reason has a note.
    """
    demand, after_ms = Demand({}, _plain_notes(state, noted)), state.document.autoscaling.after_ms
    if after_ms is None:
        return demand
    forms, left = gpu_forms(state.nodes.nodes, gpu_resources), MAX_NODES
    for gang, reason in short_of_nodes(state, now_ms - after_ms):
        names = _names(gang, job_of)
        # No autoscaler adds a node of a given name.
        if names is None or gang.shape.all_nodes > left or any(part.selector.nodes for part in gang.shape.parts):
            continue
        note = Note(reason.code, standing_sentence(reason))
        if any(is_device_kind(resource) for part in gang.shape.parts for resource, _ in part.extended):
            demand.notes[_job_of(gang)] = note._replace(text=UNKNOWN_DEVICES)
            continue
        try:
            sets = pod_sets(gang.shape, names.name, forms, PAUSE_IMAGE)
        except UnknownGpuTypeError as error:
            demand.notes[_job_of(gang)] = note._replace(text=str(error))
            continue
        left -= gang.shape.all_nodes
        found = NodeDemand(names, sets)
        demand.by_key[found.key], demand.notes[found.job] = found, note
        if len(demand.by_key) == MAX_GANGS:
            break
    return demand


def _names(gang: Gang, job_of: Callable[[Key], CustomObject | None]) -> RequestNames | None:
    """Return the names of a gang's request; None for a gang that is not a GangJob's."""
    if is_foreign_gang(gang.id) or (job := job_of(key := key_of(gang.id))) is None:
        return None
    name = node_request(gang.id, gang.attempt.generation + 1)
    return RequestNames(name, key.namespace, key.name, owner_reference(key, job.metadata.uid))


def _plain_notes(state: State, jobs: frozenset[str]) -> dict[str, Note]:
    """Return the pending reasons of those of the jobs that still wait."""
    notes = {}
    for job in jobs:
        gang = state.gangs.get(job)
        reason = state.pending.reasons.get(class_text(gang.class_key)) if gang is not None else None
        if gang is not None and reason is not None and gang.attempt.start is None:
            notes[job] = Note(reason.code, standing_sentence(reason))
    return notes


def _job_of(gang: Gang) -> str:
    return gang.array or gang.id
