"""Routes of /events and /stream: the event log by page, and as a stream."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from ganger.engine.service import EVENT_KINDS, Service
from ganger.model.views.service_views import EventRow
from ganger.rest.etags import VersionParam
from ganger.rest.responses import MAX_NUMBER, ServiceParam, encode_json, event_page, read_responses, text_responses
from ganger.rest.stream_feed import StreamFeed

router: Final = APIRouter(tags=["events"])

MAX_PAGE: Final = 2_000
BATCH: Final = 500
KEEP_ALIVE_S: Final = 15.0
_KIND: Final = f"({'|'.join(EVENT_KINDS)})"

Gang = Annotated[str | None, Query(description="only events of this job, by id")]
Kinds = Annotated[
    str | None, Query(pattern=f"^{_KIND}(,{_KIND})*$", description="only events of these kinds: started,failed")
]


@router.get("/events", responses=read_responses(EventRow, is_page=True))
def list_events(
    *,
    service: ServiceParam,
    version: VersionParam,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="seq to continue after")] = 0,
    gang: Gang = None,
    kinds: Kinds = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 1_000,
) -> Response:
    """Return the event log, oldest first."""
    return version.respond(lambda: event_page(service, after, gang, limit, _split_kinds(kinds)))


@router.get(
    "/stream", responses=text_responses("text/event-stream", "Server-sent events: `id` is seq, `data` an EventRow")
)
async def stream_events(
    *,
    request: Request,
    service: ServiceParam,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="seq to continue after; unset: only new events")
    ] = None,
    gang: Gang = None,
    kinds: Kinds = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_NUMBER, description="sent by a browser that reconnects")
    ] = None,
) -> Response:
    """Stream every change, as it happens. Resumes after Last-Event-ID, else `after`, without gap or repeat."""
    start = last_event_id if last_event_id is not None else after
    if start is None:
        start = await run_in_threadpool(service.seq)
    state = request.app.state
    frames = _EventStream(service, state.feed, state.streamers, (gang, _split_kinds(kinds)))
    return StreamingResponse(frames.after(start), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


class _EventStream:
    """The stream of one subscriber."""

    def __init__(
        self, service: Service, feed: StreamFeed, limiter: CapacityLimiter, filters: tuple[str | None, tuple[str, ...]]
    ) -> None:
        self._service, self._feed, self._limiter = service, feed, limiter
        self._gang, self._kinds = filters

    async def after(self, seq: int) -> AsyncIterator[bytes]:
        """Yield frames of the matching events after `seq`.

        A comment comes first, so that the client knows it is connected, and each time nothing has come for a while, so
        that proxies do not close the connection.
        """
        yield b": connected\n\n"
        last_sent_s = time.monotonic()
        while not self._feed.closed:
            frames, count, seq = await to_thread.run_sync(self._read, seq, limiter=self._limiter)
            if frames:
                yield frames
                last_sent_s = time.monotonic()
            elif time.monotonic() >= last_sent_s + KEEP_ALIVE_S:
                yield b": still here\n\n"
                last_sent_s = time.monotonic()
            if count < BATCH:
                await self._feed.wait_beyond(seq, last_sent_s + KEEP_ALIVE_S - time.monotonic())

    def _read(self, seq: int) -> tuple[bytes, int, int]:
        """Return frames of the rows after `seq`, their number, and the seq up to which all rows have been read.

        Rows that do not match are read once.
        """
        newest = self._service.seq()
        rows = self._service.events(after=seq, gang=self._gang, kinds=self._kinds, limit=BATCH)
        frames = b"".join(b"id: %d\ndata: %s\n\n" % (row.seq, encode_json(row)) for row in rows)
        if len(rows) == BATCH:
            return frames, BATCH, rows[-1].seq
        return frames, len(rows), max(newest, seq, rows[-1].seq if rows else 0)


def _split_kinds(kinds: str | None) -> tuple[str, ...]:
    return tuple(kinds.split(",")) if kinds else ()
