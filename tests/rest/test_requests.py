"""Requests and their answers, as a program without the client sees them."""

import asyncio
import errno
import json
import os
import sys
import threading
from typing import Any, Self

import pytest
from fastapi import FastAPI

from ganger.engine.service import Submission
from ganger.launcher import send_files
from ganger.ports import LogQuery
from ganger.rest.app import SUBMITTERS, WRITERS
from ganger.rest.body_limit import MAX_BODY_BYTES
from ganger.rest.responses import CHUNK_BYTES, ndjson
from tests.rest.asgi import Answer, call, request, scope
from tests.service.world import Embedded, python
from tests.waiting import DEADLINE_S

DEEP: dict[str, Any] = {}
for _ in range(900):
    DEEP = {"a": DEEP}
PROBLEMS: dict[str, tuple[str, str, Any, int, str]] = {
    "no such job": ("GET", "/jobs/nothing", None, 404, "no_such_job"),
    "no such element": ("GET", f"/jobs/{{job}}%5B{'9' * 5000}%5D", None, 404, "no_such_job"),
    "no such queue": ("GET", "/queues/nothing", None, 404, "no_such_queue"),
    "jobs of no queue": ("GET", "/jobs?queue=nothing", None, 404, "no_such_queue"),
    "the report of no queue": ("GET", "/report?queue=nothing", None, 404, "no_such_queue"),
    "no such node": ("PATCH", "/nodes/nothing", {"cordoned": True}, 404, "no_such_node"),
    "no such route": ("GET", "/nothing", None, 404, "no_such_route"),
    "no such method": ("DELETE", "/jobs", None, 405, "no_such_method"),
    "no body": ("POST", "/jobs", None, 422, "invalid_request"),
    "not JSON": ("POST", "/jobs", b"{", 422, "invalid_request"),
    "not an object": ("POST", "/jobs", [1], 422, "invalid_request"),
    "a field that is none": ("POST", "/jobs", {"directory": "/", "spce": {}}, 422, "invalid_request"),
    "a field of another type": ("POST", "/jobs", {"directory": 7, "spec": {}}, 422, "invalid_request"),
    "a bad spec": ("POST", "/jobs", {"directory": "/", "spec": {"nodse": 1}}, 409, "bad_spec"),
    "a spec without an end": ("POST", "/jobs", {"directory": "/", "spec": {"env": DEEP}}, 409, "bad_spec"),
    "a request without an end": (
        "POST",
        "/jobs",
        {"directory": "/", "spec": {"env": DEEP}, "request_id": "deep"},
        409,
        "bad_spec",
    ),
    "a limit too large": ("GET", "/jobs?limit=2001", None, 422, "invalid_request"),
    "a limit of nothing": ("GET", "/jobs?limit=0", None, 422, "invalid_request"),
    "a bad cursor": ("GET", "/jobs?cursor=x", None, 400, "bad_cursor"),
    "a cursor beyond all": ("GET", f"/jobs?cursor={1 << 63}", None, 400, "bad_cursor"),
    "a seq beyond all": ("GET", f"/events?after={1 << 63}", None, 422, "invalid_request"),
    "a stream beyond all": ("GET", f"/stream?after={1 << 63}", None, 422, "invalid_request"),
    "events of a job beyond all": ("GET", f"/jobs/{{job}}/events?after={1 << 63}", None, 422, "invalid_request"),
    "more lines than can be": ("GET", f"/jobs/{{job}}/logs?tail={1 << 63}", None, 422, "invalid_request"),
    "a directory that is no path": ("POST", "/jobs", {"directory": "/\0", "spec": {"run": "x"}}, 409, "bad_text"),
    "a request that is no text": (
        "POST",
        "/jobs",
        {"directory": "/", "spec": {"run": "x"}, "request_id": "\udc00"},
        409,
        "bad_text",
    ),
    "a variable without a name": (
        "POST",
        "/jobs",
        {"directory": "/", "spec": {"run": "x"}, "environment": {"A=B": "1"}},
        409,
        "bad_text",
    ),
    "a variable with a zero": (
        "POST",
        "/jobs?dryRun=plan",
        {"directory": "/", "spec": {"run": "x"}, "environment": {"A": "\0"}},
        409,
        "bad_text",
    ),
    "a bad state": ("GET", "/jobs?state=asleep", None, 422, "invalid_request"),
    "bad ranks": ("GET", "/jobs/{job}/logs?rank=1,x", None, 422, "invalid_request"),
    "too many ranks": ("GET", "/jobs/{job}/logs?rank=0-999999", None, 409, "too_many_ranks"),
    "a bad attempt": ("GET", "/jobs/{job}/logs?attempt=0", None, 422, "invalid_request"),
    "no such attempt": ("GET", "/jobs/{job}/logs?attempt=2", None, 404, "no_such_attempt"),
    "no such rank": ("GET", "/jobs/{job}/logs?rank=0-1", None, 404, "no_such_rank"),
    "no such rank to follow": ("GET", "/jobs/{job}/logs?rank=7&follow=true", None, 404, "no_such_rank"),
    "a job that lives": ("DELETE", "/jobs/{job}", None, 409, "still_live"),
    "a queue that is needed": ("DELETE", "/queues/root", None, 409, "queue_in_use"),
    "a queue that cannot be": ("PUT", "/queues/a", {"parent": "nowhere"}, 409, "bad_queue"),
    "a queue with a field that is none": ("PUT", "/queues/a", {"gpus": 1}, 422, "invalid_request"),
    "an interpreter that is none": ("POST", "/server/restart", {"python": "python"}, 409, "no_interpreter"),
}


def assert_problem(answer: Answer, status: int, code: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert set(problem) == {"type", "title", "status", "code", "detail", "next"}
    assert (answer.status, problem["status"], problem["code"]) == (status, status, code), problem
    assert problem["detail"]
    assert problem["title"]
    assert problem["next"]


@pytest.fixture
def holder(world: Embedded) -> str:
    name = world.submit(name="holder")
    world.until(name, "running")
    return name


def test_errors_are_problems(app: FastAPI, world: Embedded, holder: str) -> None:
    before = world.service.seq()
    for method, target, body, status, code in PROBLEMS.values():
        assert_problem(call(app, method, target.format(job=holder), body), status, code)
    assert world.service.seq() == before


def test_an_invalid_request_names_the_document(app: FastAPI) -> None:
    answer = call(app, "PUT", "/queues/a", {"weight": "2"})
    assert answer.json["detail"] == "body.weight: a number is needed, not text or a boolean"
    assert answer.json["next"] == "see what PUT /api/v1/queues/a takes: GET /api/v1/openapi.json"


def test_a_body_that_is_too_large_is_refused(app: FastAPI) -> None:
    body = b'{"directory": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert_problem(call(app, "POST", "/jobs", body), 413, "body_too_large")
    assert_problem(call(app, "POST", "/jobs", body, {"content-length": str(len(body))}), 413, "body_too_large")


def test_an_unexpected_error_is_an_incident_with_a_number(
    app: FastAPI, world: Embedded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret of the house")

    monkeypatch.setattr(world.service, "nodes", broken)
    answer = call(app, "GET", "/nodes")
    assert_problem(answer, 500, "internal_error")
    assert b"secret" not in answer.body
    assert answer.json["detail"].split()[-1] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_job_from_submission_to_its_end(app: FastAPI, world: Embedded) -> None:
    script = "import sys\nfor n in range(1200): print(n)\nprint('loss', file=sys.stderr)"
    submission = {
        "spec": {"name": "train", "run": python(script)},
        "directory": str(world.work),
        "environment": {"PATH": "/bin"},
        "request_id": "one",
    }
    dry_run = call(app, "POST", "/jobs?dryRun=plan", submission)
    assert (dry_run.status, dry_run.json["starts_now"]) == (200, True)
    made = call(app, "POST", "/jobs", submission)
    name = made.json["row"]["id"]
    assert made.status == 201
    assert call(app, "POST", "/jobs", submission).json["row"]["id"] == name
    followed = call(app, "GET", f"/jobs/{name}/logs?follow=true")
    assert followed.headers["content-type"] == "application/x-ndjson"
    assert [line["text"] for line in followed.lines if line["stream"] == "o"] == [str(n) for n in range(1200)]
    assert {(line["rank"], line["generation"]) for line in followed.lines} == {(0, 1)}
    assert call(app, "GET", "/jobs/train").json["row"]["state"] == "succeeded"
    assert call(app, "GET", f"/jobs/{name}/logs?rank=all&attempt=1&tail=1").lines == followed.lines[-1:]
    assert_problem(call(app, "GET", f"/jobs/{name}/logs?attempt=2&follow=true"), 404, "no_such_attempt")
    assert call(app, "DELETE", f"/jobs/{name}").status == 204
    assert_problem(call(app, "GET", f"/jobs/{name}"), 404, "no_such_job")


def test_a_rank_without_output_has_an_empty_log(app: FastAPI, world: Embedded) -> None:
    name = world.submit(["true"], nodes=2)
    for moment in ("perhaps still running", "ended"):
        answer = call(app, "GET", f"/jobs/{name}/logs?rank=1")
        assert (answer.status, answer.lines) == (200, []), moment
        world.ended(name)
    assert call(app, "GET", f"/jobs/{name}/logs?rank=0-2").json["detail"] == f"{name} has ranks 0 to 1, and no rank 2"
    detail = call(app, "GET", f"/jobs/{name}/logs?attempt=99").json["detail"]
    assert detail == f"{name} has had one attempt, and no attempt 99"


def test_chunks_of_long_lines_are_bounded() -> None:
    lines = ["\0" * 100_000, "short", *["x" * 100_000] * 20]
    chunks = list(ndjson(lines))
    assert [json.loads(line) for line in b"".join(chunks).splitlines()] == lines
    assert max(map(len, chunks)) <= CHUNK_BYTES + 6 * 100_000
    assert list(ndjson([1, 2, None, None, 3])) == [b"1\n2\n", b"", b"3\n"]


def test_reports_are_those_of_rank_0_and_metrics_have_a_curve(app: FastAPI, world: Embedded) -> None:
    script = "import ganger.train\nfor s in range(3): ganger.train.report(step=s, loss=float('nan') if s == 2 else s)"
    name = world.submit(python(script), nodes=2)
    assert world.ended(name).row.state == "succeeded", list(world.service.lines(LogQuery(job=name, everything=True)))
    reports = call(app, "GET", f"/jobs/{name}/reports").lines
    assert [(line["step"], line["metrics"]["loss"]) for line in reports] == [(0, 0), (1, 1), (2, None)]
    [metric] = call(app, "GET", f"/jobs/{name}/metrics").json["metrics"]
    assert [[step, value] for step, _, value in metric.pop("points")] == [[0, 0], [1, 1], [2, None]]
    extremes = {"min_step": 0, "min": 0, "max_step": 1, "max": 1}
    assert metric == {"name": "loss", "last_step": 2, "last": None, **extremes}
    assert call(app, "GET", "/jobs/none/metrics").json["code"] == "no_such_job"


def test_pages_of_jobs_and_of_events(app: FastAPI, world: Embedded) -> None:
    for node in world.service.nodes():
        world.service.cordon(node.name, cordoned=True)
    made = [world.submit() for _ in range(7)]
    ids, cursor = [], ""
    while cursor is not None:
        page = call(app, "GET", f"/jobs?all=true&limit=3&cursor={cursor}" if cursor else "/jobs?all=true&limit=3").json
        ids += [row["id"] for row in page["items"]]
        cursor = page["next"]
    assert ids == made[::-1]
    seqs, after = [], 0
    while after is not None:
        page = call(app, "GET", f"/events?after={after}&limit=4").json
        seqs += [row["seq"] for row in page["items"]]
        after = page["next"]
    assert seqs == list(range(1, world.service.seq() + 1))
    job_events = call(app, "GET", f"/events?gang={made[0]}").json["items"]
    assert [row["kind"] for row in job_events] == ["submitted"]


def test_a_queue_is_replaced_as_a_whole(app: FastAPI) -> None:
    used = {"limit_ms": 460_800_000, "per_ms": 2_592_000_000}
    body = {"nominal": {"gpus": 4}, "user_limits": {"time_ms": 3_600_000, "node_time_used": used}}
    assert call(app, "PUT", "/queues/nlp", body).json["user_limits"]["node_time_used"] == used
    for wrong in ("high", "5", 1.5, True, [5], {"user": 5}):
        assert call(app, "PUT", "/queues/nlp", {"user_limits": {"priority": wrong}}).status == 422, wrong
    assert call(app, "PUT", "/queues/nlp", {"user_limits": {"priority": 1001}}).status == 409
    assert call(app, "PUT", "/queues/nlp", {"user_limits": {"priority": -5}}).json["user_limits"]["priority"] == -5
    for wrong in ({"limit_ms": 1}, {"per_ms": 3_600_000}, used | {"limit_ms": "1"}, used | {"per_ms": None}, 1, []):
        assert call(app, "PUT", "/queues/nlp", {"user_limits": {"node_time_used": wrong}}).status == 422, wrong
    assert call(app, "PUT", "/queues/nlp", {"user_limits": {"node_time_used": used | {"per_ms": 1}}}).status == 409
    assert call(app, "PUT", "/queues/nlp", body).json["user_limits"]["time_ms"] == 3_600_000
    row = call(app, "PUT", "/queues/nlp", {"nominal": {"gpus": 2}}).json
    assert (row["nominal"]["gpus"], row["user_limits"]["time_ms"], row["parent"]) == (2, None, "root")
    assert call(app, "PUT", "/queues/root", {"user_limits": {"gpus": 8}}).json["parent"] is None
    assert call(app, "DELETE", "/queues/nlp").status == 204


def test_the_server_is_stopped_or_restarted(app: FastAPI, stop_calls: list[str | None]) -> None:
    assert call(app, "POST", "/server/stop").status == 202
    assert call(app, "POST", "/server/restart", {"python": sys.executable}).status == 202
    assert stop_calls == [None, sys.executable]
    assert json.loads(call(app, "GET", "/server").body)["health"] == "ok"


WRITES = 4 * (SUBMITTERS + WRITERS)


def test_reads_do_not_queue_behind_writes(app: FastAPI, world: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    submission = {"spec": {"run": "true"}, "directory": str(world.work), "environment": {"PATH": "/bin"}}
    reached, go = threading.Event(), threading.Event()
    submit = world.service.submit

    def slow(submission: Submission) -> Any:
        reached.set()
        assert go.wait(DEADLINE_S)
        return submit(submission)

    async def together() -> list[int]:
        writes = [asyncio.create_task(request(app, "POST", "/jobs", submission)) for _ in range(WRITES)]
        await asyncio.to_thread(reached.wait, DEADLINE_S)
        for target in ("/server", "/jobs", "/queues", "/nodes", "/events", "/secrets"):
            assert (await request(app, "GET", target)).status == 200, target
        # Quick changes do not queue behind the submissions either.
        assert (await request(app, "PUT", "/queues/nlp", {})).status == 200
        assert (await request(app, "POST", "/jobs?dryRun=plan", submission)).status == 200
        assert not any(write.done() for write in writes)
        go.set()
        return [(await write).status for write in writes]

    monkeypatch.setattr(world.service, "submit", slow)
    assert asyncio.run(together()) == [201] * WRITES


def test_invalid_requests_are_refused_whatever_the_etag(app: FastAPI) -> None:
    assert call(app, "GET", "/jobs?cursor=x", None, {"If-None-Match": "*"}).status == 400
    assert call(app, "GET", "/jobs/nobody", None, {"If-None-Match": "*"}).status == 404
    assert call(app, "GET", "/jobs", None, {"If-None-Match": "*"}).status == 304


class TornFile:
    """A file of a disk that gives one block and then an I/O error."""

    def __init__(self, file: Any) -> None:
        self._file, self._blocks = file, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        self._blocks -= 1
        if self._blocks < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data: bytes = self._file.read(size)
        return data


def test_a_file_that_the_disk_does_not_give_breaks_the_stream_off(
    app: FastAPI, world: Embedded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = "import os, pathlib; pathlib.Path(os.environ['GANGER_RUN_DIR'], 'a').write_bytes(bytes(300_000))"
    name = world.submit(python(text))
    world.ended(name)
    fdopen, sent = os.fdopen, list[Any]()
    monkeypatch.setattr(send_files.os, "fdopen", lambda *arguments: TornFile(fdopen(*arguments)))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope("GET", f"/jobs/{name}/files"), receive, send))
    assert sent[0]["status"] == 200
    assert len(sent) > 1
    assert all(message["more_body"] for message in sent[1:]), "the stream has no end"
    (record,) = (record for record in caplog.records if record.name == "ganger.rest")
    assert record.exc_info is None
    assert "/a: Input/output error" in record.getMessage()
