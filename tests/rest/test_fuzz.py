"""Every route under requests drawn from the OpenAPI document, valid and invalid ones, on a server without nodes.

schemathesis checks every answer: no server error, no status, header or body that the document does not have; requests
that the document allows are accepted or refused with 409, others are refused. Streams have tests of their own.
"""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from ganger.rest.app import make_app
from tests.rest.test_openapi import ROUTES
from tests.service.world import Embedded, launcher

LONG = bool(os.environ.get("GANGER_TEST_LONG"))
EXAMPLES = 1_000 if LONG else 4
ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "412"]
"""Statuses of answers to requests that match the document. 412: an If-Match that names an old version."""
TRUE = {"true", "1", "on", "yes", "t", "y"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Yield a server without nodes, with a pending and an ended job, a secret and a token."""
    directory = tmp_path_factory.mktemp("fuzzed")
    world = Embedded(directory, launcher(directory), ())
    world.submit(name="waits")
    ended = world.submit(name="ended")
    world.service.stop(ended)
    world.ended(ended)
    world.service.secrets.set("TOKEN", "a value")
    world.service.create_token("ci", None)
    yield world
    world.close()


@pytest.fixture(scope="module")
def document(world: Embedded) -> schemathesis.BaseSchema:
    config = schemathesis.Config.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}})
    app = make_app(world.service, lambda _: None)
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, config=config)


NAMES = {"queues": "default", "secrets": "TOKEN", "tokens": "ci"}


def aim(case: Case, world: Embedded) -> None:
    """Change a drawn request so that it gets further: most name existing jobs, from an existing directory.

    A submission becomes a dry run, pending jobs are not followed, and no code is remote or large.
    """
    parameters, query, body = case.path_parameters or {}, case.query or {}, case.body
    chance = zlib.crc32(f"{parameters}{query}{body}".encode(errors="replace")) % 4
    if isinstance(parameters.get("id"), str) and chance < 3:
        parameters["id"] = ("waits", "ended", "ended")[chance]
    if isinstance(parameters.get("name"), str) and chance == 0:
        parameters["name"] = NAMES.get(case.path.split("/")[3], parameters["name"])
    if str(query.get("follow")).lower() in TRUE:
        query["follow"] = False
    if (case.method, case.path) == ("POST", "/api/v1/jobs"):
        query.setdefault("dryRun", "plan")
    if isinstance(body, dict):
        _aim_submission(body, world, deep=chance < 3)
    case.query = query


def _aim_submission(body: dict[str, Any], world: Embedded, *, deep: bool) -> None:
    """Change a submission, if it is one; a `deep` one is not refused for what comes with the spec."""
    if deep and isinstance(body.get("directory"), str):
        body["directory"] = str(world.work)
        for name in ("environment", "secrets"):
            if isinstance(body.get(name), dict) and all(isinstance(value, str) for value in body[name].values()):
                body[name] = {"PATH": "/usr/bin:/bin"}
        if isinstance(body.get("spec"), dict) and isinstance(body.get("spec_text"), str):
            del body["spec_text"]
    for spec in (body.get("spec"), body.get("overrides")):
        _use_local_code(spec, world)


def _use_local_code(spec: Any, world: Embedded) -> None:
    """Let the code of a spec be a directory, or an invalid repository, of the tests."""
    if isinstance(spec, dict) and "code" in spec:
        if isinstance(spec["code"], str):
            spec["code"] = "."
        elif isinstance(spec["code"], dict) and "git" in spec["code"]:
            spec["code"]["git"] = world.work.as_uri()


@pytest.mark.parametrize("route", sorted(ROUTES - {"GET /stream"}))
def test_every_route_matches_the_document(route: str, document: schemathesis.BaseSchema, world: Embedded) -> None:
    method, _, path = route.partition(" ")
    operation = document[f"/api/v1{path}"][method]
    drawn = [operation.as_strategy(generation_mode=GenerationMode.POSITIVE)]
    if operation.body or operation.query or operation.headers:  # any text can stand in a path
        drawn.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))

    @settings(max_examples=EXAMPLES, derandomize=not LONG, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(drawn))
    def holds(case: Case) -> None:
        aim(case, world)
        response = case.call()
        case.validate_response(response)
        if response.status_code >= 400:
            problem = response.json()
            assert (problem["status"], bool(problem["detail"])) == (response.status_code, True)

    holds()
