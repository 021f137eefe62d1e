"""Status of et-operator's objects, in the words of its definitions: phases, conditions, workers.

Source: `JobStatus`, `TrainingJobStatus` and the phases of scalers in et-operator's `v1alpha1` API.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ganger.controller.jobs.conditions import OVER, time_of
from ganger.gang_jobs.object_names import JOB, id_of, pod_name
from ganger.kubeapi.objects import CustomObject

Object = dict[str, Any]

CREATED, RUNNING, SCALING, RESTARTING, SUSPENDED = "Created", "Running", "Scaling", "Restarting", "Suspended"
SUCCEEDED, FAILED, INVALID = "Succeeded", "Failed", "ValidateFailed"
SCALE_SUCCEEDED, SCALE_FAILED, SCALE_ABORTED = "ScaleSucceeded", "ScaleFailed", "ScaleAborted"
ENDED: Final = (SUCCEEDED, FAILED)
"""Phases of a TrainingJob that has ended; one that is not valid has failed with the reason ValidateFailed."""
SCALE_ENDED: Final = (SCALE_SUCCEEDED, SCALE_FAILED, SCALE_ABORTED)
"""Phases of a ScaleIn or ScaleOut that has ended."""
_PHASES: Final = {
    "Running": RUNNING,
    "Resizing": RUNNING,
    "Finishing": RUNNING,
    "Failing": RUNNING,
    "Stopping": RUNNING,
    "Requeueing": RESTARTING,
    "Suspending": SUSPENDED,
    "Suspended": SUSPENDED,
    "Succeeded": SUCCEEDED,
    "Failed": FAILED,
    "Stopped": FAILED,
}
"""Phase of a GangJob -> phase of its TrainingJob; of others: created, or restarting after an attempt."""


def fields_of(raw: msgspec.Raw) -> Object:
    """Return a spec or status as a mapping; empty where it is none."""
    fields = msgspec.json.decode(raw or b"{}")
    return fields if isinstance(fields, dict) else {}


def phase_of(item: CustomObject) -> str:
    """Return the phase of an object of et-operator; empty without one."""
    return str(fields_of(item.status).get("phase") or "")


def is_invalid(item: CustomObject) -> bool:
    """Return whether a TrainingJob was found not to be valid."""
    conditions = fields_of(item.status).get("conditions") or [{}]
    return phase_of(item) == FAILED and conditions[-1].get("reason") == INVALID


def with_phase(item: CustomObject, phase: str, reason: str, message: str, more: Mapping[str, Any] = {}) -> Object:
    """Return the fields of a status in which a phase begins; the same as the object's where nothing changes."""
    status = fields_of(item.status)
    conditions = [each for each in status.get("conditions") or () if isinstance(each, dict)]
    now, last = time_of(round(time.time() * 1000)), conditions[-1] if conditions else {}
    if (last.get("type"), last.get("reason"), last.get("message")) != (phase, reason, message):
        since = last.get("lastTransitionTime") if last.get("type") == phase else None
        earlier = [each | {"status": "False"} for each in conditions if each.get("type") != phase]
        current = {"type": phase, "status": "True", "reason": reason, "message": message}
        conditions = [*earlier, {**current, "lastUpdateTime": now, "lastTransitionTime": since or now}]
    ended = phase in (*ENDED, *SCALE_ENDED)
    return {
        "phase": phase,
        "conditions": conditions,
        "replicaStatuses": status.get("replicaStatuses") or {},
        "startTime": status.get("startTime") or now,
        **({"completionTime": status.get("completionTime") or now} if ended else {}),
        **more,
    }


def status_of(training_job: CustomObject, gang_job: CustomObject, scaler: str, notes: Iterable[str]) -> Object:
    """Return the status of a TrainingJob from that of its GangJob.

    scaler: the object that changes the size of the job at present, as KIND:NAMESPACE/NAME; empty without one.
    """
    gang = fields_of(gang_job.status)
    of_gang, nodes = str(gang.get("phase") or ""), gang.get("nodes") or []
    attempted = gang.get("generation") or 0
    phase = _PHASES.get(of_gang) or (RESTARTING if attempted and of_gang == "Pending" else CREATED)
    if scaler and phase == RUNNING:
        phase = SCALING
    reason = gang.get("reason") or of_gang or "Submitted"
    message = "; ".join([str(gang.get("message") or f"GangJob {gang_job.metadata.name} is submitted"), *notes])
    kind = "succeeded" if phase == SUCCEEDED else "failed" if phase == FAILED else "active"
    counts = {"Launcher": min(1, len(nodes)), "Worker": len(nodes)}
    statuses = {role: {"active": 0, "succeeded": 0, "failed": 0, kind: count} for role, count in counts.items()}
    active = 0 if of_gang in OVER else len(nodes)
    name, key = gang_job.metadata.name, gang_job.metadata.key
    return with_phase(
        training_job,
        phase,
        "".join(word.capitalize() for word in str(reason).split("_")),
        message,
        {
            "replicaStatuses": statuses,
            "replicas": active,
            "workerSelector": f"{JOB}={name}",
            "currentScaler": scaler or None,
            "currentWorkers": [pod_name(id_of(key), attempted, index) for index in range(active)],
        },
    )
