"""How answers are written: views straight to JSON bytes, and what the OpenAPI document says of them.

Used by every module of routes. Nothing is validated on the way out: the views are ours. Their schemas are made when
somebody asks for the document, so that a server starts without them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic_core import to_json

from ganger.engine.service import Service
from ganger.model import view

VIEWS: Final = (
    view.JobRow,
    view.JobView,
    view.DryRun,
    view.Explanation,
    view.QueueRow,
    view.NodeRow,
    view.EventRow,
    view.ServerView,
)
"""Everything that a route may answer with."""

NDJSON: Final = "application/x-ndjson"
LINES_A_CHUNK: Final = 500
MAX_NUMBER: Final = (1 << 63) - 1
"""The largest seq, and the largest count of lines: neither SQLite nor Python's containers go beyond."""


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
"""The service, as a parameter of a route."""


def encoded(value: Any) -> bytes:
    """A view as JSON. A number that JSON does not have, a loss of NaN, becomes null."""
    return to_json(value, inf_nan_mode="null")


def answer(value: Any, status: int = 200) -> Response:
    """A response with a view, or plain dicts and lists of them."""
    return Response(encoded(value), status, media_type="application/json")


def event_page(service: Service, after: int, gang: str | None, limit: int) -> dict[str, Any]:
    """A page of the event log; its cursor is a seq."""
    items = service.events(after=after, gang=gang, limit=limit)
    return {"items": items, "next": items[-1].seq if len(items) == limit else None}


def ndjson(values: Iterable[Any]) -> Iterator[bytes]:
    """One JSON value a line, many lines a chunk."""
    chunk: list[bytes] = []
    for value in values:
        chunk.append(encoded(value) + b"\n")
        if len(chunk) == LINES_A_CHUNK:
            yield b"".join(chunk)
            chunk = []
    yield b"".join(chunk)


Responses = dict[int | str, dict[str, Any]]
"""What FastAPI calls `responses`: by status, a part of the OpenAPI document."""


def shown(view_class: type, *, status: int = 200, many: bool = False, what: str = "") -> Responses:
    """`responses` of a route that answers with one view, or with a page {"items", "next"} of them."""
    one = {"$ref": f"#/components/schemas/{view_class.__name__}"}
    page = {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {"type": "array", "items": one},
            "next": {"type": ["string", "integer", "null"], "description": "cursor of the next page"},
        },
    }
    return documented({"application/json": {"schema": page if many else one}}, status, what or "The answer")


def streamed(media_type: str, what: str) -> Responses:
    """`responses` of a route that answers with lines of text."""
    return documented({media_type: {"schema": {"type": "string"}}}, 200, what)


def documented(content: dict[str, Any], status: int, what: str) -> Responses:
    """`responses` with the one good answer, and problems for everything else."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    good: dict[str, Any] = {"description": what} | ({"content": content} if content else {})
    return {status: good, "default": {"description": "What was refused, why, and what to do", "content": problem}}


def describe(app: FastAPI, extra: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The function that makes the app's OpenAPI document, with the schemas of the views and `extra` ones."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            named = [(kind, "serialization", TypeAdapter(kind)) for kind in VIEWS]
            _, shared = TypeAdapter.json_schemas(named, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
            made.setdefault("components", {}).setdefault("schemas", {}).update(shared["$defs"] | extra)
            app.openapi_schema = made
        return app.openapi_schema

    return document
