"""Routes of /jobs and /batches: list, submit, read, change, stop, run again, delete, explain; elements of an array."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ConfigDict, Field

from ganger.engine.service import JobFilter, Submission, label_terms
from ganger.model.job import GangState
from ganger.model.views.service_views import Explanation, JobRow, JobView
from ganger.rest.body_types import StrictBool, StrictNumber
from ganger.rest.etags import ExpectedSeq, VersionParam
from ganger.rest.proxy_identity import CallerParam
from ganger.rest.responses import (
    CHANGE_STATUSES,
    MAX_NUMBER,
    ServiceParam,
    json_response,
    read_responses,
    response_docs,
    run_change,
    view_responses,
)
from ganger.spec.amounts import MAX_STEPS

router: Final = APIRouter(tags=["jobs"])

MAX_PAGE: Final = 2_000
MAX_NOTES: Final = 16_384
MAX_PRIORITY: Final = 1_000
_STATE: Final = f"({'|'.join(GangState)})"
STATES_PATTERN: Final = f"^{_STATE}(,{_STATE})*$"
_TERM: Final = r" *[A-Za-z0-9_./-]+ *!?= *[A-Za-z0-9_.-]* *"
_KEY: Final = r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,316}$"
_VALUE: Final = r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]+$",
        description="takes the place of request_id: a repeat makes no second job",
    ),
]


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """The fields of a job that can be changed; omitted or null ones stay. Labels and notes also after its end."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), StrictNumber] | None = None
    suspended: StrictBool | None = None
    nodes: Annotated[str, Field(pattern=r"^[+-]?[0-9]{1,6}$", description="of an elastic job: 4, +1 or -2")] | None = (
        None
    )
    rollback: (
        Annotated[
            int,
            Field(ge=0, le=MAX_STEPS, description="step: return to the newest checkpoint at or before it"),
            StrictNumber,
        ]
        | None
    ) = None
    labels: Annotated[
        dict[Annotated[str, Field(pattern=_KEY)], Annotated[str, Field(pattern=_VALUE)] | None],
        Field(description="added or replaced; null removes one", json_schema_extra={"additionalProperties": False}),
    ] = field(default_factory=dict)
    notes: Annotated[str, Field(max_length=MAX_NOTES)] | None = None


@dataclass(frozen=True, kw_only=True)
class Clone:
    """Changes to a job that is made from another.

    overrides: keys of a spec, merged over the original's.
    secrets: values of secrets that only these name.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    overrides: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    request_id: str = ""


@dataclass(frozen=True, kw_only=True)
class RetryRequest:
    """Changes to a job that is run again: values of its parameters."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    params: dict[str, str] = field(default_factory=dict)


@router.get("/jobs", responses=read_responses(JobRow, 400, 404, is_page=True))
def list_jobs(
    *,
    service: ServiceParam,
    version: VersionParam,
    state: Annotated[
        str | None, Query(pattern=STATES_PATTERN, description="only jobs in these states: pending,running")
    ] = None,
    user: Annotated[str | None, Query(description="only jobs of this user")] = None,
    queue: Annotated[str | None, Query(description="only jobs of this queue")] = None,
    name: Annotated[str | None, Query(description="only jobs of this name")] = None,
    labels: Annotated[
        str | None,
        Query(pattern=rf"^( *|{_TERM}(,{_TERM})*)$", description="only jobs with these labels: team=nlp,stage!=prod"),
    ] = None,
    since: Annotated[
        int | None,
        Query(ge=0, le=MAX_NUMBER, description="only live jobs, and those that ended at or after this time; Unix ms"),
    ] = None,
    until: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="only jobs submitted at or before this time; Unix ms")
    ] = None,
    all: Annotated[
        bool, Query(description="every job, page by page; else live jobs and those that ended last")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[
        str | None, Query(description="`next` of the previous page", json_schema_extra={"pattern": "^[0-9]{1,18}$"})
    ] = None,
) -> Response:
    """Return jobs, newest first, that match all filters."""
    job_filter = JobFilter(
        states=tuple(state.split(",")) if state else (),
        user=user,
        queue=queue,
        name=name,
        since_ms=since,
        until_ms=until,
        labels=label_terms(labels or ""),
    )
    return version.respond(lambda: service.jobs(job_filter, everything=all, limit=limit, cursor=cursor))


@router.post(
    "/jobs",
    status_code=201,
    responses=view_responses(JobView, *CHANGE_STATUSES, status=201, what="The job, accepted")
    | {
        200: {
            "description": "With dryRun: what would happen. Else: the job that an earlier request with this key made",
            "content": {
                "application/json": {
                    "schema": {"anyOf": [{"$ref": f"#/components/schemas/{view}"} for view in ("DryRun", "JobView")]}
                }
            },
        }
    },
)
async def submit_job(
    *,
    request: Request,
    service: ServiceParam,
    caller: CallerParam,
    submission: Submission,
    dry_run: Annotated[
        Literal["plan"] | None, Query(alias="dryRun", description="say what would happen; nothing changes")
    ] = None,
    idempotency_key: Key = None,
) -> Response:
    """Submit a job: 201.

    A repeat, with the same Idempotency-Key or request_id, returns the job of the first: 200. Another submission under
    the same key is refused: 409, request_id_reused. A key holds as long as its job is listed.
    """
    keyed = replace(submission, request_id=idempotency_key) if idempotency_key else submission
    if dry_run:
        # Of other callers the service knows already whether they administer jobs.
        answers = request.app.state.service if caller and keyed.namespace in caller.administers else service
        return json_response(await run_change(request, lambda: answers.dry_run(keyed, caller and caller.name)))
    job, is_new = await run_change(request, lambda: service.submit(keyed), submits=not _brings_code(keyed))
    return json_response(job, 201 if is_new else 200)


def _brings_code(submission: Submission) -> bool:
    """Return whether a snapshot, or a repository, may have to be waited for."""
    return any("code" in (part or ()) for part in (submission.spec, submission.overrides, submission.spec_text))


@router.get("/jobs/{id}", responses=read_responses(JobView, 404))
def get_job(service: ServiceParam, version: VersionParam, id: str) -> Response:
    """Return a job in full, by id; or the newest job of that name."""
    job = service.job(id)
    return version.respond(lambda: job, str(job.progress["t"]) if job.progress else "")


@router.patch("/jobs/{id}", responses=view_responses(JobView, *CHANGE_STATUSES, 404, 412))
async def patch_job(
    request: Request, service: ServiceParam, id: str, body: JobChange, expected: ExpectedSeq
) -> Response:
    """Change a live job's priority or nodes, suspend, resume or roll it back; change any job's labels and notes."""

    def change() -> JobView:
        name = service.find(id)
        with service.unchanged(name, expected):
            if body.priority is not None:
                service.set_priority(name, body.priority)
            if body.suspended is not None:
                service.suspend(name, suspended=body.suspended)
            if body.nodes is not None:
                service.scale(name, body.nodes)
            if body.rollback is not None:
                service.roll_back(name, body.rollback)
            if body.labels or body.notes is not None:
                service.describe(name, body.labels, body.notes)
        return service.job(name)

    return json_response(await run_change(request, change))


@router.delete(
    "/jobs/{id}",
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is deleted", *CHANGE_STATUSES, 404),
)
async def delete_job(request: Request, service: ServiceParam, id: str, checkpoints: bool = False) -> Response:
    """Remove an ended job from the listings, and its files from the disk.

    One that has checkpoints in its copy of the code is refused, unless `checkpoints` is true.
    """
    await run_change(request, lambda: service.delete(id, checkpoints=checkpoints))
    return Response(status_code=204)


@router.post("/jobs/{id}/stop", status_code=202, responses=view_responses(JobView, *CHANGE_STATUSES, 404, status=202))
async def stop_job(request: Request, service: ServiceParam, id: str, now: bool = False) -> Response:
    """Ask for a job to end. It may get time to save its work first, unless `now` is true."""
    return json_response(await run_change(request, lambda: service.stop(id, now=now)), 202)


_NEW_JOB_RESPONSES: Final = view_responses(
    JobView, *CHANGE_STATUSES, 404, status=201, what="The new job"
) | view_responses(JobView, what="The job that an earlier request with this key made")


@router.post("/jobs/{id}/retry", status_code=201, responses=_NEW_JOB_RESPONSES)
async def retry_job(
    request: Request, service: ServiceParam, id: str, body: RetryRequest | None = None, idempotency_key: Key = None
) -> Response:
    """Run an ended job again, as a new job: the same spec, the same snapshot of its code.

    Its parameters have the values that the body gives, else those that they had.
    """
    params = {} if body is None else body.params
    job, is_new = await run_change(request, lambda: service.retry(id, params, request_id=idempotency_key or ""))
    return json_response(job, 201 if is_new else 200)


@router.post("/jobs/{id}/clone", status_code=201, responses=_NEW_JOB_RESPONSES)
async def clone_job(
    request: Request, service: ServiceParam, id: str, body: Clone, idempotency_key: Key = None
) -> Response:
    """Submit a new job from a live or ended one: its spec with overrides, the same snapshot of its code."""
    key = idempotency_key or body.request_id
    job, is_new = await run_change(request, lambda: service.clone(id, body.overrides, body.secrets, request_id=key))
    return json_response(job, 201 if is_new else 200)


@router.get("/jobs/{id}/explain", responses=view_responses(Explanation, 404))
def explain_job(service: ServiceParam, id: str) -> Response:
    """Return why a job is pending, which jobs it waits for, its reserved start, and what would start it now."""
    return json_response(service.explain(id))


@router.get("/jobs/{id}/elements", responses=read_responses(JobRow, 400, 404, 409, is_page=True))
def list_elements(
    *,
    service: ServiceParam,
    version: VersionParam,
    id: str,
    state: Annotated[
        str | None, Query(pattern=STATES_PATTERN, description="only elements in these states: pending,running")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[
        str | None, Query(description="`next` of the previous page", json_schema_extra={"pattern": "^[0-9]{1,18}$"})
    ] = None,
) -> Response:
    """Return the elements of an array by their index, also those without an event of their own."""
    states = state.split(",") if state else ()
    return version.respond(lambda: service.elements(id, states=states, limit=limit, cursor=cursor))


@router.post("/batches", status_code=201, responses=view_responses(JobView, *CHANGE_STATUSES, status=201, is_page=True))
async def submit_batch(
    request: Request, service: ServiceParam, submission: Submission, idempotency_key: Key = None
) -> Response:
    """Submit every job of a file of several documents, dependencies first.

    Nothing is accepted when one of them is invalid. A repeat, with the same Idempotency-Key or request_id, returns the
    jobs of the first.
    """
    keyed = replace(submission, request_id=idempotency_key) if idempotency_key else submission
    jobs = await run_change(request, lambda: service.submit_all(keyed))
    return json_response({"items": jobs, "next": None}, 201)
