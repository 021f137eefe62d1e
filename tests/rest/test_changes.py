"""Changes and versions: PATCH, retry, clone, idempotency keys, ETags, and the filters of listings and streams."""

from typing import Any

import pytest
from fastapi import FastAPI

from tests.rest.asgi import Answer, call
from tests.rest.test_requests import assert_problem
from tests.service.world import Embedded, python
from tests.waiting import wait_until


@pytest.fixture
def full(world: Embedded) -> Embedded:
    """Return a server on which nothing starts."""
    for node in world.service.nodes():
        world.service.cordon(node.name, cordoned=True)
    return world


def patch(app: FastAPI, name: str, **change: Any) -> Answer:
    return call(app, "PATCH", f"/jobs/{name}", change)


def test_priority_labels_and_notes_change(app: FastAPI, full: Embedded) -> None:
    name = full.submit(labels={"team": "nlp", "stage": "dev"}, notes="first")
    changed = patch(app, name, priority=7, labels={"stage": None, "seed": "3"}, notes="second").json
    assert (changed["row"]["priority"], changed["spec"]["priority"]) == (7, 7)
    assert changed["row"]["labels"] == changed["spec"]["labels"] == {"team": "nlp", "seed": "3"}
    assert changed["spec"]["notes"] == "second"
    kinds = [row["kind"] for row in call(app, "GET", f"/jobs/{name}/events").json["items"]]
    assert kinds == ["submitted", "priority_changed", "described"]
    before = full.service.seq()
    assert patch(app, name, priority=7).json["row"]["priority"] == 7
    assert patch(app, name).status == 200
    assert full.service.seq() == before
    call(app, "POST", f"/jobs/{name}/stop")
    full.until(name, "stopped")
    assert patch(app, name, notes="")
    assert call(app, "GET", f"/jobs/{name}").json["spec"]["notes"] is None
    assert_problem(patch(app, name, priority=1), 409, "already_ended")
    assert_problem(patch(app, name, suspended=True), 409, "already_ended")


def test_a_job_is_stopped_now(app: FastAPI, world: Embedded) -> None:
    name = world.submit(checkpoint={"dir": "c", "grace": "1d"})
    world.until(name, "running")
    assert call(app, "POST", f"/jobs/{name}/stop?now=true").status == 202
    assert world.until(name, "stopped").row.sentence == "stopped by its owner"


def test_a_job_is_suspended_and_resumed(app: FastAPI, world: Embedded) -> None:
    name = world.submit(limits={"time": "2h"})
    assert world.until(name, "running").ends_by_ms == call(app, "GET", f"/jobs/{name}").json["ends_by_ms"]
    assert patch(app, name, suspended=True).status == 200
    world.until(name, "suspended")
    assert call(app, "GET", f"/jobs/{name}").json["ends_by_ms"] is None, "nothing of it runs"
    assert patch(app, name, suspended=True).status == 200
    assert world.service.nodes()[0].gangs == ()
    assert patch(app, name, suspended=False).status == 200
    assert world.until(name, "running").row.generation == 2


@pytest.mark.parametrize(
    "body",
    [
        {"priority": 1001},
        {"rollback": -1},
        {"rollback": "10"},
        {"rollback": 1.5},
        {"rollback": True},
        {"rollback": 1 << 60},
        {"priority": "high"},
        {"labels": {"a b": "c"}},
        {"labels": {"a": "-"}},
        {"nodes": 2},
        [],
        None,
    ],
)
def test_invalid_changes_are_refused(app: FastAPI, full: Embedded, body: Any) -> None:
    name = full.submit()
    assert_problem(call(app, "PATCH", f"/jobs/{name}", body), 422, "invalid_request")


def test_a_rollback_needs_a_checkpoint(app: FastAPI, full: Embedded) -> None:
    name = full.submit(checkpoint={"dir": "ckpt"})
    assert_problem(patch(app, name, rollback=10), 409, "no_checkpoint")
    assert_problem(patch(app, "nobody", rollback=10), 404, "no_such_job")
    assert full.service.job(name).row.state == "pending"


def test_a_job_is_run_again_from_the_same_snapshot(app: FastAPI, world: Embedded) -> None:
    source = world.work / "src"
    source.mkdir()
    script = source / "train.py"
    script.write_text("print('as it was')")
    made = world.submit(["python3", "train.py"], code="src", name="train", labels={"team": "nlp"})
    assert_problem(call(app, "POST", f"/jobs/{world.submit()}/retry"), 409, "still_live")
    world.ended(made)
    script.unlink()
    source.rmdir()
    retried = call(app, "POST", f"/jobs/{made}/retry", headers={"Idempotency-Key": "k1"})
    assert retried.status == 201
    name = retried.json["row"]["id"]
    assert name != made
    assert (retried.json["spec"], retried.json["row"]["labels"]) == (
        call(app, "GET", f"/jobs/{made}").json["spec"],
        {"team": "nlp"},
    )
    repeat = call(app, "POST", f"/jobs/{made}/retry", headers={"Idempotency-Key": "k1"})
    assert (repeat.status, repeat.json["row"]["id"]) == (200, name)
    assert_problem(call(app, "POST", f"/jobs/{name}/clone", {"request_id": "k1"}), 409, "request_id_reused")
    world.ended(name)
    assert [line["text"] for line in call(app, "GET", f"/jobs/{name}/logs").lines] == ["as it was"]
    changes = {"overrides": {"nodes": 2, "env": {"A": "1"}, "name": "wide"}}
    clone = call(app, "POST", f"/jobs/{name}/clone", changes).json
    assert clone["row"]["id"].startswith("wide-")
    assert (clone["spec"]["nodes"], clone["spec"]["env"], clone["spec"]["code"]) == (2, {"A": "1"}, "src")
    assert world.ended(clone["row"]["id"]).row.state == "succeeded"
    for overrides in ({"nodse": 2}, {"params": {"A": "${{ x }}"}, "run": "${{ params.A }}"}, {"nodes": "many"}):
        assert_problem(call(app, "POST", f"/jobs/{name}/clone", {"overrides": overrides}), 409, "bad_spec")
    refused = call(app, "POST", f"/jobs/{name}/clone", {"overrides": {"params": {"A": "1"}}})
    assert_problem(refused, 409, "no_such_parameter")
    assert_problem(call(app, "POST", f"/jobs/{name}/retry", {"params": {"A": "1"}}), 409, "no_such_parameter")
    for body in ({"params": {"A": [1]}}, {"parms": {}}, []):
        assert call(app, "POST", f"/jobs/{name}/retry", body).status == 422, body
    for directory in world.home.code.iterdir():
        directory.rename(world.home.path / f"gone-{directory.name}")
    assert_problem(call(app, "POST", f"/jobs/{name}/retry"), 409, "code_removed")
    assert_problem(call(app, "POST", "/jobs/none/retry"), 404, "no_such_job")


def test_a_key_makes_one_job_of_one_submission(app: FastAPI, full: Embedded) -> None:
    submission = {"spec": {"run": "true"}, "directory": str(full.work), "environment": {"PATH": "/bin"}}
    first = call(app, "POST", "/jobs", submission, {"Idempotency-Key": "a key"})
    assert first.status == 422  # a space is in it
    first = call(app, "POST", "/jobs", submission, {"Idempotency-Key": "key"})
    assert first.status == 201
    second = call(app, "POST", "/jobs", submission | {"request_id": "other"}, {"Idempotency-Key": "key"})
    assert (second.status, second.json["row"]["id"]) == (200, first.json["row"]["id"])
    other = submission | {"spec": {"run": "false"}}
    assert_problem(call(app, "POST", "/jobs", other, {"Idempotency-Key": "key"}), 409, "request_id_reused")
    assert_problem(call(app, "POST", "/jobs", other | {"request_id": "key"}), 409, "request_id_reused")
    assert len(call(app, "GET", "/jobs").json["items"]) == 1


def test_a_key_makes_the_jobs_of_a_file_once(app: FastAPI, full: Embedded) -> None:
    text = "name: a\nrun: 'true'\n---\nname: b\nrun: 'true'\n"
    submission = {"spec_text": text, "directory": str(full.work), "environment": {"PATH": "/bin"}}
    first, second = (call(app, "POST", "/batches", submission, {"Idempotency-Key": "key"}) for _ in range(2))
    assert first.status == 201
    made = [[job["row"]["id"] for job in answer.json["items"]] for answer in (first, second)]
    assert (len(made[0]), made[1]) == (2, made[0])
    other = submission | {"spec_text": text.replace("true", "false")}
    assert_problem(call(app, "POST", "/batches", other, {"Idempotency-Key": "key"}), 409, "request_id_reused")


def test_an_unchanged_resource_is_not_sent_again(app: FastAPI, full: Embedded) -> None:
    name = full.submit()
    for target in ("/jobs", f"/jobs/{name}", "/queues", "/queues/default", "/nodes", "/events", f"/jobs/{name}/events"):
        tag = call(app, "GET", target).headers["etag"]
        for known_tags in (tag, f'"0", {tag}', f"W/{tag}", "*"):
            unchanged = call(app, "GET", target, headers={"If-None-Match": known_tags})
            assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (304, b"", tag), (
                target,
                known_tags,
            )
        full.service.describe(name, {"n": target.count("/") * "x"}, target)
        changed = call(app, "GET", target, headers={"If-None-Match": tag})
        assert (changed.status, changed.headers["etag"] != tag) == (200, True)
    assert_problem(call(app, "GET", "/jobs", headers={"If-None-Match": "nonsense"}), 422, "invalid_request")


def test_progress_is_a_new_version(app: FastAPI, world: Embedded) -> None:
    script = "import time, ganger.train as g\nfor s in range(10**6):\n g.report(step=s, loss=1.0)\n time.sleep(0.2)"
    name = world.submit(python(script))
    wait_until(lambda: world.service.job(name).progress, "it has reported")
    first = call(app, "GET", f"/jobs/{name}")

    def moved() -> bool:
        answer = call(app, "GET", f"/jobs/{name}", headers={"If-None-Match": first.headers["etag"]})
        return answer.status == 200

    wait_until(moved, "the next report is a new version")


def test_a_change_with_an_old_etag_is_refused(app: FastAPI, full: Embedded) -> None:
    name = full.submit()
    call(app, "PUT", "/queues/nlp", {"nominal": {"gpus": 2}})
    for method, target, body, subject in (
        ("PATCH", f"/jobs/{name}", {"notes": "a"}, f"/jobs/{name}"),
        ("PATCH", "/nodes/n1", {"cordoned": False}, "/nodes"),
        ("PUT", "/queues/nlp", {"nominal": {"gpus": 3}}, "/queues/nlp"),
        ("DELETE", "/queues/nlp", None, "/queues/nlp"),
    ):
        headers = {"If-Match": call(app, "GET", subject).headers["etag"]}
        call(app, "PUT", "/queues/beside", {"nominal": {"gpus": 1}})
        assert call(app, method, target, body, headers).status in (200, 204), target
        if method != "DELETE":
            assert_problem(call(app, method, target, body, headers), 412, "precondition_failed")
            assert call(app, method, target, body, {"If-Match": "*"}).status == 200
        full.service.cordon("n1", cordoned=True)


def test_listings_are_filtered(app: FastAPI, full: Embedded) -> None:
    first = full.submit(name="a", labels={"team": "nlp", "stage": "prod"})
    second = full.submit(name="b", labels={"team": "nlp"}, queue="default")
    third = full.submit(name="a")
    call(app, "POST", f"/jobs/{third}/stop")
    full.until(third, "stopped")
    ended_ms = full.service.job(third).row.ended_ms
    user = full.service.job(first).row.user
    for query, expected in (
        ("", [third, second, first]),
        ("state=pending", [second, first]),
        ("state=stopped,failed", [third]),
        ("state=stopped,pending", [third, second, first]),
        ("name=a", [third, first]),
        ("name=a&state=pending", [first]),
        ("labels=team=nlp", [second, first]),
        ("labels=team=nlp,stage!=prod", [second]),
        ("labels=stage!=prod", [third, second]),
        (f"user={user}", [third, second, first]),
        ("user=nobody", []),
        ("queue=default", [third, second, first]),
        (f"since={(ended_ms or 0) + 1}", [second, first]),
        ("until=1", []),
    ):
        rows = call(app, "GET", f"/jobs?{query}").json["items"]
        assert [row["id"] for row in rows] == expected, query
    for query in ("state=asleep", "state=", "labels=team", "since=-1", "until=soon"):
        assert_problem(call(app, "GET", f"/jobs?{query}"), 422, "invalid_request")


def test_events_are_filtered_by_kind(app: FastAPI, full: Embedded) -> None:
    first, second = full.submit(), full.submit()
    full.service.set_priority(first, 3)
    kinds = "kinds=submitted,priority_changed"
    assert [row["job"] for row in call(app, "GET", f"/events?{kinds}").json["items"]] == [first, second, first]
    rows = call(app, "GET", f"/events?{kinds}&gang={second}").json["items"]
    assert [(row["job"], row["kind"]) for row in rows] == [(second, "submitted")]
    assert_problem(call(app, "GET", "/events?kinds=nothing"), 422, "invalid_request")
