"""Routes of /policy: the document that says how the cluster is given out, its versions, and what another would change.

A document is sent as text (YAML or JSON; errors have line and column), as a mapping, or as the number of a version.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from ganger.engine.service import Proposal
from ganger.model.queue import MAX_FIGURE
from ganger.model.views.service_views import PolicyTrial, PolicyVersion, PolicyView
from ganger.rest.body_types import Figures, Truth
from ganger.rest.etags import Versioned
from ganger.rest.responses import CHANGES, Served, answer, changed, reads, shown

router: Final = APIRouter(prefix="/policy", tags=["policy"])

MAX_TEXT: Final = 1 << 20
MAX_NOTE: Final = 1_000
Number = Annotated[int, Field(ge=0, le=MAX_FIGURE), Figures]


@dataclass(frozen=True, kw_only=True)
class PolicyBody:
    """A policy document: exactly one of text, document and version (an earlier one). `filename` is what errors name."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    filename: Annotated[str, Field(max_length=4096)] = "policy.yaml"
    document: dict[str, Any] | None = None
    version: Number | None = None

    @property
    def proposal(self) -> Proposal:
        """The same for the service."""
        return Proposal(text=self.text, filename=self.filename, document=self.document, version=self.version)


@dataclass(frozen=True, kw_only=True)
class Comparison(PolicyBody):
    """A document, and the version that it is compared with: without it, the one in force."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    against: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Application(PolicyBody):
    """A document that is to be in force. `if_version`: only if that version is in force until then; `force`: though it
    strands live jobs."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    note: Annotated[str, Field(max_length=MAX_NOTE)] = ""
    force: Truth = False
    if_version: Number | None = None


@router.get("", responses=reads(PolicyView))
def get_policy(service: Served, version: Versioned) -> Response:
    """The document in force, with its version, who applied it and when."""
    return version.answer(service.policy)


@router.put(
    "",
    responses=shown(PolicyView, *CHANGES, 404)
    | {
        200: {
            "description": "The document, in force. With dryRun: what it would change",
            "content": {
                "application/json": {
                    "schema": {
                        "anyOf": [{"$ref": f"#/components/schemas/{each}"} for each in ("PolicyTrial", "PolicyView")]
                    }
                }
            },
        }
    },
)
async def put_policy(
    *,
    request: Request,
    service: Served,
    body: Application,
    dry_run: Annotated[
        Literal["plan"] | None, Query(alias="dryRun", description="say what the next round would do; nothing changes")
    ] = None,
) -> Response:
    """Put a document in force, whole, from the next round on. One that would strand live jobs is refused with their
    names unless it is forced; one that changes nothing makes no version."""
    proposal = body.proposal
    if dry_run:
        return answer(await changed(request, lambda: service.try_policy(proposal)))

    def change() -> PolicyView:
        return service.apply_policy(proposal, force=body.force, note=body.note, if_version=body.if_version)

    return answer(await changed(request, change))


@router.post("/diff", responses=shown(PolicyTrial, *CHANGES, 404))
async def diff_policy(request: Request, service: Served, body: Comparison) -> Response:
    """What a document would change, and which live jobs it would strand. Nothing changes."""
    return answer(await changed(request, lambda: service.diff_policy(body.proposal, body.against)))


@router.get("/versions", responses=reads(PolicyVersion, many=True))
def list_policy_versions(service: Served, version: Versioned) -> Response:
    """Every version of the document that is kept, the newest first: who, when, and what it changed."""
    return version.answer(lambda: {"items": service.policy_versions(), "next": None})


@router.get("/versions/{number}", responses=reads(PolicyView, 404))
def get_policy_version(
    service: Served, version: Versioned, number: Annotated[int, Path(ge=0, le=MAX_FIGURE)]
) -> Response:
    """One version of the document."""
    return version.answer(lambda: service.policy(number))
