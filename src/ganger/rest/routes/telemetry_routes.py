"""Routes of the telemetry of nodes, and of the devices of a running job."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from ganger.engine.service import DEFAULT_POINTS, DEFAULT_SPAN_MS, MAX_POINTS, MAX_SPAN_MS
from ganger.model.views.telemetry_views import JobUsage, NodeTelemetry
from ganger.rest.responses import ServiceParam, json_response, view_responses

router: Final = APIRouter(tags=["usage"])

SpanParam = Annotated[int, Query(ge=1, le=MAX_SPAN_MS, description="length of the history, which ends now")]
PointsParam = Annotated[int, Query(ge=1, le=MAX_POINTS, description="steps of the history")]


@router.get("/telemetry", responses=view_responses(NodeTelemetry, is_page=True))
def list_telemetry(
    service: ServiceParam, span_ms: SpanParam = DEFAULT_SPAN_MS, points: PointsParam = DEFAULT_POINTS
) -> Response:
    """Return the newest sample of every node that has an agent, with a history. It is at most 10 s old."""
    return json_response({"items": service.telemetry.nodes(span_ms, points), "next": None})


@router.get("/nodes/{name}/telemetry", responses=view_responses(NodeTelemetry, 404))
def get_node_telemetry(
    service: ServiceParam, name: str, span_ms: SpanParam = DEFAULT_SPAN_MS, points: PointsParam = DEFAULT_POINTS
) -> Response:
    """Return the newest sample of one node, with a history."""
    return json_response(service.telemetry.node(name, span_ms, points))


@router.get("/jobs/{id}/usage", responses=view_responses(JobUsage, 404, 409))
def get_job_usage(
    service: ServiceParam, id: str, span_ms: SpanParam = DEFAULT_SPAN_MS, points: PointsParam = DEFAULT_POINTS
) -> Response:
    """Return how busy the devices of each rank of a running job are, and were since the attempt began."""
    return json_response(service.telemetry.job(id, span_ms, points))
