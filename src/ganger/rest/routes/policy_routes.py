"""Routes of /policy: the policy document of the cluster, its versions, and what another one would change.

A document is sent as text (YAML or JSON; errors have line and column), as a mapping, or as the number of a version.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from ganger.engine.service import Proposal
from ganger.model.queue import MAX_FIGURE
from ganger.model.views.policy_views import PolicyDraft, PolicyTrial, PolicyVersion, PolicyView
from ganger.rest.body_types import StrictBool, StrictNumber
from ganger.rest.etags import VersionParam
from ganger.rest.responses import (
    CHANGE_STATUSES,
    ServiceParam,
    json_response,
    read_responses,
    run_change,
    view_responses,
)

router: Final = APIRouter(prefix="/policy", tags=["policy"])

MAX_TEXT: Final = 1 << 20
MAX_NOTE: Final = 1_000
Number = Annotated[int, Field(ge=0, le=MAX_FIGURE), StrictNumber]


@dataclass(frozen=True, kw_only=True)
class PolicyBody:
    """A policy document: exactly one of text, document and version (an earlier one). `filename` is for errors."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    filename: Annotated[str, Field(max_length=4096)] = "policy.yaml"
    document: dict[str, Any] | None = None
    version: Number | None = None

    @property
    def proposal(self) -> Proposal:
        """The proposal for the service."""
        return Proposal(text=self.text, filename=self.filename, document=self.document, version=self.version)


@dataclass(frozen=True, kw_only=True)
class Comparison(PolicyBody):
    """A document, and the version to compare it with, by default the one in force."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    against: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Application(PolicyBody):
    """A document to put in force.

    if_version: only if that version is still in force.
    force: even if it strands live jobs.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    note: Annotated[str, Field(max_length=MAX_NOTE)] = ""
    force: StrictBool = False
    if_version: Number | None = None


@router.get("", responses=read_responses(PolicyView))
def get_policy(service: ServiceParam, version: VersionParam) -> Response:
    """Return the document in force, with its version, author and time."""
    return version.respond(service.policy)


@router.put(
    "",
    responses=view_responses(PolicyView, *CHANGE_STATUSES, 404)
    | {
        200: {
            "description": "The document, in force. With dryRun: what it would change",
            "content": {
                "application/json": {
                    "schema": {
                        "anyOf": [{"$ref": f"#/components/schemas/{view}"} for view in ("PolicyTrial", "PolicyView")]
                    }
                }
            },
        }
    },
)
async def put_policy(
    *,
    request: Request,
    service: ServiceParam,
    body: Application,
    dry_run: Annotated[
        Literal["plan"] | None,
        Query(alias="dryRun", description="return what the next cycle would do; nothing changes"),
    ] = None,
) -> Response:
    """Put a whole document in force, from the next cycle on.

    One that would strand live jobs is refused with their names unless it is forced; one that changes nothing makes no
    version.
    """
    proposal = body.proposal
    if dry_run:
        return json_response(await run_change(request, lambda: service.try_policy(proposal)))

    def change() -> PolicyView:
        return service.apply_policy(proposal, force=body.force, note=body.note, if_version=body.if_version)

    return json_response(await run_change(request, change))


@router.post("/diff", responses=view_responses(PolicyTrial, *CHANGE_STATUSES, 404))
async def diff_policy(request: Request, service: ServiceParam, body: Comparison) -> Response:
    """Return what a document would change, and which live jobs it would strand. Nothing changes."""
    return json_response(await run_change(request, lambda: service.diff_policy(body.proposal, body.against)))


@router.post("/check", responses=view_responses(PolicyDraft, *CHANGE_STATUSES, 404))
async def check_policy(request: Request, service: ServiceParam, body: PolicyBody) -> Response:
    """Check a document by itself and against the nodes, and return it. Nothing changes, and no job is named."""
    return json_response(await run_change(request, lambda: service.check_policy(body.proposal)))


@router.get("/versions", responses=read_responses(PolicyVersion, is_page=True))
def list_policy_versions(service: ServiceParam, version: VersionParam) -> Response:
    """Return every version of the document that is kept, newest first: author, time, and changes."""
    return version.respond(lambda: {"items": service.policy_versions(), "next": None})


@router.get("/versions/{number}", responses=read_responses(PolicyView, 404))
def get_policy_version(
    service: ServiceParam, version: VersionParam, number: Annotated[int, Path(ge=0, le=MAX_FIGURE)]
) -> Response:
    """Return one version of the document."""
    return version.respond(lambda: service.policy(number))
