"""Routes of /report, /fit, /defrag and /overview: GPU time used, the largest jobs that fit or could, the cluster."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from ganger.engine.service import SizeRequest
from ganger.model.queue import DEFAULT
from ganger.model.views.overview import DefragPlan, Order, Overview, Sizes
from ganger.model.views.service_views import Totals
from ganger.rest.proxy_identity import CallerName
from ganger.rest.responses import (
    CHANGE_STATUSES,
    MAX_NUMBER,
    ServiceParam,
    json_response,
    run_change,
    view_responses,
)

router: Final = APIRouter()

MAX_GPUS: Final = 1 << 20
Level = Annotated[str | None, Query(description="level in one domain of which a larger job is to fit; unset: lowest")]
Budget = Annotated[
    int | None, Query(ge=1, le=MAX_NUMBER, description="GPU-milliseconds that the moves may waste; unset: no limit")
]
Amount = Annotated[int, Query(ge=0, le=MAX_NUMBER)]


@router.get("/report", tags=["report"], responses=view_responses(Totals, 404))
def get_report(
    service: ServiceParam,
    since: Annotated[
        int | None,
        Query(ge=0, le=MAX_NUMBER, description="only live jobs, and those that ended at or after this time; Unix ms"),
    ] = None,
    user: Annotated[str | None, Query(description="only jobs of this user")] = None,
    queue: Annotated[str | None, Query(description="only jobs of this queue")] = None,
) -> Response:
    """Return the time accounting of live and ended jobs, each with its whole lifetime."""
    return json_response(service.report(since_ms=since, user=user, queue=queue))


@router.get("/fit", tags=["fit"], responses=view_responses(Sizes, 404))
def get_fit(
    *,
    service: ServiceParam,
    caller: CallerName,
    queue: Annotated[str, Query(description="the queue that the job would wait in")] = DEFAULT,
    gpu_type: Annotated[str, Query(description="only GPUs of this type")] = "",
    gpus: Annotated[int, Query(ge=0, le=MAX_GPUS, description="GPUs of each node; 0: any number")] = 0,
    cpu_milli: Amount = 0,
    memory_bytes: Amount = 0,
    time_ms: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="the job's time limit")] = None,
) -> Response:
    """Return the largest job of each form that would start now, by GPU type and topology level."""
    request = SizeRequest(gpu_type=gpu_type.lower(), gpus=gpus, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
    return json_response(service.sizes(queue, request, time_ms, caller))


@router.get("/defrag", tags=["fit"], responses=view_responses(DefragPlan, 409))
def get_defrag(
    service: ServiceParam,
    level: Level = None,
    budget_ms: Budget = None,
) -> Response:
    """Return the moves of running jobs after which a larger job fits; nothing is moved."""
    return json_response(service.defrag(level, budget_ms))


@router.post(
    "/defrag", status_code=202, tags=["fit"], responses=view_responses(DefragPlan, *CHANGE_STATUSES, status=202)
)
async def apply_defrag(
    request: Request, service: ServiceParam, caller: CallerName, level: Level = None, budget_ms: Budget = None
) -> Response:
    """Move running jobs so that a larger job fits: all of the moves or none; return them."""
    return json_response(await run_change(request, lambda: service.apply_defrag(level, budget_ms, caller)), 202)


@router.get("/overview", tags=["fit"], responses=view_responses(Overview))
def get_overview(
    service: ServiceParam,
    sort: Annotated[Order, Query(description="order of the pending jobs")] = "policy",
) -> Response:
    """Return the overview of the cluster and its queues: nodes as cells, large clusters by domain; the next jobs."""
    return json_response(service.overview(sort))
