"""Routes of /server: the server itself, and the two ways to make it go."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from ganger.engine.service import Refused
from ganger.model.views.service_views import ServerView
from ganger.rest.responses import CHANGES, Served, answer, documented, shown
from ganger.rest.token_gate import Local

router: Final = APIRouter(prefix="/server", tags=["server"])

Leave = Callable[[str | None], None]
"""Ends the server once the answers under way are sent; with an interpreter, it runs itself anew under that one."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """With which interpreter: the absolute path of a Python that has ganger."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    python: str


@router.get("", responses=shown(ServerView))
def get_server(service: Served) -> Response:
    """The server: version, health, how far its log is, how much runs."""
    return answer(service.server())


@router.post(
    "/stop",
    status_code=202,
    response_class=Response,
    responses=documented({}, 202, "It will end"),
    dependencies=[Local],
)
async def stop_server(request: Request) -> Response:
    """End the server. Jobs run on, and the next server finds them."""
    request.app.state.leave(None)
    return Response(status_code=202)


@router.post(
    "/restart",
    status_code=202,
    responses=documented({}, 202, "It will run itself anew", *CHANGES),
    dependencies=[Local],
)
def restart_server(request: Request, body: Restart) -> Response:
    """Let the server run itself anew, in the same process, under the caller's interpreter. Jobs run on."""
    python = Path(body.python)
    if not python.is_absolute() or not python.is_file():
        raise Refused("no_interpreter", f"{body.python} is not the absolute path of an interpreter", "ganger doctor")
    request.app.state.leave(body.python)
    return Response(status_code=202)
