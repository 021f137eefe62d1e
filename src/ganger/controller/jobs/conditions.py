"""Conditions of a GangJob, by the Kubernetes conventions.

Accepted: ganger has accepted it. Placed: it has all its nodes. Finished: it has ended for good; the reason is its end.
So `kubectl wait --for=condition=Finished` waits for the end, and `--for=condition=Placed` for the start.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ganger.errors import RequestError
from ganger.model.job import ENDED
from ganger.model.views.service_views import JobRow

Condition = dict[str, Any]

OVER: Final = ("Succeeded", "Failed", "Stopped")
"""Phases of a job that has ended."""


def conditions(row: JobRow, waits: Mapping[str, Any], since_ms: int, generation: int) -> list[Condition]:
    """Return the conditions of an accepted job.

    Args:
        row: the job's row.
        waits: `reason` and `message` of a pending job.
        since_ms: when its state was entered.
        generation: generation of the object up to which it was read.
    """
    ended, placed = row.state in ENDED, row.state not in ENDED and bool(row.nodes)
    state, reason = _camel_case(str(row.state)), _camel_case(waits.get("reason", ""))
    placed_reason = state if placed or ended else reason or state
    placed_ms = since_ms if row.started_ms is None or not placed else row.started_ms
    items = [
        _condition("Accepted", "Accepted", "", row.submitted_ms, holds=True),
        _condition("Placed", placed_reason, waits.get("message", ""), placed_ms, holds=placed),
        _condition("Finished", state, row.sentence if ended else "", row.ended_ms or row.submitted_ms, holds=ended),
    ]
    return [item | {"observedGeneration": generation} for item in items]


def refused(error: RequestError, at_ms: int, generation: int) -> list[Condition]:
    """Return the conditions of a rejected job."""
    reason, message = _camel_case(error.code), f"{error.detail}; {error.next}"
    return [_condition("Accepted", reason, message, at_ms, holds=False) | {"observedGeneration": generation}]


def time_of(at_ms: int) -> str:
    """Return a time in the API's form: whole seconds."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _camel_case(text: str) -> str:
    return "".join(part.capitalize() for part in text.split("_"))


def _condition(kind: str, reason: str, message: str, since_ms: int, *, holds: bool) -> Condition:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": time_of(since_ms),
    }
