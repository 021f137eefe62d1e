"""Callers through the API server's proxy: a request is judged by the parameters that its route will see."""

from typing import Any

import pytest
from fastapi import FastAPI

from ganger.rest.proxy_identity import CallerIdentity, ProxyIdentity
from tests.rest.asgi import call

HEADER, DRY_RUN = "x-caller", "plan-only"
OWNERS = {"mine": "ada", "other": "bob", "run.ml": "bob", "other.nlp": "bob", "mine.nlp": "ada", "my.pod~1.nlp": "bob"}

LONG_WORD = "x" * 100_000


@pytest.fixture
def gate() -> Any:
    app = FastAPI()

    @app.get("/api/v1/fit")
    def fit() -> str:
        return "held by run.ml, other.nlp[3], other.nlp, mine.nlp and python.train"

    @app.get("/api/v1/policy")
    def policy() -> str:
        return "other.nlp\nother.nlp. my.pod~1.nlp holds other.nlp.example.com"

    @app.get("/api/v1/server")
    def server() -> str:
        return LONG_WORD

    @app.get("/api/v1/events")
    @app.get("/api/v1/report")
    @app.get("/api/v1/code/{digest}")
    @app.put("/api/v1/code/{digest}")
    @app.post("/api/v1/jobs")
    @app.post("/api/v1/defrag")
    def answer() -> str:
        return "answered"

    async def identify(token: str) -> CallerIdentity:
        return CallerIdentity(token, sees_all=token == "chief", submits=("ml",), lists=("ml",))

    return ProxyIdentity(app, app, identify, OWNERS.get, header=HEADER, dry_run_parameter=DRY_RUN)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/events?gang=mine", 200),
        ("GET", "/events?gang=other", 403),
        ("GET", "/events?gang=mine&gang=other", 403),
        ("GET", "/events", 403),
        ("GET", "/report?user=ada", 200),
        ("GET", "/report?user=ada&user=", 403),
        ("POST", "/defrag", 403),
        *[
            (method, f"/code/{'0' * 64}{query}", status)
            for method in ("GET", "PUT")
            for query, status in (("?namespace=ml", 200), ("?namespace=other", 403), ("", 403))
        ],
        ("PUT", f"/code/{'0' * 64}?namespace=ml&namespace=other", 403),
        ("POST", f"/jobs?{DRY_RUN}=plan", 200),
        ("POST", f"/jobs?{DRY_RUN}=plan&{DRY_RUN}=", 403),
    ],
)
def test_a_parameter_counts_only_if_it_is_given_once(gate: Any, method: str, target: str, status: int) -> None:
    assert call(gate, method, target, headers={HEADER: "Bearer ada"}).status == status


@pytest.mark.parametrize(
    ("caller", "holders"),
    [
        ("chief", "run.ml, other.nlp[3], other.nlp, mine.nlp"),
        ("ada", "run.ml, a job of another namespace, a job of another namespace, mine.nlp"),
    ],
)
def test_jobs_are_named_to_those_who_may_list_them(gate: Any, caller: str, holders: str) -> None:
    answer = call(gate, "GET", "/fit", headers={HEADER: f"Bearer {caller}"})
    assert answer.json == f"held by {holders} and python.train"


def test_a_whole_word_is_a_name_and_an_escape_before_it_is_not_of_it(gate: Any) -> None:
    elsewhere = "a job of another namespace"
    answer = call(gate, "GET", "/policy", headers={HEADER: "Bearer ada"})
    assert answer.json == f"{elsewhere}\n{elsewhere}. {elsewhere} holds other.nlp.example.com"


def test_a_long_word_is_answered_as_it_is(gate: Any) -> None:
    """Check it with a word that takes the whole limit of CPU time if it is read again from each letter."""
    assert call(gate, "GET", "/server", headers={HEADER: "Bearer ada"}).json == LONG_WORD
