"""The OpenAPI document: valid, complete, and matched by the answers of the routes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from fastapi.routing import APIRoute, iter_route_contexts

from tests.rest.asgi import call
from tests.service.world import Embedded

ROUTES = {
    "GET /maintenance",
    "POST /maintenance",
    "DELETE /maintenance/{id}",
    "GET /server",
    "GET /metrics",
    "POST /server/stop",
    "POST /server/restart",
    "GET /jobs",
    "POST /jobs",
    "GET /jobs/{id}",
    "PATCH /jobs/{id}",
    "DELETE /jobs/{id}",
    "POST /jobs/{id}/retry",
    "POST /jobs/{id}/clone",
    "POST /jobs/{id}/stop",
    "GET /jobs/{id}/elements",
    "GET /jobs/{id}/explain",
    "GET /jobs/{id}/events",
    "GET /jobs/{id}/reports",
    "GET /jobs/{id}/metrics",
    "GET /jobs/{id}/stacks",
    "GET /jobs/{id}/files",
    "GET /jobs/{id}/logs",
    "GET /queues",
    "GET /queues/{name}",
    "PUT /queues/{name}",
    "DELETE /queues/{name}",
    "GET /policy",
    "PUT /policy",
    "POST /policy/check",
    "POST /policy/diff",
    "GET /policy/versions",
    "GET /policy/versions/{number}",
    "GET /nodes",
    "PATCH /nodes/{name}",
    "POST /nodes/{name}/drain",
    "POST /nodes/{name}/fail",
    "POST /nodes/{name}/return",
    "POST /nodes/{name}/preempt",
    "POST /nodes/{name}/repair",
    "POST /nodes/{name}/retire",
    "GET /node-health",
    "GET /incidents",
    "POST /node-health/reset-breaker",
    "GET /samples",
    "GET /telemetry",
    "GET /nodes/{name}/telemetry",
    "GET /jobs/{id}/usage",
    "GET /jobs/{id}/exec",
    "POST /jobs/{id}/exec",
    "POST /jobs/{id}/exec/{session}",
    "POST /batches",
    "GET /code/{digest}",
    "PUT /code/{digest}",
    "GET /tokens",
    "POST /tokens",
    "DELETE /tokens/{name}",
    "GET /whoami",
    "GET /secrets",
    "PUT /secrets/{name}",
    "DELETE /secrets/{name}",
    "GET /report",
    "GET /fit",
    "GET /defrag",
    "POST /defrag",
    "GET /overview",
    "GET /events",
    "GET /stream",
}


@pytest.fixture
def document(app: FastAPI) -> Any:
    return call(app, "GET", "/openapi.json").json


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path.removeprefix("/api/v1"), operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_it_is_valid_and_every_reference_resolves(document: Any) -> None:
    assert document["openapi"].startswith("3.1.")
    OpenAPI.model_validate(document)
    for reference in references(document):
        value = document
        for part in reference.removeprefix("#/").split("/"):
            value = value[part]
        assert value, reference


def test_every_route_is_documented(document: Any) -> None:
    documented = {f"{method} {path}" for method, path, _ in operations(document)}
    assert documented == ROUTES
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for method, path, operation in operations(document):
        route = f"{method} {path}"
        assert operation["summary"], route
        assert operation["description"], route
        assert operation["tags"], route
        refusals = {status: response for status, response in operation["responses"].items() if status >= "400"}
        assert refusals.keys() >= {"401", "403", "422", "500", "503"}, route
        assert all(response["content"].keys() == {"application/problem+json"} for response in refusals.values()), route
        path_parameters = {
            parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"
        }
        assert path_parameters == set(re.findall(r"{(\w+)}", path)), route


def test_no_route_is_missing_from_the_document(app: FastAPI) -> None:
    served = {
        f"{method} {route.path.removeprefix('/api/v1')}"
        for context in iter_route_contexts(app.routes)
        if isinstance(route := context.route, APIRoute) or hasattr(context, "path")
        for method in getattr(route, "methods", None) or ()
        if route.path.startswith("/api/v1") and method != "HEAD"
    }
    assert served <= ROUTES | {"GET /openapi.json"}


def mismatches(value: Any, schema: Any, document: Any, location: str) -> Iterator[str]:
    """Yield sentences about where `value` does not match `schema`: the part of JSON Schema that our views use."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        tried = [list(mismatches(value, option, document, location)) for option in schema["anyOf"]]
        yield from () if [] in tried else tried[0]
        return
    kinds = schema.get("type")
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    allowed = [kinds] if isinstance(kinds, str) else kinds or []
    if allowed and not any(value is None if kind == "null" else isinstance(value, types[kind]) for kind in allowed):
        yield f"{location}: {value!r} is not {allowed}"
    if isinstance(value, dict) and "properties" in schema:
        yield from (f"{location} lacks {name}" for name in schema.get("required", ()) if name not in value)
        yield from (f"{location} has {name}" for name in value if name not in schema["properties"])
        for name, part in schema["properties"].items():
            if name in value:
                yield from mismatches(value[name], part, document, f"{location}.{name}")
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from mismatches(item, schema["items"], document, f"{location}[]")


def test_answers_match_the_document(app: FastAPI, world: Embedded, document: Any) -> None:
    running = world.submit(
        nodes=2, resources={"gpu": "h100:4"}, checkpoint={"every": "1m", "grace": "100ms"}, limits={"time": "1h"}
    )
    pending = world.submit(["true"], resources={"gpu": "h100:1"})
    ended = world.submit(["true"])
    world.ended(ended)
    world.until(running, "running")
    submission = {"spec": {"run": "true"}, "directory": str(world.work)}
    for method, path, target, body in (
        ("GET", "/server", "/server", None),
        ("GET", "/jobs", "/jobs", None),
        ("POST", "/jobs", "/jobs", submission),
        *(("GET", "/jobs/{id}", f"/jobs/{name}", None) for name in (running, pending, ended)),
        *(("GET", "/jobs/{id}/explain", f"/jobs/{name}/explain", None) for name in (running, pending, ended)),
        ("GET", "/jobs/{id}/events", f"/jobs/{ended}/events", None),
        ("POST", "/jobs/{id}/stop", f"/jobs/{pending}/stop", None),
        ("GET", "/samples", "/samples", None),
        ("GET", "/jobs/{id}/exec", f"/jobs/{running}/exec", None),
        ("GET", "/queues", "/queues", None),
        ("PUT", "/queues/{name}", "/queues/nlp", {"nominal": {"gpus": 3}}),
        ("GET", "/queues/{name}", "/queues/nlp", None),
        ("GET", "/nodes", "/nodes", None),
        ("PATCH", "/nodes/{name}", "/nodes/n3", {"cordoned": True}),
        ("POST", "/nodes/{name}/drain", "/nodes/n3/drain", {"reason": "a fan"}),
        ("POST", "/nodes/{name}/fail", "/nodes/n3/fail", {}),
        ("POST", "/nodes/{name}/return", "/nodes/n3/return", {}),
        ("POST", "/nodes/{name}/preempt", "/nodes/n3/preempt", {"notice_ms": 5}),
        ("POST", "/maintenance", "/maintenance", {"nodes": ["n2"], "from_ms": 1 << 42, "until_ms": 1 << 43}),
        ("GET", "/maintenance", "/maintenance", None),
        ("GET", "/events", "/events?limit=5", None),
    ):
        answer = call(app, method, target, body)
        described = document["paths"][f"/api/v1{path}"][method.lower()]["responses"][str(answer.status)]
        schema = described["content"]["application/json"]["schema"]
        assert list(mismatches(answer.json, schema, document, target)) == []
    dry_run = call(app, "POST", "/jobs?dryRun=plan", submission).json
    described = document["paths"]["/api/v1/jobs"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert list(mismatches(dry_run, described, document, "dry run")) == []
    assert json.dumps(document)
