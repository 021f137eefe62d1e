"""What people read of a GangJob: the row of a job, as every face of a server has it, made of the object alone.

Pure. Called by `in_context` and `gang_job_change`. What an object does not say, attempts and ledger, is not there.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import msgspec
from pydantic_core import from_json, to_json

from ganger.backends.kubernetes.object_names import ASKED_BESIDE, NOBODY
from ganger.errors import RequestError
from ganger.kubeapi.objects import Custom
from ganger.model.job import ENDED, PRIORITIES
from ganger.model.views.service_views import JobRow
from ganger.spec import spec_from_dict

Record = dict[str, Any]

OVER: Final = (*ENDED, "refused")
UNREAD: Final = "unread"
"""The state of a job that no controller has read yet."""
_UNREAD_WHY: Final = "no controller has read it yet"


def row(found: Custom) -> Record:
    """The row, and besides it `namespace` and `reason`, the one word for why it waits or was refused."""
    status, spec, about = status_of(found), spec_of(found), found.metadata
    priority = spec.get("priority", "normal")
    told = JobRow(
        id=about.name,
        name=about.name,
        user=spec.get("user", NOBODY),
        queue=spec.get("queue", "default"),
        priority=PRIORITIES[priority] if priority in PRIORITIES else int(priority),
        state=status.get("phase", UNREAD).lower(),
        shape=status.get("shape") or "",
        submitted_ms=_ms(about.creation_timestamp) or 0,
        started_ms=_ms(status.get("startTime")),
        ended_ms=_ms(status.get("completionTime")),
        generation=status.get("generation") or 0,
        exit_code=status.get("exitCode"),
        sentence=status.get("message") or ("" if "phase" in status else _UNREAD_WHY),
        nodes=tuple(status.get("nodes") or ()),
        labels=spec.get("labels") or {},
    )
    return asdict(told) | {"namespace": about.namespace, "reason": status.get("reason") or ""}


def in_full(found: Custom) -> Record:
    """The row, and what was asked for; `spec` is null where it was written by hand and cannot be read."""
    asked = {key: value for key, value in spec_of(found).items() if key not in ASKED_BESIDE}
    try:
        spec = from_json(to_json(spec_from_dict(asked | {"name": found.metadata.name}, "GangJob")))
    except RequestError:
        spec = None
    return {"row": row(found), "spec": spec}


def status_of(found: Custom) -> Record:
    """Its status; empty while nobody has written one."""
    status: Record | None = msgspec.json.decode(found.status)
    return status or {}


def spec_of(found: Custom) -> Record:
    """Its spec, as it stands."""
    spec: Record = msgspec.json.decode(found.spec)
    return spec


def _ms(time: str | None) -> int | None:
    """Unix ms of a time as the API writes it."""
    return int(datetime.fromisoformat(time).timestamp() * 1000) if time else None
