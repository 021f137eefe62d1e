"""The routes of /policy, as a program without the client sees them."""

from typing import Any

import pytest
from fastapi import FastAPI

from tests.rest.asgi import call

RIGHT = {"text": "half_life: 3d\nqueues: {nlp: {weight: 3}}\n"}


def test_a_whole_document_is_put_in_force(app: FastAPI) -> None:
    before = call(app, "GET", "/policy").json
    assert (before["version"], before["at_ms"]) == (0, None)
    dry_run = call(app, "PUT", "/policy?dryRun=plan", RIGHT)
    assert {"path": "half_life", "before": "7d", "after": "3d"} in dry_run.json["changes"]
    assert call(app, "GET", "/policy").json == before, "a dry run changes nothing"
    applied = call(app, "PUT", "/policy", RIGHT | {"note": "why", "if_version": 0}).json
    assert (applied["version"], applied["note"], applied["document"]["half_life"]) == (1, "why", "3d")
    assert call(app, "GET", "/queues/nlp").json["weight"] == 3
    assert call(app, "PUT", "/policy", {"document": {"half_life": "2d"}}).json["version"] == 2
    assert call(app, "GET", "/queues/nlp").status == 404, "a queue that the document leaves out is removed"
    assert [row["version"] for row in call(app, "GET", "/policy/versions").json["items"]] == [2, 1]
    assert call(app, "GET", "/policy/versions/1").json["document"] == applied["document"]
    reverted = call(app, "PUT", "/policy", {"version": 1}).json
    assert (reverted["version"], reverted["document"]) == (3, applied["document"])
    same = call(app, "POST", "/policy/diff", {"version": 1, "against": 3}).json
    assert (same["changes"], same["against"]) == ([], 3)


def test_a_guarantee_beyond_the_cluster_is_a_warning(app: FastAPI) -> None:
    body = {"document": {"queues": {"a": {"nominal": {"gpu_types": {"h100": 9}}}}}}
    warning = {
        "queue": "a",
        "resource": "gpus.h100",
        "guaranteed": 9,
        "capacity": 8,
        "sentence": "queue a is guaranteed 9 h100 GPUs, and all nodes have 8",
    }
    for method, path in (("POST", "/policy/diff"), ("PUT", "/policy?dryRun=plan"), ("PUT", "/policy")):
        assert call(app, method, path, body).json["warnings"] == [warning]
    assert call(app, "GET", "/policy").json["warnings"] == [warning]


WRONG: dict[str, tuple[str, str, Any, int, str]] = {
    "no document": ("PUT", "/policy", {}, 409, "bad_policy"),
    "two documents": ("PUT", "/policy", RIGHT | {"version": 0}, 409, "bad_policy"),
    "a field that is none": ("PUT", "/policy", RIGHT | {"forse": True}, 422, "invalid_request"),
    "force that is text": ("PUT", "/policy", RIGHT | {"force": "yes"}, 422, "invalid_request"),
    "a negative version": ("PUT", "/policy", {"version": -1}, 422, "invalid_request"),
    "a version that is not there": ("PUT", "/policy", {"version": 7}, 404, "no_such_version"),
    "another version in force": ("PUT", "/policy", RIGHT | {"if_version": 7}, 409, "policy_changed"),
    "a weight of 0": ("PUT", "/policy", {"document": {"queues": {"a": {"weight": 0}}}}, 409, "bad_policy"),
    "a document that is no mapping": ("PUT", "/policy", {"text": "[]"}, 409, "bad_policy"),
    "half of a pair": ("PUT", "/policy", {"document": {"order": "\ud800"}}, 409, "bad_policy"),
    "an order that is not there": ("POST", "/policy/diff", {"text": "order: drf"}, 409, "bad_policy"),
    "a check of a queue without its parent": (
        "POST",
        "/policy/check",
        {"text": "queues: {a: {parent: b}}"},
        409,
        "bad_policy",
    ),
    "against nothing": ("POST", "/policy/diff", RIGHT | {"against": 9}, 404, "no_such_version"),
    "no such version": ("GET", "/policy/versions/1", None, 404, "no_such_version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_requests_change_nothing(app: FastAPI, name: str) -> None:
    method, path, body, status, code = WRONG[name]
    before = call(app, "GET", "/policy").json
    answer = call(app, method, path, body)
    assert (answer.status, answer.json["code"]) == (status, code), answer.json
    assert call(app, "GET", "/policy").json == before
