"""Routes of /code: copies of code that a client on another machine sends before a submission names them in `codes`."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from ganger.engine.service import RequestError
from ganger.rest.responses import CHANGE_STATUSES, ServiceParam, response_docs, run_change

router: Final = APIRouter(tags=["jobs"])

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="hash of the content, as `ganger.code` makes it")]


@router.get(
    "/code/{digest}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "There is such a copy, and it is kept for a while", 404),
)
def find_code(service: ServiceParam, digest: Digest) -> Response:
    """Return whether the server has a copy of this code, which then need not be sent."""
    if not service.received_code.has(digest):
        raise RequestError("no_snapshot", f"there is no copy of the code {digest}", "send it: PUT", 404)
    return Response(status_code=204)


@router.put(
    "/code/{digest}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is stored", *CHANGE_STATUSES),
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def put_code(request: Request, service: ServiceParam, digest: Digest) -> Response:
    """Store a copy of code, sent as a tar archive with gzip: plain files, directories and links inside it."""
    async with request.app.state.uploaders:
        with service.received_code.new_file() as file:
            async for content in request.stream():
                await run_in_threadpool(service.received_code.write, file, content)
            await run_change(request, lambda: service.received_code.keep(file, digest))
    return Response(status_code=204)
