"""Responses: views straight to JSON bytes, and their description in the OpenAPI document.

Nothing is validated on the way out: the views are ours. Their schemas are made when the document is first requested, so
that a server starts without them.
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
from ganger.model.views import policy_views, queue_views, service_views
from ganger.model.views.health_views import HealthOverview, NodeHealthRow
from ganger.model.views.incident_views import Incident
from ganger.model.views.overview import DefragPlan, Overview, Samples, Sizes
from ganger.model.views.telemetry_views import JobUsage, NodeTelemetry

IS_USER: Final = "ganger.is_user"
"""Key of a scope that is true for a caller who is no administrator."""
HOLDER: Final = "ganger.holder"
"""Key of the TokenRow of a caller over TCP in the scope."""
VIEWS: Final = (
    service_views.JobRow,
    service_views.JobView,
    service_views.DryRun,
    service_views.Explanation,
    service_views.Stacks,
    service_views.MetricsView,
    queue_views.QueueRow,
    service_views.MaintenanceRow,
    service_views.NodeRow,
    HealthOverview,
    Incident,
    NodeHealthRow,
    policy_views.PolicyView,
    policy_views.PolicyVersion,
    policy_views.PolicyTrial,
    policy_views.PolicyDraft,
    service_views.SecretRow,
    service_views.ExecCommand,
    Samples,
    NodeTelemetry,
    JobUsage,
    Sizes,
    DefragPlan,
    Overview,
    service_views.Totals,
    service_views.EventRow,
    service_views.ServerView,
    service_views.CallerView,
    TokenRow,
)
"""Every class that a route may answer with."""

NDJSON: Final = "application/x-ndjson"
PROBLEM: Final = "application/problem+json"
LINES_PER_CHUNK: Final = 500
CHUNK_BYTES: Final = 256 << 10
"""A chunk of this size takes no further line: one line may be as long."""
MAX_NUMBER: Final = (1 << 63) - 1
"""The largest seq, and the largest count of lines: neither SQLite nor Python's containers go beyond."""
COMMON_STATUSES: Final = (401, 403, 422, 500, 503)
"""Statuses of problems that any request may get: 401 and 403 over TCP only."""
CHANGE_STATUSES: Final = (400, 409, 413, 507)
"""Statuses of problems that a change may get."""

T = TypeVar("T")


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    token: TokenRow | None = request.scope.get(HOLDER)
    if token is not None:
        return service.as_caller(token.user, is_administrator=token.allows("admin"))
    return service.as_caller(None, is_administrator=False) if request.scope.get(IS_USER) else service


ServiceParam = Annotated[Service, Depends(_service)]
"""The service, as a parameter of a route."""


async def run_change(request: Request, make: Callable[[], T], *, submits: bool = False) -> T:
    """Return what `make` returns, run on one of the few threads for changes.

    A change waits for the core, and no read waits behind it. submits: it is a submission without code, of which there
    may be thousands.
    """
    state = request.app.state
    return await to_thread.run_sync(make, limiter=state.submitters if submits else state.writers)


def encode_json(value: Any) -> bytes:
    """Return a view as JSON. A number that JSON does not have, such as a loss of NaN, becomes null."""
    return to_json(value, inf_nan_mode="null")


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response with a view, or plain dicts and lists of them."""
    return Response(encode_json(value), status, media_type="application/json")


def event_page(service: Service, after: int, gang: str | None, limit: int, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Return a page of the event log; its cursor is a seq."""
    items = service.events(after=after, gang=gang, limit=limit, kinds=kinds)
    return {"items": items, "next": items[-1].seq if len(items) == limit else None}


def ndjson(values: Iterable[Any]) -> Iterator[bytes]:
    """Yield one JSON value a line, many lines a chunk. A None among the values ends a chunk, even an empty one."""
    chunk: list[bytes] = []
    size = 0
    for value in values:
        if value is not None:
            chunk.append(encode_json(value) + b"\n")
            size += len(chunk[-1])
        if value is None or len(chunk) == LINES_PER_CHUNK or size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    yield b"".join(chunk)


# -- the document ------------------------------------------------------------------------------------------------------

Responses = dict[int | str, dict[str, Any]]
"""FastAPI's `responses`: by status, a part of the OpenAPI document."""


def read_responses(view_class: type, *problems: int, is_page: bool = False) -> Responses:
    """Return the `responses` of a route that reads one view, or a page of them, with a version."""
    responses = view_responses(view_class, *problems, is_page=is_page)
    responses[200]["headers"] = {"ETag": {"schema": {"type": "string"}, "description": "version of the answer"}}
    return responses | {304: {"description": "The caller has this version already, by If-None-Match"}}


def view_responses(
    view_class: type, *problems: int, status: int = 200, is_page: bool = False, what: str = ""
) -> Responses:
    """Return the `responses` of a route that answers with one view, or with a page {"items", "next"} of them.

    problems: statuses of its problems, besides those of any request.
    """
    view_schema = {"$ref": f"#/components/schemas/{view_class.__name__}"}
    page = {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {"type": "array", "items": view_schema},
            "next": {"type": ["string", "integer", "null"], "description": "cursor of the next page"},
        },
    }
    return response_docs(
        {"application/json": {"schema": page if is_page else view_schema}}, status, what or "The answer", *problems
    )


def text_responses(media_type: str, what: str, *problems: int) -> Responses:
    """Return the `responses` of a route that answers with lines of text."""
    return response_docs({media_type: {"schema": {"type": "string"}}}, 200, what, *problems)


def response_docs(content: dict[str, Any], status: int, what: str, *problems: int) -> Responses:
    """Return `responses` with one success, and the possible problems."""
    problem: dict[str, Any] = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    success: dict[str, Any] = {"description": what} | ({"content": content} if content else {})
    problem_responses: Responses = {
        number: {"description": HTTPStatus(number).phrase, "content": problem}
        for number in sorted({*problems, *COMMON_STATUSES})
    }
    return {status: success} | problem_responses


def describe(app: FastAPI, extra: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return the function that makes the app's OpenAPI document.

    The document has the schemas of views and specs, and `extra` ones.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            openapi = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            views = [(kind, "serialization", TypeAdapter(kind)) for kind in VIEWS]
            _, definitions = TypeAdapter.json_schemas(views, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
            components = openapi.setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions["$defs"] | extra | _spec_schemas())
            submission = components["schemas"]["Submission"]["properties"]
            submission["spec"] = {"anyOf": [{"$ref": "#/components/schemas/Spec"}, {"type": "null"}]}
            bearer = {"type": "http", "scheme": "bearer", "description": "over TCP: ganger token create NAME"}
            components["securitySchemes"] = {"token": bearer}
            openapi["security"] = [{}, {"token": []}]
            _remove_null(openapi)
            app.openapi_schema = openapi
        return app.openapi_schema

    return document


def _remove_null(openapi: dict[str, Any]) -> None:
    """Remove null from the types of parameters: an absent one is left out, and `null` would be four letters."""
    operations = [operation for methods in openapi["paths"].values() for operation in methods.values()]
    for parameter in (parameter for operation in operations for parameter in operation.get("parameters", ())):
        schema = parameter["schema"]
        kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
        schema.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})


def _spec_schemas() -> dict[str, Any]:
    """Return the published schema of a job, its parts under names of their own."""
    schema = spec_schema()
    parts = {f"Spec{name}": part for name, part in schema.pop("$defs", {}).items()}
    schema.pop("$schema", None)
    schemas: dict[str, Any] = _rename_refs({"Spec": schema} | parts)
    return schemas


def _rename_refs(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/Spec{item.rpartition('/')[2]}" if key == "$ref" else _rename_refs(item)
            for key, item in value.items()
        }
    return [_rename_refs(item) for item in value] if isinstance(value, list) else value
