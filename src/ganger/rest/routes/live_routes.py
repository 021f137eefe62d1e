"""Routes of what goes on right now: what each rank uses, and the way in for a command beside a rank."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from ganger.model.views.service_views import Entrance, Samples
from ganger.rest.responses import Served, answer, shown
from ganger.rest.token_gate import Local

router: Final = APIRouter(tags=["presence"])


@router.get("/samples", responses=shown(Samples))
def read_samples(service: Served) -> Response:
    """What every rank that runs uses of processors, memory and GPUs, measured now: it may take a quarter of a second.
    It is kept nowhere."""
    return answer(service.presence.samples())


@router.get("/jobs/{id}/entrance", responses=shown(Entrance, 404, 409), dependencies=[Local])
def get_entrance(
    service: Served,
    id: str,
    rank: Annotated[
        int | None, Query(ge=0, le=999_999, description="unset: the first on the node, else rank 0")
    ] = None,
    node: Annotated[str | None, Query(description="a node that the job runs on")] = None,
) -> Response:
    """How to run a command beside a rank, with its variables and in its directory: what `ganger exec` starts. Only over
    the unix socket."""
    return answer(service.presence.entrance(id, rank=rank, node=node))
