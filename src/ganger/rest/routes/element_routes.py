"""The route of /jobs/{id}/elements: what an array is made of."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from ganger.model.views.service_views import JobRow
from ganger.rest.etags import Versioned
from ganger.rest.responses import Served, reads
from ganger.rest.routes.job_routes import MAX_PAGE, STATES_PATTERN

router: Final = APIRouter(prefix="/jobs", tags=["jobs"])


@router.get("/{id}/elements", responses=reads(JobRow, 400, 404, 409, many=True))
def list_elements(
    *,
    service: Served,
    version: Versioned,
    id: str,
    state: Annotated[
        str | None, Query(pattern=STATES_PATTERN, description="only elements in these states: pending,running")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[
        str | None, Query(description="`next` of the page before", json_schema_extra={"pattern": "^[0-9]{1,18}$"})
    ] = None,
) -> Response:
    """The elements of an array by their index, those that nobody has touched yet too."""
    states = state.split(",") if state else ()
    return version.answer(lambda: service.elements(id, states=states, limit=limit, cursor=cursor))
