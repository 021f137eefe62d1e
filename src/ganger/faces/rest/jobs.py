"""Routes of /jobs: list, submit, look, stop, delete, explain, and what ranks wrote."""

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from ganger.engine.service import JobFilter, LogQuery, Refused, Submission, label_terms
from ganger.faces.rest.answers import (
    MAX_NUMBER,
    NDJSON,
    Served,
    answer,
    documented,
    event_page,
    ndjson,
    shown,
    streamed,
)
from ganger.faces.rest.feed import Feed
from ganger.model.view import DryRun, EventRow, Explanation, JobRow, JobView

router: Final = APIRouter(prefix="/jobs", tags=["jobs"])

MAX_PAGE: Final = 2_000
MAX_RANKS: Final = 100_000


@router.get("", responses=shown(JobRow, many=True))
def list_jobs(
    *,
    service: Served,
    state: Annotated[str | None, Query(description="only jobs in these states: pending,running")] = None,
    user: Annotated[str | None, Query(description="only jobs of this user")] = None,
    queue: Annotated[str | None, Query(description="only jobs of this queue")] = None,
    name: Annotated[str | None, Query(description="only jobs of this name")] = None,
    labels: Annotated[str | None, Query(description="only jobs with these labels: team=nlp,stage!=prod")] = None,
    since: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="not ended before; Unix ms")] = None,
    until: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="submitted by then; Unix ms")] = None,
    all: Annotated[bool, Query(description="every job, page by page; else what lives and what ended last")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(description="`next` of the page before")] = None,
) -> Response:
    """Jobs, newest first, for which everything that is asked for holds."""
    wanted = JobFilter(
        states=tuple(state.split(",")) if state else (),
        user=user,
        queue=queue,
        name=name,
        since_ms=since,
        until_ms=until,
        labels=label_terms(labels or ""),
    )
    return answer(service.jobs(wanted, everything=all, limit=limit, cursor=cursor))


@router.post("", status_code=201, responses=shown(JobView, status=201) | shown(DryRun, what="With dryRun"))
def submit_job(
    service: Served,
    submission: Submission,
    dry_run: Annotated[bool, Query(alias="dryRun", description="say what would happen; nothing changes")] = False,
) -> Response:
    """Submit a job. A repeat with the same request_id gives the job of the first."""
    if dry_run:
        return answer(service.dry_run(submission))
    job, is_new = service.submit(submission)
    return answer(job, 201 if is_new else 200)


@router.get("/{id}", responses=shown(JobView))
def get_job(service: Served, id: str) -> Response:
    """A job in full, by id; or the newest job of that name."""
    return answer(service.job(id))


@router.delete("/{id}", status_code=204, responses=documented({}, 204, "It is gone"))
def delete_job(service: Served, id: str) -> Response:
    """Take an ended job out of the listings, and its files off the disk."""
    service.delete(id)
    return Response(status_code=204)


@router.post("/{id}/stop", status_code=202, responses=shown(JobView, status=202))
def stop_job(service: Served, id: str) -> Response:
    """Ask for a job to end. It may have time to save its work first."""
    return answer(service.stop(id), 202)


@router.get("/{id}/explain", responses=shown(Explanation))
def explain_job(service: Served, id: str) -> Response:
    """Why a job waits, for whom, until when at the latest, and what would start it now."""
    return answer(service.explain(id))


@router.get("/{id}/events", responses=shown(EventRow, many=True))
def list_job_events(
    service: Served,
    id: str,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="seq to go on after")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 1_000,
) -> Response:
    """What happened to a job, oldest first."""
    return answer(event_page(service, after, service.find(id), limit))


@router.get("/{id}/metrics", responses=streamed(NDJSON, "Lines {generation, rank, t, step, metrics}"))
def read_metrics(service: Served, id: str) -> Response:
    """Every report of rank 0, oldest first."""
    return StreamingResponse(ndjson(service.metrics(id)), media_type=NDJSON)


@router.get("/{id}/logs", responses=streamed(NDJSON, "Lines {t, rank, generation, stream, text}; stream is o or e"))
def read_logs(
    *,
    request: Request,
    service: Served,
    id: str,
    follow: Annotated[bool, Query(description="go on until the job has ended")] = False,
    rank: Annotated[str | None, Query(description="0,3-5 or all; unset: rank 0 and every rank's stderr")] = None,
    attempt: Annotated[int | None, Query(ge=1, description="a generation; unset: the newest")] = None,
    tail: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="only that many of the last lines")] = None,
) -> Response:
    """What ranks wrote, in order of time."""
    query = LogQuery(job=service.find(id), ranks=_ranks(rank), everything=rank == "all", generation=attempt, tail=tail)
    feed: Feed = request.app.state.feed
    found = service.follow(query) if follow else service.lines(query)  # refused while there is no answer yet
    lines = feed.follow(lambda: _wire(found)) if follow else ndjson(_wire(found))
    return StreamingResponse(lines, media_type=NDJSON)


def _wire(lines: Any) -> Any:
    """Log lines as the wire has them."""
    for line in lines:
        yield line and {
            "t": line.at_ms,
            "rank": line.rank,
            "generation": line.generation,
            "stream": line.stream,
            "text": line.text,
        }


def _ranks(text: str | None) -> tuple[int, ...] | None:
    """Ranks from `0,3-5`; None for the default and for all."""
    if text is None or text == "all":
        return None
    ranks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if not found:
            raise Refused("invalid_request", f"rank={text} are not ranks", "write 0, or 0,3-5, or all")
        ranks += range(int(found[1]), int(found[2] or found[1]) + 1)
        if len(ranks) > MAX_RANKS:
            raise Refused("invalid_request", f"rank={text} are more than {MAX_RANKS} ranks", "write rank=all")
    return tuple(sorted(set(ranks)))
