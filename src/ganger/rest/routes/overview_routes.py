"""Routes of /report, /fit and /overview: GPU time used, the largest job that would start now, cluster and queue."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from ganger.engine.service import SizeRequest
from ganger.model.queue import DEFAULT
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.model.views.service_views import Totals
from ganger.rest.proxy_identity import Asking
from ganger.rest.responses import MAX_NUMBER, Served, answer, shown

router: Final = APIRouter()

MAX_GPUS: Final = 1 << 20
Amount = Annotated[int, Query(ge=0, le=MAX_NUMBER)]


@router.get("/report", tags=["report"], responses=shown(Totals, 404))
def get_report(
    service: Served,
    since: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="not ended before; Unix ms")] = None,
    user: Annotated[str | None, Query(description="only jobs of this user")] = None,
    queue: Annotated[str | None, Query(description="only jobs of this queue")] = None,
) -> Response:
    """Where the time of jobs went, each with its whole life: those that live, and those that have ended."""
    return answer(service.report(since_ms=since, user=user, queue=queue))


@router.get("/fit", tags=["fit"], responses=shown(Sizes, 404))
def get_fit(
    *,
    service: Served,
    asking: Asking,
    queue: Annotated[str, Query(description="the queue that the job would wait in")] = DEFAULT,
    gpu_type: Annotated[str, Query(description="only GPUs of this type")] = "",
    gpus: Annotated[int, Query(ge=0, le=MAX_GPUS, description="so many on each node; 0: every number")] = 0,
    cpu_milli: Amount = 0,
    memory_bytes: Amount = 0,
    time_ms: Annotated[int | None, Query(ge=1, le=MAX_NUMBER, description="the job's time limit")] = None,
) -> Response:
    """The largest job of each form that would start now: of every type of GPU, at every level of the network."""
    wanted = SizeRequest(gpu_type=gpu_type.lower(), gpus=gpus, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
    return answer(service.sizes(queue, wanted, time_ms, asking))


@router.get("/overview", tags=["fit"], responses=shown(Overview))
def get_overview(
    service: Served,
    sort: Annotated[Order, Query(description="who of those that wait is told of first")] = "turn",
) -> Response:
    """The cluster and the queue at one glance: nodes as cells, folded by domain where there are many; who is next."""
    return answer(service.overview(sort))
