"""Routes of /tokens: who may come over TCP. Only the socket's owner asks for them, so no token can make another."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter, Path, Request, Response
from pydantic import ConfigDict, Field

from ganger.engine.service import TokenRow
from ganger.rest.body_types import Figures
from ganger.rest.responses import CHANGES, Served, answer, changed, documented, shown
from ganger.rest.token_gate import Local

router: Final = APIRouter(prefix="/tokens", tags=["tokens"], dependencies=[Local])

LONGEST_MS: Final = 3_650 * 86_400_000
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


@dataclass(frozen=True, kw_only=True)
class TokenBody:
    """A token to be made: `expires_after_ms` from now; null is never."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: Name
    expires_after_ms: Annotated[int, Field(ge=1, le=LONGEST_MS), Figures] | None


_MADE: Final = documented(
    {
        "application/json": {
            "schema": {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}}
        }
    },
    201,
    "The token: it is shown this once",
    *CHANGES,
)


@router.get("", responses=shown(TokenRow, many=True))
def list_tokens(service: Served) -> Response:
    """Every token by its name: when it was made, when it expires."""
    return answer({"items": service.tokens(), "next": None})


@router.post("", status_code=201, responses=_MADE)
async def create_token(request: Request, service: Served, body: TokenBody) -> Response:
    """Make a token for requests over TCP: `Authorization: Bearer TOKEN`."""
    token = await changed(request, lambda: service.create_token(body.name, body.expires_after_ms))
    return answer({"token": token}, 201)


@router.delete(
    "/{name}",
    status_code=204,
    response_class=Response,
    responses=documented({}, 204, "It is good for nothing", *CHANGES, 404),
)
async def revoke_token(request: Request, service: Served, name: Annotated[str, Path()]) -> Response:
    """Make a token good for nothing, at once."""
    await changed(request, lambda: service.revoke_token(name))
    return Response(status_code=204)
