"""Routes of /secrets, /tokens and /whoami: values for jobs, access over TCP, and the caller.

No route returns the value of a secret. Tokens are managed over the unix socket alone, so no token can make another.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter, Path, Request, Response
from pydantic import ConfigDict, Field

from ganger.engine.service import TokenRow, TokenScope
from ganger.model.views.service_views import CallerView, SecretRow
from ganger.rest.body_types import StrictNumber
from ganger.rest.responses import (
    CHANGE_STATUSES,
    HOLDER,
    ServiceParam,
    json_response,
    response_docs,
    run_change,
    view_responses,
)
from ganger.rest.token_gate import LocalOnly

router: Final = APIRouter()


MAX_EXPIRY_MS: Final = 3_650 * 86_400_000
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


@dataclass(frozen=True, kw_only=True)
class SecretBody:
    """The value of a secret."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    value: str = field(repr=False)


@router.get("/secrets", tags=["secrets"], responses=view_responses(SecretRow, is_page=True))
def list_secrets(service: ServiceParam) -> Response:
    """Return the names of the stored secrets, and when each was set."""
    return json_response({"items": service.secrets.rows(), "next": None})


@router.put("/secrets/{name}", tags=["secrets"], responses=view_responses(SecretRow, *CHANGE_STATUSES))
async def put_secret(request: Request, service: ServiceParam, name: str, body: SecretBody) -> Response:
    """Store a value for jobs whose `secrets` name it, replacing the current one."""
    return json_response(await run_change(request, lambda: service.secrets.set(name, body.value)))


@router.delete(
    "/secrets/{name}",
    tags=["secrets"],
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is deleted", *CHANGE_STATUSES, 404),
)
async def delete_secret(request: Request, service: ServiceParam, name: str) -> Response:
    """Delete a value. Jobs that have it keep it until they are deleted."""
    await run_change(request, lambda: service.secrets.delete(name))
    return Response(status_code=204)


@router.get("/whoami", tags=["tokens"], responses=view_responses(CallerView))
def get_caller(request: Request, service: ServiceParam) -> Response:
    """Return the user under whom the caller's requests are made, and what they may change."""
    token: TokenRow | None = request.scope.get(HOLDER)
    if token is None:
        view = CallerView(user=service.user, authentication="socket_owner", scope="admin", expires_ms=None)
    else:
        view = CallerView(user=service.user, authentication="token", scope=token.scope, expires_ms=token.expires_ms)
    return json_response(view)


@dataclass(frozen=True, kw_only=True)
class TokenBody:
    """A token to create: `expires_after_ms` from now; null is never."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: Name
    expires_after_ms: Annotated[int, Field(ge=1, le=MAX_EXPIRY_MS), StrictNumber] | None
    scope: TokenScope = "submit"


_TOKEN_RESPONSES: Final = response_docs(
    {
        "application/json": {
            "schema": {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}}
        }
    },
    201,
    "The token: it is shown only once",
    *CHANGE_STATUSES,
)


@router.get("/tokens", tags=["tokens"], dependencies=[LocalOnly], responses=view_responses(TokenRow, is_page=True))
def list_tokens(service: ServiceParam) -> Response:
    """Return every token by its name, with its times of creation and expiry."""
    return json_response({"items": service.tokens(), "next": None})


@router.post("/tokens", tags=["tokens"], dependencies=[LocalOnly], status_code=201, responses=_TOKEN_RESPONSES)
async def create_token(request: Request, service: ServiceParam, body: TokenBody) -> Response:
    """Create a token for requests over TCP: `Authorization: Bearer TOKEN`."""
    token = await run_change(request, lambda: service.create_token(body.name, body.expires_after_ms, body.scope))
    return json_response({"token": token}, 201)


@router.delete(
    "/tokens/{name}",
    tags=["tokens"],
    dependencies=[LocalOnly],
    status_code=204,
    response_class=Response,
    responses=response_docs({}, 204, "It is revoked", *CHANGE_STATUSES, 404),
)
async def revoke_token(request: Request, service: ServiceParam, name: Annotated[str, Path()]) -> Response:
    """Revoke a token, at once."""
    await run_change(request, lambda: service.revoke_token(name))
    return Response(status_code=204)
