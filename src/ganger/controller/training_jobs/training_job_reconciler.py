"""TrainingJobs, ScaleIns and ScaleOuts of et-operator, where the cluster has their definitions.

A TrainingJob that asks for ganger, by `schedulerName: ganger` of its workers or a queue label, gets a GangJob that it
owns: whatever ganger does for any job it does for this one. et-operator must not run beside it, or starts the job too.
Scalers change the size of the GangJob one after the other, in the order of their creation; their sizes add up. The
change and the scaler's UID are written in one patch, so none is applied twice.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.jobs.conditions import OVER
from ganger.controller.jobs.job_builder import spec_of
from ganger.controller.training_jobs import training_job_status as text
from ganger.controller.training_jobs.training_job_status import fields_of, phase_of, status_of, with_phase
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import API_VERSION, GANG_JOBS, GROUP, SCHEDULER
from ganger.gang_jobs.object_names import QUEUE
from ganger.gang_jobs.training_jobs import API_VERSION as ET_VERSION
from ganger.gang_jobs.training_jobs import ReadJob, SizeChange, read_size_change, read_training_job
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import CustomObject, Key
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import Resource
from ganger.kubeapi.workqueue import WorkQueue

TRAINING_JOB: Final = f"{GROUP}/training-job"
"""Annotation of a GangJob: the UID of its TrainingJob."""
SCALED_BY: Final = f"{GROUP}/scaled-by"
"""Annotation of a GangJob: the UID of the last ScaleIn or ScaleOut that is in its size."""
RETRY_S: Final = 1.0
WORKERS: Final = 4
_ET_GROUP, _, _ET_SERVED = ET_VERSION.partition("/")
TRAINING_JOBS: Final = Resource(_ET_GROUP, _ET_SERVED, "trainingjobs", CustomObject)
SCALERS: Final = {
    "ScaleIn": Resource(_ET_GROUP, _ET_SERVED, "scaleins", CustomObject),
    "ScaleOut": Resource(_ET_GROUP, _ET_SERVED, "scaleouts", CustomObject),
}
_log = logging.getLogger(__name__)


class Scaler(NamedTuple):
    """A ScaleIn or ScaleOut that has not ended. The order is that in which they are applied."""

    created: str
    kind: str
    name: str
    item: CustomObject

    @property
    def title(self) -> str:
        """Identity in the status of its TrainingJob."""
        return f"{self.kind}:{self.item.metadata.namespace}/{self.name}"

    def reason(self, outcome: str) -> str:
        """Return a reason as et-operator writes it: ScalingInValidateFailed."""
        return f"{self.kind.replace('Scale', 'Scaling')}{outcome}"


class TrainingJobReconciler:
    """Keeps GangJobs in line with TrainingJobs while `run` runs. `may_act` returns whether this controller leads."""

    def __init__(self, api: ApiClient, backend: KubernetesBackend, may_act: Callable[[], bool]) -> None:
        self._api, self._backend, self._may_act = api, backend, may_act
        self._queue = WorkQueue(self._reconcile, WORKERS)
        self._jobs = Informer(api, TRAINING_JOBS, self._training_job_changed)
        self._scaler_informers = [
            Informer(api, resource, self._scaler_changed(kind)) for kind, resource in SCALERS.items()
        ]
        self._scalers: dict[Key, dict[str, Scaler]] = {}
        """Scalers that have not ended, by the TrainingJob that they select, and by UID."""
        self._applied: set[str] = set()
        """UIDs of those that are in the size of their job: the informer may not have their status yet."""

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        informers = (self._jobs, *self._scaler_informers)
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run_where_served())
            for informer in informers:
                await informer.synced.wait()  # scalers have an order among each other
            group.create_task(self._queue.run())

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Handle a GangJob that was added, changed or deleted."""
        item = after or before
        if item is not None and item.metadata.key in self._jobs.objects:
            self._queue.add(item.metadata.key)

    def _training_job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        item = after or before
        if item is not None:
            self._queue.add(item.metadata.key)

    def _scaler_changed(self, kind: str) -> Callable[[CustomObject | None, CustomObject | None], None]:
        def changed(before: CustomObject | None, after: CustomObject | None) -> None:
            if before is not None:
                selected = self._scalers.get(_selected(before), {})
                selected.pop(before.metadata.uid, None)
                if not selected:
                    self._scalers.pop(_selected(before), None)
            ended = (
                after is None or after.metadata.deletion_timestamp is not None or phase_of(after) in text.SCALE_ENDED
            )
            if after is not None and not ended:
                meta = after.metadata
                scaler = Scaler(meta.creation_timestamp or "", kind, meta.name, after)
                self._scalers.setdefault(_selected(after), {})[meta.uid] = scaler
                self._queue.add(_selected(after))
            elif (item := after or before) is not None:
                self._applied.discard(item.metadata.uid)

        return changed

    async def _reconcile(self, key: Key) -> None:
        """Bring the objects of one TrainingJob in line. Raises ApiError, after which it is tried again."""
        if not self._may_act():
            return
        training_job = self._jobs.objects.get(key)
        scalers = sorted(self._scalers.get(key, {}).values(), key=lambda scaler: scaler[:3])
        if training_job is None or training_job.metadata.deletion_timestamp is not None:
            await self._answer_alone(key, scalers)
            return
        if not _asks_for_ganger(training_job):
            return
        gang_job = self._backend.job(key)
        _log.debug("TrainingJob %s/%s has a GangJob: %s; scalers: %d", *key, gang_job is not None, len(scalers))
        if gang_job is None:
            await self._create(training_job)
        elif gang_job.metadata.annotations.get(TRAINING_JOB) != training_job.metadata.uid:
            detail = f"there is a GangJob {key.name} that is not of this TrainingJob; delete one of the two"
            await self._write(TRAINING_JOBS, training_job, with_phase(training_job, text.CREATED, "NameTaken", detail))
        else:
            await self._follow(training_job, gang_job, scalers)

    async def _answer_alone(self, key: Key, scalers: list[Scaler]) -> None:
        """Answer scalers without a TrainingJob; it may still be created."""
        for scaler in scalers:
            if key.name:
                detail = f"there is no TrainingJob {key.name} in this namespace; this {scaler.kind} waits for it"
                await self._answer(scaler, text.CREATED, "NoTrainingJob", detail)
            else:
                detail = "selector.name is missing: the TrainingJob; delete this one and create another"
                await self._answer(scaler, text.SCALE_ABORTED, scaler.reason(text.INVALID), detail)

    # -- the job -------------------------------------------------------------------------------------------------------

    async def _create(self, training_job: CustomObject) -> None:
        """Create the GangJob of a TrainingJob that has not ended; one that is not valid may be changed."""
        if phase_of(training_job) in text.ENDED and not text.is_invalid(training_job):
            return
        try:
            await self._api.create(GANG_JOBS, gang_job_body(training_job))
        except ValueError as error:
            await self._refuse(training_job, str(error))
        except ApiError as error:
            if error.status in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.BAD_REQUEST):
                await self._refuse(training_job, str(error))
            elif error.conflict:  # the informer does not have it yet
                self._queue.add_after(training_job.metadata.key, RETRY_S)
            else:
                failed = with_phase(training_job, text.CREATED, "NotCreated", str(error))
                await self._write(TRAINING_JOBS, training_job, failed)
                raise

    async def _refuse(self, training_job: CustomObject, reason: str) -> None:
        detail = f"{reason}; change the TrainingJob, or delete it"
        await self._write(TRAINING_JOBS, training_job, with_phase(training_job, text.FAILED, text.INVALID, detail))

    async def _follow(self, training_job: CustomObject, gang_job: CustomObject, scalers: list[Scaler]) -> None:
        """Apply scalers, and write the status of the TrainingJob and of its scalers."""
        title, last = "", gang_job.metadata.annotations.get(SCALED_BY)
        # The last one first: once another one's UID is in its place, its status alone shows that it was applied.
        for scaler in sorted(scalers, key=lambda scaler: scaler.item.metadata.uid != last):
            if not self._is_applied(scaler, gang_job):
                gang_job = await self._apply(scaler, gang_job) or gang_job
            if scaler.item.metadata.uid in self._applied:
                outcome = _outcome(gang_job)
                title = title if outcome else scaler.title
                phase, detail = outcome or (
                    text.SCALING,
                    f"{gang_job.metadata.name} is to have {_size(gang_job)} nodes",
                )
                suffix = {text.SCALE_SUCCEEDED: text.SUCCEEDED, text.SCALE_FAILED: text.FAILED}.get(phase, "Start")
                await self._answer(scaler, phase, scaler.reason(suffix), detail)
        notes = _read(training_job).notes if phase_of(training_job) in ("", text.CREATED) else []
        await self._write(TRAINING_JOBS, training_job, status_of(training_job, gang_job, title, notes))

    # -- its size ------------------------------------------------------------------------------------------------------

    def _is_applied(self, scaler: Scaler, gang_job: CustomObject) -> bool:
        """Return whether a scaler is in the size of its job, also by an earlier controller."""
        uid = scaler.item.metadata.uid
        if phase_of(scaler.item) == text.SCALING or gang_job.metadata.annotations.get(SCALED_BY) == uid:
            self._applied.add(uid)
        return uid in self._applied

    async def _apply(self, scaler: Scaler, gang_job: CustomObject) -> CustomObject | None:
        """Apply a scaler, or answer why that is not possible. Return the changed GangJob. Raises ApiError."""
        try:
            change, size = _change(scaler, gang_job)
        except ValueError as error:
            await self._answer(scaler, text.SCALE_ABORTED, scaler.reason(text.INVALID), str(error))
            return None
        spec, metadata = fields_of(gang_job.spec), gang_job.metadata
        steps: list[Mapping[str, Any]] = []
        if "scale" in spec:
            steps.append({"op": "test", "path": "/spec/scale", "value": spec["scale"]})
        annotation = f"/metadata/annotations/{SCALED_BY.replace('/', '~1')}"
        steps.append({"op": "add", "path": "/spec/scale", "value": size})
        steps.append({"op": "add", "path": annotation, "value": scaler.item.metadata.uid})
        changed = await self._api.patch(ObjectRef(GANG_JOBS, metadata.namespace, metadata.name), steps)
        self._applied.add(scaler.item.metadata.uid)
        for note in change.notes:
            _log.info("%s: %s", scaler.title, note)
        return changed

    # -- statuses ------------------------------------------------------------------------------------------------------

    async def _answer(self, scaler: Scaler, phase: str, reason: str, detail: str) -> None:
        await self._write(SCALERS[scaler.kind], scaler.item, with_phase(scaler.item, phase, reason, detail))

    async def _write(self, resource: Resource[CustomObject], item: CustomObject, status: dict[str, Any]) -> None:
        """Write a status, if it differs from the one that is there. Raises ApiError, not for an object that is gone."""
        written = fields_of(item.status)
        if all(written.get(name) == value for name, value in status.items()):
            return
        ref = ObjectRef(resource, item.metadata.namespace, item.metadata.name, "status")
        try:
            await self._api.merge(ref, {"status": status})
        except ApiError as error:
            if not error.missing:
                raise


def gang_job_body(training_job: CustomObject) -> dict[str, Any]:
    """Return the GangJob of a TrainingJob, which owns it. Raises ValueError for one that is none.

    Its user is the namespace, as that of other programs' gangs: an object does not say who created it.
    """
    metadata, read = training_job.metadata, _read(training_job)
    spec = {key: value for key, value in read.spec.items() if key not in ("name", "labels")}
    labels = dict(metadata.labels)
    queue = labels.pop(QUEUE, None)
    if isinstance(spec["nodes"], str):
        spec["scale"] = read.replicas
    owner = {"apiVersion": ET_VERSION, "kind": "TrainingJob", "name": metadata.name, "uid": metadata.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "GangJob",
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "annotations": {TRAINING_JOB: metadata.uid},
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": False}],
        },
        "spec": spec
        | {"user": metadata.namespace}
        | ({"labels": labels} if labels else {})
        | ({"queue": queue} if queue else {}),
    }


def _read(training_job: CustomObject) -> ReadJob:
    metadata = training_job.metadata
    return read_training_job({"metadata": {"name": metadata.name}, "spec": fields_of(training_job.spec)})


def _asks_for_ganger(training_job: CustomObject) -> bool:
    """Return whether a TrainingJob is ganger's to run, by its queue label or the scheduler of its workers."""
    fields: Any = fields_of(training_job.spec)
    for name in ("etReplicaSpecs", "worker", "template", "spec", "schedulerName"):
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields == SCHEDULER or QUEUE in training_job.metadata.labels


def _selected(scaler: CustomObject) -> Key:
    """Return the key of the TrainingJob that a scaler selects; without a name if it selects none."""
    selector = fields_of(scaler.spec).get("selector")
    name = selector.get("name") if isinstance(selector, dict) else None
    return Key(scaler.metadata.namespace, name if isinstance(name, str) else "")


def _change(scaler: Scaler, gang_job: CustomObject) -> tuple[SizeChange, int]:
    """Return the change of a scaler, and the size that it leads to. Raises ValueError."""
    change = read_size_change({"kind": scaler.kind, "spec": fields_of(scaler.item.spec)})
    name, phase = gang_job.metadata.name, fields_of(gang_job.status).get("phase")
    if phase in OVER:
        raise ValueError(f"{name} has ended: {phase}")
    try:
        sizes = spec_of(gang_job.metadata.key, fields_of(gang_job.spec)).sizes
    except RequestError as error:
        raise ValueError(str(error)) from None
    before = _size(gang_job) or sizes[-1]
    if before + change.nodes not in sizes:
        allowed = f"{sizes[0]} to {sizes[-1]} nodes" if len(sizes) > 1 else f"{sizes[0]} alone"
        raise ValueError(
            f"{name} cannot have {before + change.nodes} nodes: it allows {allowed}; it is to have {before}"
        )
    return change, before + change.nodes


def _size(gang_job: CustomObject) -> int | None:
    """Return the size that is asked for; None: as many as it can have."""
    size: int | None = fields_of(gang_job.spec).get("scale")
    return size


def _outcome(gang_job: CustomObject) -> tuple[str, str] | None:
    """Return the phase of scalers whose job has the size that is asked for, or has ended, and why; None until then."""
    status = fields_of(gang_job.status)
    phase, nodes, name = status.get("phase"), len(status.get("nodes") or ()), gang_job.metadata.name
    if phase in OVER:
        return text.SCALE_FAILED, f"{name} has ended before: {phase}"
    is_current = (status.get("observedGeneration") or 0) >= gang_job.metadata.generation
    if is_current and phase == "Running" and nodes == _size(gang_job):
        return text.SCALE_SUCCEEDED, f"{name} has {nodes} nodes"
    return None
