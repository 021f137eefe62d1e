"""Routes of the health of nodes: faults, repairs, returns."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict

from ganger.model.node_health.health_record import RepairStep
from ganger.model.units import DAY_MS
from ganger.model.views.health_views import HealthOverview, NodeHealthRow
from ganger.model.views.incident_views import Incident
from ganger.rest.etags import VersionParam
from ganger.rest.responses import (
    CHANGE_STATUSES,
    ServiceParam,
    json_response,
    read_responses,
    run_change,
    view_responses,
)

node_health: Final = APIRouter(tags=["nodes"])
MAX_SPAN_MS: Final = 366 * DAY_MS


@dataclass(frozen=True, kw_only=True)
class RepairBody:
    """The first step of a repair, and its reason for the event log."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    step: RepairStep | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RetireBody:
    """The reason, for the event log."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    reason: str = ""


@node_health.get("/node-health", responses=read_responses(HealthOverview))
def get_node_health(service: ServiceParam, version: VersionParam) -> Response:
    """Return the health of every node that something has happened to."""
    return version.respond(service.node_health)


@node_health.post("/node-health/reset-breaker", responses=view_responses(HealthOverview, *CHANGE_STATUSES))
async def reset_health_breaker(request: Request, service: ServiceParam) -> Response:
    """Allow faulty nodes to be cordoned again, after the breaker had stopped that."""
    return json_response(await run_change(request, service.reset_breaker))


@node_health.post(
    "/nodes/{name}/repair", status_code=202, responses=view_responses(NodeHealthRow, *CHANGE_STATUSES, status=202)
)
async def repair_node(request: Request, service: ServiceParam, name: str, body: RepairBody) -> Response:
    """Take a node out of service and repair it by the hooks of the policy."""
    return json_response(await run_change(request, lambda: service.request_repair(name, body.step, body.reason)), 202)


@node_health.post("/nodes/{name}/retire", responses=view_responses(NodeHealthRow, *CHANGE_STATUSES))
async def retire_node(request: Request, service: ServiceParam, name: str, body: RetireBody) -> Response:
    """Take a node out of service until a person returns it."""
    return json_response(await run_change(request, lambda: service.retire_node(name, body.reason)))


@node_health.get("/incidents", responses=view_responses(Incident, 404, is_page=True))
def list_incidents(
    service: ServiceParam,
    job: Annotated[str | None, Query(description="only those of one job, by name or id")] = None,
    span_ms: Annotated[int, Query(ge=1, le=MAX_SPAN_MS, description="how long ago the first one began, at most")] = (
        7 * DAY_MS
    ),
) -> Response:
    """Return failures of jobs and faults of nodes, joined where one explains the other, newest first."""
    found = service.incidents(span_ms=span_ms, job=None if job is None else service.find(job))
    return json_response({"items": found, "next": None})
