"""Routes of /secrets and /tokens: values for jobs, and access over TCP.

No route returns the value of a secret. Tokens are managed over the unix socket alone, so no token can make another.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter, Path, Request, Response
from pydantic import ConfigDict, Field

from ganger.engine.service import TokenRow
from ganger.model.views.service_views import SecretRow
from ganger.rest.body_types import Figures
from ganger.rest.responses import CHANGES, Served, answer, changed, documented, shown
from ganger.rest.token_gate import Local

router: Final = APIRouter()


LONGEST_MS: Final = 3_650 * 86_400_000
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


@dataclass(frozen=True, kw_only=True)
class SecretBody:
    """A value to keep."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    value: str = field(repr=False)


@router.get("/secrets", tags=["secrets"], responses=shown(SecretRow, many=True))
def list_secrets(service: Served) -> Response:
    """The names of the secrets that are kept, and when each was set."""
    return answer({"items": service.secrets.rows(), "next": None})


@router.put("/secrets/{name}", tags=["secrets"], responses=shown(SecretRow, *CHANGES))
async def put_secret(request: Request, service: Served, name: str, body: SecretBody) -> Response:
    """Keep a value for jobs whose `secrets` name it, in place of one that is there."""
    return answer(await changed(request, lambda: service.secrets.set(name, body.value)))


@router.delete(
    "/secrets/{name}",
    tags=["secrets"],
    status_code=204,
    response_class=Response,
    responses=documented({}, 204, "It is forgotten", *CHANGES, 404),
)
async def delete_secret(request: Request, service: Served, name: str) -> Response:
    """Forget a value. Jobs that have it already keep it until they are deleted."""
    await changed(request, lambda: service.secrets.delete(name))
    return Response(status_code=204)


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


@router.get("/tokens", tags=["tokens"], dependencies=[Local], responses=shown(TokenRow, many=True))
def list_tokens(service: Served) -> Response:
    """Every token by its name: when it was made, when it expires."""
    return answer({"items": service.tokens(), "next": None})


@router.post("/tokens", tags=["tokens"], dependencies=[Local], status_code=201, responses=_MADE)
async def create_token(request: Request, service: Served, body: TokenBody) -> Response:
    """Make a token for requests over TCP: `Authorization: Bearer TOKEN`."""
    token = await changed(request, lambda: service.create_token(body.name, body.expires_after_ms))
    return answer({"token": token}, 201)


@router.delete(
    "/tokens/{name}",
    tags=["tokens"],
    dependencies=[Local],
    status_code=204,
    response_class=Response,
    responses=documented({}, 204, "It is good for nothing", *CHANGES, 404),
)
async def revoke_token(request: Request, service: Served, name: Annotated[str, Path()]) -> Response:
    """Make a token good for nothing, at once."""
    await changed(request, lambda: service.revoke_token(name))
    return Response(status_code=204)
