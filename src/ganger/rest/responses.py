"""How answers are written: views straight to JSON bytes, and what the OpenAPI document says of them.

Used by every module of routes. Nothing is validated on the way out: the views are ours. Their schemas are made when
somebody asks for the document, so that a server starts without them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from anyio import to_thread
from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic_core import to_json

from ganger.engine.service import Service, TokenRow, spec_schema
from ganger.model.views import service_views
from ganger.model.views.overview import Overview, Sizes

VIEWS: Final = (
    service_views.JobRow,
    service_views.JobView,
    service_views.DryRun,
    service_views.Explanation,
    service_views.Stacks,
    service_views.QueueRow,
    service_views.MaintenanceRow,
    service_views.NodeRow,
    service_views.PolicyView,
    service_views.PolicyVersion,
    service_views.PolicyTrial,
    service_views.SecretRow,
    service_views.Entrance,
    service_views.Samples,
    Sizes,
    Overview,
    service_views.Totals,
    service_views.EventRow,
    service_views.ServerView,
    TokenRow,
)
"""Everything that a route may answer with."""

NDJSON: Final = "application/x-ndjson"
PROBLEM: Final = "application/problem+json"
LINES_A_CHUNK: Final = 500
CHUNK_BYTES: Final = 256 << 10
"""A chunk that has so much takes no further line: one line may be as long."""
MAX_NUMBER: Final = (1 << 63) - 1
"""The largest seq, and the largest count of lines: neither SQLite nor Python's containers go beyond."""
EVERYWHERE: Final = (401, 403, 422, 500, 503)
"""Statuses of problems that any request may get: over TCP the first two."""
CHANGES: Final = (400, 409, 413, 507)
"""Statuses of problems that a request may get that changes something."""

T = TypeVar("T")


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
"""The service, as a parameter of a route."""


async def changed(request: Request, make: Callable[[], T], *, submits: bool = False) -> T:
    """What `make` gives, on one of the few threads that change something: it waits for the core, and whoever only
    reads does not wait behind it. `submits`: it takes in a job that brings no code, of which there may be thousands."""
    state = request.app.state
    return await to_thread.run_sync(make, limiter=state.submitters if submits else state.writers)


def encoded(value: Any) -> bytes:
    """A view as JSON. A number that JSON does not have, a loss of NaN, becomes null."""
    return to_json(value, inf_nan_mode="null")


def answer(value: Any, status: int = 200) -> Response:
    """A response with a view, or plain dicts and lists of them."""
    return Response(encoded(value), status, media_type="application/json")


def event_page(service: Service, after: int, gang: str | None, limit: int, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """A page of the event log; its cursor is a seq."""
    items = service.events(after=after, gang=gang, limit=limit, kinds=kinds)
    return {"items": items, "next": items[-1].seq if len(items) == limit else None}


def ndjson(values: Iterable[Any]) -> Iterator[bytes]:
    """One JSON value a line, many lines a chunk. A None among the values ends a chunk, though it be empty."""
    chunk: list[bytes] = []
    size = 0
    for value in values:
        if value is not None:
            chunk.append(encoded(value) + b"\n")
            size += len(chunk[-1])
        if value is None or len(chunk) == LINES_A_CHUNK or size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    yield b"".join(chunk)


# -- the document ------------------------------------------------------------------------------------------------------

Responses = dict[int | str, dict[str, Any]]
"""What FastAPI calls `responses`: by status, a part of the OpenAPI document."""


def reads(view_class: type, *problems: int, many: bool = False) -> Responses:
    """`responses` of a route that reads one view, or a page {"items", "next"} of them, with a version."""
    found = shown(view_class, *problems, many=many)
    found[200]["headers"] = {"ETag": {"schema": {"type": "string"}, "description": "version of the answer"}}
    return found | {304: {"description": "The caller has it already, by If-None-Match"}}


def shown(view_class: type, *problems: int, status: int = 200, many: bool = False, what: str = "") -> Responses:
    """`responses` of a route that answers with one view, or with a page {"items", "next"} of them, or with problems of
    these statuses and of those that any request may get."""
    one = {"$ref": f"#/components/schemas/{view_class.__name__}"}
    page = {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {"type": "array", "items": one},
            "next": {"type": ["string", "integer", "null"], "description": "cursor of the next page"},
        },
    }
    return documented({"application/json": {"schema": page if many else one}}, status, what or "The answer", *problems)


def streamed(media_type: str, what: str, *problems: int) -> Responses:
    """`responses` of a route that answers with lines of text."""
    return documented({media_type: {"schema": {"type": "string"}}}, 200, what, *problems)


def documented(content: dict[str, Any], status: int, what: str, *problems: int) -> Responses:
    """`responses` with one good answer, and the problems there may be."""
    problem: dict[str, Any] = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    good: dict[str, Any] = {"description": what} | ({"content": content} if content else {})
    refused: Responses = {
        number: {"description": HTTPStatus(number).phrase, "content": problem}
        for number in sorted({*problems, *EVERYWHERE})
    }
    return {status: good} | refused


def describe(app: FastAPI, extra: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The function that makes the app's OpenAPI document, with the schemas of views and specs, and `extra` ones."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            named = [(kind, "serialization", TypeAdapter(kind)) for kind in VIEWS]
            _, shared = TypeAdapter.json_schemas(named, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
            components = made.setdefault("components", {})
            components.setdefault("schemas", {}).update(shared["$defs"] | extra | _spec_schemas())
            submission = components["schemas"]["Submission"]["properties"]
            submission["spec"] = {"anyOf": [{"$ref": "#/components/schemas/Spec"}, {"type": "null"}]}
            bearer = {"type": "http", "scheme": "bearer", "description": "over TCP: ganger token create NAME"}
            components["securitySchemes"] = {"token": bearer}
            made["security"] = [{}, {"token": []}]
            _without_null(made)
            app.openapi_schema = made
        return app.openapi_schema

    return document


def _without_null(made: dict[str, Any]) -> None:
    """Take null from the types of parameters: what is not given is left out, and `null` would be four letters."""
    operations = [operation for methods in made["paths"].values() for operation in methods.values()]
    for parameter in (parameter for operation in operations for parameter in operation.get("parameters", ())):
        schema = parameter["schema"]
        kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
        schema.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})


def _spec_schemas() -> dict[str, Any]:
    """The published schema of a job, its parts under names of their own."""
    schema = spec_schema()
    parts = {f"Spec{name}": part for name, part in schema.pop("$defs", {}).items()}
    schema.pop("$schema", None)
    named: dict[str, Any] = _renamed({"Spec": schema} | parts)
    return named


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/Spec{item.rpartition('/')[2]}" if key == "$ref" else _renamed(item)
            for key, item in value.items()
        }
    return [_renamed(item) for item in value] if isinstance(value, list) else value
