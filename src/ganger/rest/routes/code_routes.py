"""Routes of /code: copies of code that a client on another machine sends before a submission names them in `codes`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Final
from weakref import WeakValueDictionary

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from ganger.engine.service import RequestError, TokenRow
from ganger.rest.proxy_identity import CallerName
from ganger.rest.responses import CHANGE_STATUSES, HOLDER, ServiceParam, response_docs

router: Final = APIRouter(tags=["jobs"])

UPLOADERS: Final = 4
"""Maximum number of archives that are received at one time: each takes room on the disk."""
WAIT_S: Final = 30.0
"""Time for which an upload waits for others; a connection that is not read for longer is taken for a slow one."""
UPLOAD_S: Final = 600.0
"""Time limit of an upload: 128 MiB at 220 KiB/s. `server.http_connection` drops one that hardly moves before."""


class UploadSlots:
    """Slots for uploads, of which one user has one at a time, so that slow uploads of one user stop no other."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(UPLOADERS)
        self._users = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        """Hold a slot, and raise RequestError (too_many_uploads, 503) if none becomes free in time."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(WAIT_S):
                    await held.enter_async_context(self._users.setdefault(user, asyncio.Lock()))
                    await held.enter_async_context(self._slots)
            except TimeoutError:
                message = (
                    f"other uploads are in progress: one of each user and {UPLOADERS} in all are received at a time"
                )
                raise RequestError("too_many_uploads", message, "submit the job again", 503) from None
            yield


Digest = Annotated[
    str,
    Path(
        pattern="^[0-9a-f]{64}$",
        description="hash of the content, as `ganger.code` makes it; at a controller: SHA-256 of the archive",
    ),
]
Namespace = Annotated[
    str,
    Query(
        pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="at a controller: namespace of the jobs that use it"
    ),
]


@router.get(
    "/code/{digest}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "There is such a copy, and it is kept for a while", 404),
)
def find_code(service: ServiceParam, digest: Digest, namespace: Namespace = "default") -> Response:
    """Return whether the server has a copy of this code, which then need not be sent."""
    if not service.received_code.has(digest, namespace):
        raise RequestError("no_snapshot", f"there is no copy of the code {digest}", "send it: PUT", 404)
    return Response(status_code=204)


@router.put(
    "/code/{digest}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is stored", 408, *CHANGE_STATUSES),
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def put_code(
    request: Request, service: ServiceParam, caller: CallerName, digest: Digest, namespace: Namespace = "default"
) -> Response:
    """Store a copy of code, sent as a tar archive with gzip: plain files, directories and links inside it."""
    slots: UploadSlots = request.app.state.upload_slots
    holder: TokenRow | None = request.scope.get(HOLDER)
    async with slots.hold(caller or ("" if holder is None else holder.user)):
        with service.received_code.new_file() as file:
            try:
                async with asyncio.timeout(UPLOAD_S):
                    async for content in request.stream():
                        await run_in_threadpool(service.received_code.write, file, content)
            except TimeoutError:
                message = f"the code was not received within {UPLOAD_S:.0f} s"
                raise RequestError("upload_too_slow", message, "leave files out: .gangerignore", 408) from None
            except ClientDisconnect:
                return Response(status_code=400)
            await run_in_threadpool(service.received_code.keep, file, digest, namespace)  # no change waits for it
    return Response(status_code=204)
