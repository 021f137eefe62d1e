"""Row of a GangJob, as every client shows it, from the object alone: what it does not have is empty."""

import re
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec
from pydantic_core import from_json, to_json

from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.gang_jobs.object_names import CODE, CONTROL_FIELDS, DEFAULT_USER
from ganger.kubeapi.objects import CustomObject
from ganger.model.job import PRIORITIES, GangState, JobSpec
from ganger.model.job_metrics import JobMetric, JobMetrics
from ganger.model.job_sections.checkpoint_spec import split_resume_from
from ganger.model.views.service_views import JobRow, JobView, Ledger, ReasonView
from ganger.spec import spec_from_dict

Record = dict[str, Any]

_REJECTED: Final = "rejected"
_STATES: Final = {"": GangState.PENDING, _REJECTED: GangState.FAILED}
"""States of a job that no controller has read yet, or that the controller rejected."""
_AWAITED: Final = (
    "no_such_dependency",
    "no_such_claim",
    "no_such_storage_class",
    "claim_not_bound",
    "no_such_network",
)
"""Reasons of a rejection that others end: the controller submits the job again as soon as they have."""
_SUFFIX: Final = re.compile(r"-[a-z2-7]{4}$")
"""Suffix that `new_id` adds to a name."""
_UNREAD_MESSAGE: Final = "no controller has read it yet"


def row(gang_job: CustomObject) -> Record:
    """Return the row."""
    status, spec, metadata = status_of(gang_job), spec_of(gang_job), gang_job.metadata
    priority, phase = spec.get("priority", "normal"), status.get("phase", "").lower()
    phase = GangState.PENDING if phase == _REJECTED and status.get("reason") in _AWAITED else phase
    job_row = JobRow(
        id=metadata.name,
        name=submitted_name(gang_job),
        user=spec.get("user", DEFAULT_USER),
        queue=spec.get("queue", "default"),
        priority=PRIORITIES[priority] if priority in PRIORITIES else int(priority),
        state=_STATES.get(phase, phase),
        shape=status.get("shape") or "",
        submitted_ms=unix_ms(metadata.creation_timestamp) or 0,
        started_ms=unix_ms(status.get("startTime")),
        ended_ms=_rejected_ms(status) if phase == _REJECTED else unix_ms(status.get("completionTime")),
        generation=status.get("generation") or 0,
        exit_code=status.get("exitCode"),
        sentence=_sentence(phase, status.get("message") or ""),
        nodes=tuple(status.get("nodes") or ()),
        labels=spec.get("labels") or {},
        metrics=_metrics(status.get("metrics")),
    )
    return from_json(to_json(job_row))  # type: ignore[no-any-return]


def _metrics(field: Record | None) -> JobMetrics:
    """Return the metrics of a status as `controller.object_log` writes them."""
    fields = field or {}
    values = (
        JobMetric(
            name=value["name"],
            last_step=value["lastStep"],
            last=value.get("last"),
            min_step=value.get("minStep"),
            min=value.get("min"),
            max_step=value.get("maxStep"),
            max=value.get("max"),
        )
        for value in fields.get("values") or ()
    )
    return JobMetrics(values=tuple(values), left_out=fields.get("leftOut") or 0)


def is_rejected(gang_job: CustomObject) -> bool:
    """Return whether the controller has rejected the job: it knows no more of it than the object says."""
    return str(status_of(gang_job).get("phase", "")).lower() == _REJECTED


def _sentence(phase: str, message: str) -> str:
    if not phase:
        return message or _UNREAD_MESSAGE
    return f"rejected: {message}" if phase == _REJECTED else message


def _rejected_ms(status: Record) -> int | None:
    """Return the time of the newest condition of a job that was rejected."""
    return max((unix_ms(condition["lastTransitionTime"]) or 0 for condition in status["conditions"]), default=None)


def in_full(gang_job: CustomObject) -> Record:
    """Return what the object alone says of the job, as `JobView` has it, with `gpu_seconds` and `startup`.

    A spec that was written by hand and cannot be read has the defaults.
    """
    job_row, status, spec = row(gang_job), status_of(gang_job), read_spec(gang_job)
    if spec is None:
        spec = spec_from_dict({"name": job_row["name"], "run": str(spec_of(gang_job).get("run") or "?")}, "GangJob")
    reason = None
    if job_row["state"] == GangState.PENDING:
        reason = ReasonView(code=status.get("reason") or "", sentence=job_row["sentence"], remedy="")
    view = JobView(
        row=replace(JobRow(**job_row), elements={job_row["state"]: len(spec.array.indices)} if spec.array else None),
        spec=spec,
        directory="",
        git_commit=None,
        git_dirty=False,
        attempts=(),
        ledger=Ledger(),
        code_hash=gang_job.metadata.annotations.get(CODE),
        reason=reason,
        notice_until_ms=unix_ms(status.get("noticeUntil")),
        resumes=_resumption_text(spec),
    )
    more = {"gpu_seconds": (status.get("ledger") or {}).get("gpuSeconds"), "startup": status.get("startup")}
    return from_json(to_json(view)) | more  # type: ignore[no-any-return]


def _resumption_text(spec: JobSpec) -> str:
    """Return from which checkpoint of another job it begins, as far as the object says, empty for none."""
    if spec.checkpoint is None or spec.checkpoint.resume_from is None:
        return ""
    job, step = split_resume_from(spec.checkpoint.resume_from)
    return f"the newest checkpoint of {job}" if step is None else f"step {step} of {job}"


def read_spec(gang_job: CustomObject) -> JobSpec | None:
    """Return the spec of the job; None if it was written by hand and cannot be read."""
    fields = {key: value for key, value in spec_of(gang_job).items() if key not in CONTROL_FIELDS}
    try:
        return spec_from_dict(fields | {"name": submitted_name(gang_job)}, "GangJob")
    except RequestError:
        return None


def submitted_name(gang_job: CustomObject) -> str:
    """Return the name under which a job was submitted: of an object that ganger created, without the suffix."""
    name, annotations = gang_job.metadata.name, gang_job.metadata.annotations
    return _SUFFIX.sub("", name) if PROGRAM.mark in annotations else name


def status_of(gang_job: CustomObject) -> Record:
    """Return the status; empty before one is written."""
    status: Record | None = msgspec.json.decode(gang_job.status)
    return status or {}


def spec_of(gang_job: CustomObject) -> Record:
    """Return the spec as it stands."""
    spec: Record = msgspec.json.decode(gang_job.spec)
    return spec


def unix_ms(time: str | None) -> int | None:
    """Return the Unix milliseconds of an API time."""
    return int(datetime.fromisoformat(time).timestamp() * 1000) if time else None
