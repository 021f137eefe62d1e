"""Routes of /secrets: which there are, set one, forget one. No route gives a value."""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from ganger.model.views.service_views import SecretRow
from ganger.rest.responses import CHANGES, Served, answer, changed, documented, shown

router: Final = APIRouter(prefix="/secrets", tags=["secrets"])


@dataclass(frozen=True, kw_only=True)
class SecretBody:
    """A value to keep."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    value: str = field(repr=False)


@router.get("", responses=shown(SecretRow, many=True))
def list_secrets(service: Served) -> Response:
    """The names of the secrets that are kept, and when each was set."""
    return answer({"items": service.secrets.rows(), "next": None})


@router.put("/{name}", responses=shown(SecretRow, *CHANGES))
async def put_secret(request: Request, service: Served, name: str, body: SecretBody) -> Response:
    """Keep a value for jobs whose `secrets` name it, in place of one that is there."""
    return answer(await changed(request, lambda: service.secrets.set(name, body.value)))


@router.delete(
    "/{name}", status_code=204, response_class=Response, responses=documented({}, 204, "It is forgotten", *CHANGES, 404)
)
async def delete_secret(request: Request, service: Served, name: str) -> Response:
    """Forget a value. Jobs that have it already keep it until they are deleted."""
    await changed(request, lambda: service.secrets.delete(name))
    return Response(status_code=204)
