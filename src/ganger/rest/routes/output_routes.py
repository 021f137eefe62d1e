"""Routes of a job's output below /jobs/{id}: events, reports, metrics, stacks, logs; and of its resource usage now."""

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from ganger.engine.service import LogQuery, RequestError
from ganger.model.views.overview import Samples
from ganger.model.views.service_views import EventRow, MetricsView, Stacks
from ganger.rest.etags import VersionParam
from ganger.rest.responses import (
    MAX_NUMBER,
    NDJSON,
    ServiceParam,
    event_page,
    json_response,
    ndjson,
    read_responses,
    text_responses,
    view_responses,
)
from ganger.rest.stream_feed import StreamFeed

router: Final = APIRouter()

MAX_PAGE: Final = 2_000
MAX_RANKS: Final = 100_000
TAR: Final = "application/x-tar"
_PART: Final = r"([0-9]{1,6}(-[0-9]{1,6})?|last)"


@router.get("/jobs/{id}/events", tags=["jobs"], responses=read_responses(EventRow, 404, is_page=True))
def list_job_events(
    service: ServiceParam,
    version: VersionParam,
    id: str,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="seq to continue after")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 1_000,
) -> Response:
    """Return the events of a job, oldest first."""
    name = service.find(id)
    return version.respond(lambda: event_page(service, after, name, limit))


@router.get(
    "/jobs/{id}/reports",
    tags=["jobs"],
    responses=text_responses(NDJSON, "Lines {generation, rank, t, step, metrics}", 404),
)
def read_reports(service: ServiceParam, id: str) -> Response:
    """Return every report of rank 0, oldest first."""
    return StreamingResponse(ndjson(service.reports(id)), media_type=NDJSON)


@router.get("/jobs/{id}/metrics", tags=["jobs"], responses=view_responses(MetricsView, 404, 409))
def read_metrics(service: ServiceParam, id: str) -> Response:
    """Return the metrics that the ranks have reported, over all attempts: last, lowest and highest value, and a curve.

    Of each metric the lowest rank counts that reports it. What a running job has reported is known after at most 10 s.
    """
    return json_response(service.metrics(id))


@router.get("/jobs/{id}/stacks", tags=["jobs"], responses=view_responses(Stacks, 404))
def read_stacks(
    service: ServiceParam,
    id: str,
    attempt: Annotated[
        int | None, Query(ge=1, le=MAX_NUMBER, description="a generation; unset: the newest that has them")
    ] = None,
) -> Response:
    """Return the stacks of every rank, recorded when the job hung, or had written nothing for a while."""
    return json_response(service.stacks(id, attempt))


@router.get(
    "/jobs/{id}/logs",
    tags=["jobs"],
    responses=text_responses(
        NDJSON,
        "Lines {t, rank, generation, stream, text}; stream is o or e; unfinished is true if the line goes on",
        404,
        409,
    ),
)
def read_logs(
    *,
    request: Request,
    service: ServiceParam,
    id: str,
    follow: Annotated[bool, Query(description="continue until the job has ended")] = False,
    rank: Annotated[
        str | None,
        Query(
            pattern=f"^(all|{_PART}(,{_PART})*)$",
            max_length=10_000,
            description="0,3-5,last or all; unset: all of role or node, else rank 0 and every rank's stderr",
        ),
    ] = None,
    role: Annotated[str | None, Query(description="only ranks of this role")] = None,
    node: Annotated[str | None, Query(description="only ranks on this node")] = None,
    attempt: Annotated[int | None, Query(ge=1, description="a generation; unset: the newest")] = None,
    first: Annotated[int | None, Query(ge=1, description="or from this generation on")] = None,
    grep: Annotated[str | None, Query(max_length=1_000, description="a regular expression found in the line")] = None,
    since: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="only lines written at or after this time; Unix ms")
    ] = None,
    until: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="only lines written at or before this time; Unix ms")
    ] = None,
    tail: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="number of last lines")] = None,
    live: Annotated[
        bool,
        Query(
            description="with follow, for a terminal: also each new state of a line that has not ended, such as a "
            "progress bar; a line of more than 16384 characters is cut"
        ),
    ] = False,
) -> Response:
    """Return the output of ranks, in order of time."""
    query = LogQuery(
        job=service.find(id),
        ranks=_ranks(rank),
        everything=rank == "all",
        role=role,
        node=node,
        generation=attempt,
        first=first,
        grep=grep,
        since_ms=since,
        until_ms=until,
        tail=tail,
        live=live and follow,
    )
    feed: StreamFeed = request.app.state.feed
    log_lines = service.follow(query) if follow else service.lines(query)  # raises before the response has started
    lines = feed.follow(lambda: _line_dicts(log_lines)) if follow else ndjson(_line_dicts(log_lines))
    return StreamingResponse(lines, media_type=NDJSON)


def _line_dicts(lines: Any) -> Any:
    """Yield log lines as they are sent."""
    for line in lines:
        row = line and {
            "t": line.at_ms,
            "rank": line.rank,
            "generation": line.generation,
            "stream": line.stream,
            "text": line.text,
        }
        yield row | {"unfinished": True} if row and line.is_unfinished else row


def _ranks(text: str | None) -> tuple[int, ...] | None:
    """Return the ranks of `0,3-5,last`, -1 for the last; None for the default and for all."""
    if text is None or text == "all":
        return None
    ranks = [-1] if "last" in text else []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        ranks += range(int(first), int(last or first) + 1)
        if len(ranks) > MAX_RANKS:
            raise RequestError("too_many_ranks", f"rank={text[:80]} are more than {MAX_RANKS} ranks", "write rank=all")
    return tuple(sorted(set(ranks)))


@router.get(
    "/jobs/{id}/files",
    tags=["jobs"],
    responses=text_responses(TAR, "Files, directories and symbolic links; a file may be followed by zeros", 404, 409),
)
def fetch_files(
    service: ServiceParam,
    id: str,
    path: Annotated[
        str | None,
        Query(min_length=1, max_length=4096, description="a file or directory; unset: all that the job wrote"),
    ] = None,
) -> Response:
    """Return files of the job's run directory and of its copy of the code, as a tar archive."""
    return StreamingResponse(service.fetch(id, path), media_type=TAR)


@router.get("/samples", tags=["usage"], responses=view_responses(Samples))
def read_samples(service: ServiceParam) -> Response:
    """Return the processor, memory and GPU usage of every running rank, measured now.

    It may take a quarter of a second. Nothing is stored.
    """
    return json_response(service.live_usage.samples())
