"""Errors as problem+json (RFC 9457): {type, title, status, code, detail, next}. `code` is stable, `next` what to type.

An unexpected error is in the server's log under a number, and the client gets the number.
"""

import asyncio
import logging
import secrets
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganger.engine.service import CODES, RequestError
from ganger.errors import BrokenStreamError
from ganger.rest.body_limit import Body, BodyTooLargeError, content_length, expects_continue, max_body_bytes
from ganger.rest.broken_response import break_off
from ganger.rest.etags import NotModified, not_modified
from ganger.rest.responses import PROBLEM

SCHEMA: Final[dict[str, Any]] = {
    "Problem": {
        "type": "object",
        "description": "What was refused, why, and what to do about it (RFC 9457)",
        "required": ["type", "title", "status", "code", "detail", "next"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"enum": sorted(CODES), "description": "Stable code of the error, for programs"},
            "detail": {"type": "string", "description": "What happened and why"},
            "next": {"type": "string", "description": "Command or change that helps; may be empty"},
        },
    }
}

_DOCUMENT: Final = "GET /api/v1/openapi.json"
_CODES: Final = {404: "no_such_route", 405: "no_such_method"}
_log = logging.getLogger("ganger.rest")


def install(app: FastAPI) -> None:
    """Report every error of `app` as a problem."""
    # Starlette types every handler as one of Exception.
    app.add_exception_handler(RequestError, _request_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    app.add_exception_handler(NotModified, not_modified)
    app.add_middleware(_ErrorMiddleware)


def problem(status: int, code: str, detail: str, next: str = "") -> Response:
    """Return a problem as a response."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, "next": next}
    return Response(to_json(body), status, media_type=PROBLEM)


async def _request_error(_: Request, error: RequestError) -> Response:
    return problem(error.status, error.code, error.detail, error.next)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    detail = "; ".join(_sentence(fault) for fault in error.errors())
    remedy = f"see what {request.method} {request.url.path} takes: {_DOCUMENT}"
    return problem(422, "invalid_request", detail, remedy)


def _sentence(fault: Any) -> str:
    """Return a fault of a request as text: `body.directory: field required`."""
    match fault["type"]:
        case "json_invalid":
            return f"the body is not JSON: {fault['ctx']['error']} at byte {fault['loc'][-1]}"
        case "model_attributes_type" | "dataclass_type" if fault["loc"] == ("body",):
            return "the body is not a JSON object, or Content-Type does not say application/json"
        case "string_pattern_mismatch" if fault["loc"][-1] == "labels":
            return f"{fault['input']!r} is no label selector: write KEY=VALUE or KEY!=VALUE, several with commas"
    location = ".".join(str(part) for part in fault["loc"])
    return f"{location}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"


async def _http(request: Request, error: HTTPException) -> Response:
    detail = f"{request.method} {request.url.path}: {str(error.detail).lower()}"
    remedy = f"{_DOCUMENT} lists what there is" if error.status_code in {404, 405} else ""
    answer = problem(error.status_code, _CODES.get(error.status_code, "bad_request"), detail, remedy)
    answer.headers.update(error.headers or {})
    return answer


class _ErrorMiddleware:
    """Refuses oversized bodies, and turns unexpected errors into incidents."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        max_bytes = max_body_bytes(scope)
        has_started, body = False, Body(receive, max_bytes)

        async def send_watched(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            if content_length(scope) > max_bytes:
                raise BodyTooLargeError
            await self.app(scope, body.receive, send_watched)
        except BodyTooLargeError:
            if not expects_continue(scope):
                await body.drain()
            detail = f"the body is larger than {max_bytes} bytes"
            await problem(413, "body_too_large", detail, "send less: code travels by `code:`")(scope, receive, send)
        except asyncio.CancelledError:
            if not scope["app"].state.feed.closed:
                raise  # the token of the request has ended
            if not has_started:
                detail = "the server shuts down, and this request was not done"
                await problem(503, "server_stops", detail, "repeat it when the server runs again")(scope, receive, send)
        except BrokenStreamError as error:
            level = logging.DEBUG if scope["app"].state.feed.closed else logging.ERROR  # each restart ends followers
            _log.log(level, "%s %s breaks off: %s", scope["method"], scope["path"], error)
            await break_off(scope, receive)
        except Exception:  # noqa: BLE001 - the client gets a number, and the log the details
            incident = secrets.token_hex(4)
            _log.exception("incident %s: %s %s", incident, scope["method"], scope["path"])
            if not has_started:
                detail = f"internal error of the server; its log has it as incident {incident}"
                await problem(500, "internal_error", detail, "ganger doctor")(scope, receive, send)
