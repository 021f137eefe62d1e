"""Routes of /fit and /overview: how large a job may be to start now, and the cluster and its queue at one glance."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from ganger.engine.service import WantedSize
from ganger.model.queue import DEFAULT
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.rest.proxy_identity import Asking
from ganger.rest.responses import MAX_NUMBER, Served, answer, shown

router: Final = APIRouter(tags=["fit"])

MAX_GPUS: Final = 1 << 20
Amount = Annotated[int, Query(ge=0, le=MAX_NUMBER)]


@router.get("/fit", responses=shown(Sizes, 404))
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
    wanted = WantedSize(gpu_type=gpu_type.lower(), gpus=gpus, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
    return answer(service.sizes(queue, wanted, time_ms, asking))


@router.get("/overview", responses=shown(Overview))
def get_overview(
    service: Served,
    sort: Annotated[Order, Query(description="who of those that wait is told of first")] = "turn",
) -> Response:
    """The cluster and the queue at one glance: nodes as cells, folded by domain where there are many; who is next."""
    return answer(service.overview(sort))
