"""What is so of a GangJob, a line for each type, as Kubernetes' conventions for conditions have it. Pure; called by
`controller.object_log` and `controller.jobs.gang_job_reconciler`.

Accepted: ganger has taken it. Placed: it has its nodes, all of them. Finished: it has ended, for good; its reason is
how. So `kubectl wait --for=condition=Finished` waits for the end, and `--for=condition=Placed` for the start.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ganger.errors import RequestError
from ganger.model.job import ENDED
from ganger.model.views.service_views import JobRow

Condition = dict[str, Any]


def conditions(row: JobRow, waits: Mapping[str, Any], since_ms: int, generation: int) -> list[Condition]:
    """Of a job that was taken. waits: `reason` and `message` of one that waits; since_ms: when its state became what it
    is; generation: of the object, up to which it was read."""
    ended, placed = row.state in ENDED, row.state not in ENDED and bool(row.nodes)
    word = "".join(part.capitalize() for part in str(row.state).split("_"))
    because = "".join(part.capitalize() for part in waits.get("reason", "").split("_"))
    began_ms = since_ms if row.started_ms is None or not placed else row.started_ms
    told = [
        _said("Accepted", "Taken", "", row.submitted_ms, holds=True),
        _said("Placed", word if placed or ended else because or word, waits.get("message", ""), began_ms, holds=placed),
        _said("Finished", word, row.sentence if ended else "", row.ended_ms or row.submitted_ms, holds=ended),
    ]
    return [each | {"observedGeneration": generation} for each in told]


def refused(why: RequestError, at_ms: int, generation: int) -> list[Condition]:
    """Of a job that was not taken."""
    word = "".join(part.capitalize() for part in why.code.split("_"))
    told = _said("Accepted", word, f"{why.detail}; {why.next}", at_ms, holds=False)
    return [told | {"observedGeneration": generation}]


def time_of(at_ms: int) -> str:
    """As the API writes times: whole seconds."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _said(kind: str, reason: str, message: str, since_ms: int, *, holds: bool) -> Condition:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": time_of(since_ms),
    }
