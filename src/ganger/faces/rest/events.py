"""Routes of /events and /stream: the event log by the page, and as it grows."""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from ganger.engine.service import Service
from ganger.faces.rest.answers import MAX_NUMBER, Served, answer, encoded, event_page, shown, streamed
from ganger.faces.rest.feed import Feed
from ganger.model.view import EventRow

router: Final = APIRouter(tags=["events"])

MAX_PAGE: Final = 2_000
BATCH: Final = 500
KEEP_ALIVE_S: Final = 15.0


@router.get("/events", responses=shown(EventRow, many=True))
def list_events(
    service: Served,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="seq to go on after")] = 0,
    gang: Annotated[str | None, Query(description="only events of this job, by id")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 1_000,
) -> Response:
    """The event log, oldest first."""
    return answer(event_page(service, after, gang, limit))


@router.get("/stream", responses=streamed("text/event-stream", "Server-sent events: `id` is seq, `data` an EventRow"))
async def stream_events(
    request: Request,
    service: Served,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="seq to go on after; unset: only what comes")
    ] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_NUMBER, description="sent by a browser that reconnects")
    ] = None,
) -> Response:
    """Everything that changes, as it changes. Resumes after Last-Event-ID, else after `after`."""
    start = last_event_id if last_event_id is not None else after
    if start is None:
        start = await run_in_threadpool(service.seq)
    frames = _frames(service, request.app.state.feed, start)
    return StreamingResponse(frames, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _frames(service: Service, feed: Feed, seq: int) -> AsyncIterator[bytes]:
    """Frames of a stream after `seq`. A comment comes first, so that the client knows it is connected, and each time
    nothing has happened for a while, so that whoever stands between does not hang up."""
    yield b": connected\n\n"
    while not feed.closed:
        rows: list[EventRow] = await run_in_threadpool(service.events, after=seq, gang=None, limit=BATCH)
        if rows:
            seq = rows[-1].seq
            yield b"".join(b"id: %d\ndata: %s\n\n" % (row.seq, encoded(row)) for row in rows)
        if len(rows) < BATCH and not await feed.beyond(seq, KEEP_ALIVE_S):
            yield b": still here\n\n"
