"""Callers of the controller's metrics with a token of the API server, which is played here."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ganger.controller.token_review import MAX_CHARACTERS, MetricsGate, TokenReviewer
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from tests.kubernetes.admin import credentials_of
from tests.rest.asgi import Answer, request
from tools.fakeapi import FakeApi
from tools.fakeapi.errors import StatusError
from tools.fakeapi.server.http import Request

COLLECTOR = "system:serviceaccount:monitoring:prometheus"
TOKENS = {"good.of.prometheus": COLLECTOR, "good.of.another": "system:serviceaccount:default:default"}


def play_api_server(api: FakeApi, *, is_away: bool) -> list[Any]:
    """Have the API server answer reviews; return the reviews of rights that it gets."""
    reviews: list[Any] = []

    async def review_token(request: Request, _: str) -> tuple[int, bytes]:
        if is_away:
            raise StatusError(403, "tokenreviews is forbidden")
        spec = json.loads(request.body)["spec"]
        assert spec["audiences"] == [], "an API server's own audience is its default"
        user = TOKENS.get(spec["token"])
        status = {"authenticated": True, "user": {"username": user, "groups": ["system:serviceaccounts"]}}
        return 201, json.dumps({"status": status if user else {"authenticated": False}}).encode()

    async def review_access(request: Request, _: str) -> tuple[int, bytes]:
        reviews.append(json.loads(request.body)["spec"])
        return 201, json.dumps({"status": {"allowed": reviews[-1]["user"] == COLLECTOR}}).encode()

    api.server.handlers |= {
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"): review_token,
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"): review_access,
    }
    return reviews


def app_answering(text: str) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response: Response = PlainTextResponse(text)
        await response(scope, receive, send)

    return app


def send_request(
    folder: Path, method: str, target: str, token: str, *, is_away: bool = False
) -> tuple[Answer, list[Any]]:
    async def play() -> tuple[Answer, list[Any]]:
        async with FakeApi() as api:
            reviews = play_api_server(api, is_away=is_away)
            access = credentials_of(api)
            async with ApiClient(access, PROGRAM) as client:
                gate = MetricsGate(
                    app_answering("figures"), app_answering("gate"), TokenReviewer(client, "ganger-system")
                )
                headers = {"authorization": f"Bearer {token}"} if token else {}
                return await request(gate, method, target, None, headers), reviews  # type: ignore[arg-type]

    return asyncio.run(play())


def test_a_service_account_with_the_right_to_get_metrics_reads_them(tmp_path: Path) -> None:
    answer, (review,) = send_request(tmp_path, "GET", "/metrics", "good.of.prometheus")
    assert (answer.status, answer.body) == (200, b"figures")
    assert review["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
    assert review["groups"] == ["system:serviceaccounts"]


@pytest.mark.parametrize(
    ("token", "is_away", "status", "code"),
    [
        ("good.of.another", False, 403, "no_metrics"),
        ("bad.of.somebody", False, 401, "bad_token"),
        (f"a.b.{'c' * MAX_CHARACTERS}", False, 401, "bad_token"),
        ("good.of.prometheus", True, 503, "no_review"),
    ],
)
def test_others_are_refused_with_the_remedy(token: str, is_away: bool, status: int, code: str, tmp_path: Path) -> None:
    answer, _ = send_request(tmp_path, "GET", "/metrics", token, is_away=is_away)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert token not in answer.body.decode()


@pytest.mark.parametrize(
    ("method", "target", "token"),
    [
        ("GET", "/metrics", "ganger_token-without-dots"),
        ("GET", "/metrics", ""),
        ("GET", "/jobs", "good.of.prometheus"),
        ("POST", "/metrics", "good.of.prometheus"),
    ],
)
def test_nothing_else_is_open_to_it(method: str, target: str, token: str, tmp_path: Path) -> None:
    answer, reviews = send_request(tmp_path, method, target, token)
    assert (answer.body, reviews) == (b"gate", [])
