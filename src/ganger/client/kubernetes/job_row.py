"""Row of a GangJob, as every client shows it, from the object alone.

What an object does not have, such as attempts, is left out.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import msgspec
from pydantic_core import from_json, to_json

from ganger.backends.kubernetes.object_names import CONTROL_FIELDS, DEFAULT_USER
from ganger.errors import RequestError
from ganger.kubeapi.objects import CustomObject
from ganger.model.job import ENDED, PRIORITIES
from ganger.model.views.service_views import JobRow
from ganger.spec import spec_from_dict

Record = dict[str, Any]

OVER: Final = (*ENDED, "refused")
UNREAD: Final = "unread"
"""State of a job that no controller has read yet."""
_UNREAD_MESSAGE: Final = "no controller has read it yet"


def row(gang_job: CustomObject) -> Record:
    """Return the row, with `namespace`, and `reason`: the code of why it waits or was rejected."""
    status, spec, metadata = status_of(gang_job), spec_of(gang_job), gang_job.metadata
    priority = spec.get("priority", "normal")
    job_row = JobRow(
        id=metadata.name,
        name=metadata.name,
        user=spec.get("user", DEFAULT_USER),
        queue=spec.get("queue", "default"),
        priority=PRIORITIES[priority] if priority in PRIORITIES else int(priority),
        state=status.get("phase", UNREAD).lower(),
        shape=status.get("shape") or "",
        submitted_ms=_ms(metadata.creation_timestamp) or 0,
        started_ms=_ms(status.get("startTime")),
        ended_ms=_ms(status.get("completionTime")),
        generation=status.get("generation") or 0,
        exit_code=status.get("exitCode"),
        sentence=status.get("message") or ("" if "phase" in status else _UNREAD_MESSAGE),
        nodes=tuple(status.get("nodes") or ()),
        labels=spec.get("labels") or {},
    )
    return asdict(job_row) | {"namespace": metadata.namespace, "reason": status.get("reason") or ""}


def in_full(gang_job: CustomObject) -> Record:
    """Return {row, spec}; `spec` is null if it was written by hand and cannot be read."""
    fields = {key: value for key, value in spec_of(gang_job).items() if key not in CONTROL_FIELDS}
    try:
        spec = from_json(to_json(spec_from_dict(fields | {"name": gang_job.metadata.name}, "GangJob")))
    except RequestError:
        spec = None
    return {"row": row(gang_job), "spec": spec}


def status_of(gang_job: CustomObject) -> Record:
    """Return the status; empty before one is written."""
    status: Record | None = msgspec.json.decode(gang_job.status)
    return status or {}


def spec_of(gang_job: CustomObject) -> Record:
    """Return the spec as it stands."""
    spec: Record = msgspec.json.decode(gang_job.spec)
    return spec


def _ms(time: str | None) -> int | None:
    """Return the Unix milliseconds of an API time."""
    return int(datetime.fromisoformat(time).timestamp() * 1000) if time else None
