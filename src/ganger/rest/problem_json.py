"""Errors as problem+json (RFC 9457): {type, title, status, code, detail, next}. `code` is stable, `next` what to type.

Installed by `app`. What was not foreseen is in the server's log under a number, and the client gets the number.
"""

import logging
import secrets
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganger.engine.service import CODES, RequestError
from ganger.rest.etags import NotModified, not_modified
from ganger.rest.responses import PROBLEM

MAX_BODY_BYTES: Final = 2 << 20
DRAINED_BYTES: Final = 256 << 20
"""How much of a body that is too large is read and let go, so that its sender gets to read the answer."""

SCHEMA: Final[dict[str, Any]] = {
    "Problem": {
        "type": "object",
        "description": "What was refused, why, and what to do about it (RFC 9457)",
        "required": ["type", "title", "status", "code", "detail", "next"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"enum": sorted(CODES), "description": "Stable, for programs"},
            "detail": {"type": "string", "description": "What and why, for people"},
            "next": {"type": "string", "description": "What to type next; may be empty"},
        },
    }
}

_DOCUMENT: Final = "GET /api/v1/openapi.json"
_CODES: Final = {404: "no_such_route", 405: "no_such_method"}
_log = logging.getLogger("ganger.rest")


def install(app: FastAPI) -> None:
    """Every error of `app` is a problem."""
    # Starlette types every handler as one of Exception.
    app.add_exception_handler(RequestError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    app.add_exception_handler(NotModified, not_modified)
    app.add_middleware(_Guard)


def problem(status: int, code: str, detail: str, next: str = "") -> Response:
    """One problem as a response."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, "next": next}
    return Response(to_json(body), status, media_type=PROBLEM)


async def _refused(_: Request, error: RequestError) -> Response:
    return problem(error.status, error.code, error.detail, error.next)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    detail = "; ".join(_sentence(found) for found in error.errors())
    remedy = f"see what {request.method} {request.url.path} takes: {_DOCUMENT}"
    return problem(422, "invalid_request", detail, remedy)


def _sentence(found: Any) -> str:
    """One fault of a request: `body.directory: field required`."""
    where = ".".join(str(part) for part in found["loc"])
    return f"{where}: {found['msg'][:1].lower()}{found['msg'][1:]}"


async def _http(request: Request, error: HTTPException) -> Response:
    detail = f"{request.method} {request.url.path}: {str(error.detail).lower()}"
    remedy = f"{_DOCUMENT} lists what there is" if error.status_code in {404, 405} else ""
    answer = problem(error.status_code, _CODES.get(error.status_code, "bad_request"), detail, remedy)
    answer.headers.update(error.headers or {})
    return answer


class _Guard:
    """Refuses bodies that are too large, and turns what nobody foresaw into an incident."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, body = False, _Body(receive)

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if _announced(scope) > MAX_BODY_BYTES:
                raise _TooLargeError
            await self.app(scope, body.receive, watched)
        except _TooLargeError:
            if not _waits(scope):
                await body.drain()
            detail = f"the body is larger than {MAX_BODY_BYTES} bytes"
            await problem(413, "body_too_large", detail, "send less: code travels by `code:`")(scope, receive, send)
        except Exception:  # noqa: BLE001 - whatever it is, the client gets a number and the log the rest
            incident = secrets.token_hex(4)
            _log.exception("incident %s: %s %s", incident, scope["method"], scope["path"])
            if not begun:
                detail = f"the server made a mistake; its log has it as incident {incident}"
                await problem(500, "internal_error", detail, "ganger doctor")(scope, receive, send)


class _TooLargeError(BaseException):
    """The body is larger than any request may be. No Exception: FastAPI makes a 400 of what goes wrong with a body."""


def _announced(scope: Scope) -> int:
    """The length of the body by its header; 0 without one."""
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _waits(scope: Scope) -> bool:
    """Whether the sender waits for a word before it sends the body (RFC 9110, section 10.1.1)."""
    return Headers(scope=scope).get("expect", "").lower() == "100-continue"


class _Body:
    """A request's body as it comes in, no longer than it may be."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0
        self._comes = True

    async def receive(self) -> Message:
        """The next piece."""
        message = await self._next()
        if self._bytes > MAX_BODY_BYTES:
            raise _TooLargeError
        return message

    async def drain(self) -> None:
        """Read the rest, to some length, and keep nothing of it."""
        while self._comes and self._bytes <= DRAINED_BYTES:
            await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self._comes = message["type"] == "http.request" and message.get("more_body", False)
        return message
