"""The route of /report: where the time of all jobs went, and that of the GPUs they held."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from ganger.model.views.service_views import Totals
from ganger.rest.responses import MAX_NUMBER, Served, answer, shown

router: Final = APIRouter(tags=["report"])


@router.get("/report", responses=shown(Totals, 404))
def get_report(
    service: Served,
    since: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="not ended before; Unix ms")] = None,
    user: Annotated[str | None, Query(description="only jobs of this user")] = None,
    queue: Annotated[str | None, Query(description="only jobs of this queue")] = None,
) -> Response:
    """Where the time of jobs went, each with its whole life: those that live, and those that have ended."""
    return answer(service.report(since_ms=since, user=user, queue=queue))
