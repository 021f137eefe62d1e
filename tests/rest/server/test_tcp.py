"""The TCP listener: which requests it accepts, with which token, and what it never reveals."""

import http.client
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.client import ClientError
from ganger.engine.api_tokens import Tokens
from ganger.errors import RequestError
from ganger.rest.token_gate import MAX_REQUESTS
from ganger.server.state_directory import ServerStartError, tcp_listener
from tests.rest.serving import ServerHome

PORT = "127.0.0.1:0"


@pytest.fixture(scope="module")
def open_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    """Yield a server that also listens on a port of the loopback."""
    place = ServerHome(tmp_path_factory.mktemp("open"))
    place.client.connect(arguments=["--listen", PORT])
    yield place
    place.close()


def url_of(place: ServerHome) -> str:
    url: str = json.loads(place.home.server_file.read_text())["url"]
    return url


def ask(place: ServerHome, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Return status, JSON and headers of one answer over TCP.

    A header `_` stands for `-`; Host is that of the URL.
    """
    address = url_of(place).removeprefix("http://")
    link = http.client.HTTPConnection(address, timeout=60)
    try:
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), request_headers)
        answer = link.getresponse()
        content = answer.read()
        response_headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(content) if content else None, response_headers
    finally:
        link.close()


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_requests_without_a_valid_token_are_refused(open_place: ServerHome) -> None:
    token = open_place.client.create_token("good", None)
    assert ask(open_place, "GET", "/server", Authorization=bearer(token))[0] == 200
    assert ask(open_place, "GET", "/openapi.json", Authorization=f"bearer {token}")[0] == 200
    for wrong, code in (
        ({}, "no_token"),
        ({"Authorization": token}, "no_token"),
        ({"Authorization": "Basic eDp5"}, "no_token"),
        ({"Authorization": "Bearer "}, "no_token"),
        ({"Authorization": bearer(token[:-1])}, "bad_token"),
        ({"Authorization": bearer(token + "x")}, "bad_token"),
        ({"Authorization": bearer("ganger_")}, "bad_token"),
        ({"Authorization": bearer("\xff\xfe")}, "bad_token"),
    ):
        for path in ("/server", "/openapi.json", "/nothing", "/stream"):
            status, problem, headers = ask(open_place, "GET", path, **wrong)
            assert (status, problem["code"], headers["www-authenticate"]) == (401, code, "Bearer"), wrong
            assert headers["content-type"] == "application/problem+json"
            assert token[:12] not in json.dumps(problem)
    open_place.client.revoke_token("good")
    assert ask(open_place, "GET", "/server", Authorization=bearer(token))[1]["code"] == "bad_token"


def test_a_token_expires(open_place: ServerHome) -> None:
    token = open_place.client.create_token("short", 1)
    status, problem, _ = ask(open_place, "GET", "/server", Authorization=bearer(token))
    assert (status, problem["code"]) == (401, "bad_token")
    assert [row["expired"] for row in open_place.client.tokens() if row["name"] == "short"] == [True]
    open_place.client.revoke_token("short")


@pytest.mark.parametrize("end", ["revoked", "expired"])
@pytest.mark.parametrize("target", ["/stream", "/jobs/{job}/logs?follow=true"])
def test_a_response_in_progress_ends_with_its_token(open_place: ServerHome, target: str, end: str) -> None:
    job = open_place.submit(["sh", "-c", "echo begun; exec sleep 600"])
    open_place.until(job, "running")
    token = open_place.client.create_token("follower", 3_000 if end == "expired" else None)
    link = http.client.HTTPConnection(url_of(open_place).removeprefix("http://"), timeout=60)
    link.request("GET", f"/api/v1{target.format(job=job)}", headers={"Authorization": bearer(token)})
    answer = link.getresponse()
    assert answer.status == 200
    assert answer.readline()
    if end == "revoked":
        open_place.client.revoke_token("follower")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):  # not the end of a complete response
        answer.read()
    link.close()
    if end == "expired":
        open_place.client.revoke_token("follower")
    open_place.client.stop(job)
    assert "ASGI" not in open_place.home.server_log.read_text()


def test_another_host_is_refused_even_with_a_token(open_place: ServerHome) -> None:
    token = open_place.client.create_token("host", None)
    port = url_of(open_place).rpartition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost.evil.example",
        "",
        "127.0.0.1.nip.io",
        "[::1",
        "a b",
    ):
        status, problem, _ = ask(open_place, "GET", "/server", Authorization=bearer(token), Host=host)
        assert (status, problem["code"]) == (403, "bad_host"), host
    for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert ask(open_place, "GET", "/server", Authorization=bearer(token), Host=host)[0] == 200, host
    open_place.client.revoke_token("host")


def test_jobs_are_run_over_tcp_and_doors_are_not_opened(open_place: ServerHome) -> None:
    token = open_place.client.create_token("worker", 3_600_000)
    given = {"Authorization": bearer(token), "Content_Type": "application/json"}
    status, job, _ = ask(open_place, "POST", "/jobs", open_place.request(["true"]), Idempotency_Key="one", **given)
    assert status == 201
    assert ask(open_place, "POST", "/jobs", open_place.request(["true"]), Idempotency_Key="one", **given)[0] == 200
    open_place.until(job["row"]["id"], "succeeded")
    for method, path, body in (
        ("GET", "/tokens", None),
        ("POST", "/tokens", {"name": "more", "expires_after_ms": None}),
        ("DELETE", "/tokens/worker", None),
        ("POST", "/server/stop", None),
        ("POST", "/server/restart", {"python": sys.executable}),
    ):
        status, problem, _ = ask(open_place, method, path, body, **given)
        assert (status, problem["code"]) == (403, "local_only"), path
    open_place.client.revoke_token("worker")


def test_only_hashes_are_stored_and_a_restart_keeps_the_listener(place: ServerHome) -> None:
    place.client.connect(arguments=["--listen", PORT])
    token = place.client.create_token("kept", None)
    with pytest.raises(ClientError) as refused:
        place.client.create_token("kept", None)
    assert (refused.value.code, refused.value.exit_code) == ("token_exists", 4)
    assert stat.S_IMODE(place.home.tokens.stat().st_mode) == 0o600
    secret = token.removeprefix("ganger_")
    place.client.restart()
    assert ask(place, "GET", "/server", Authorization=bearer(token))[0] == 200
    for path in place.home.path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    place.client.shutdown()
    place.client.connect()
    assert url_of(place) is None


def test_a_listener_beyond_the_loopback_needs_a_token(place: ServerHome) -> None:
    refused = place.serve("--listen", "0.0.0.0:0")
    assert refused.returncode == 5
    assert "0.0.0.0:0 is open to other machines, and there is no token" in refused.stderr
    assert "next: ganger token create NAME" in refused.stderr


@pytest.mark.parametrize(
    "address", ["nowhere", "127.0.0.1:http", "no.such.host.invalid:80", "127.0.0.1:99999", "127.0.0.1:-1"]
)
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(ServerStartError, match="is not a valid address"), tcp_listener(address, has_token=True):
        pass


def test_an_unreadable_file_of_tokens_prevents_the_start(place: ServerHome) -> None:
    place.home.tokens.write_text("{")
    refused = place.serve()
    assert refused.returncode == 5
    assert str(place.home.tokens) in refused.stderr
    assert "next: to start over: mv " in refused.stderr


def test_the_command_line_writes_a_token_for_its_owner_alone(open_place: ServerHome, tmp_path: Path) -> None:
    def ganger(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sys.executable).parent / "ganger"), "token", *words]
        environment = {"GANGER_HOME": str(open_place.home.path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)

    made = ganger("create", "ci", "--file", "ci.token")
    assert (made.returncode, made.stdout) == (0, "wrote token ci to ci.token\n"), made.stderr
    file = tmp_path / "ci.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ask(open_place, "GET", "/server", Authorization=bearer(file.read_text().strip()))[0] == 200
    assert ganger("create", "other", "--file", "ci.token").returncode == 2
    assert ganger("create", "ci", "--file", "new.token").returncode == 4
    assert not (tmp_path / "new.token").exists()
    printed = ganger("create", "shown").stdout.strip()
    assert ask(open_place, "GET", "/server", Authorization=bearer(printed))[0] == 200
    listed = ganger("ls").stdout
    assert "ci" in listed
    assert printed not in listed
    assert ganger("revoke", "ci", "shown").returncode == 0
    assert ganger("revoke", "ci").returncode == 3


def test_tokens_are_distinguished(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    first, second = tokens.create("first", 100, None), tokens.create("second", 200, 1_000)
    assert first != second
    assert (tokens.find(first, 10**15).name, tokens.find(second, 999).name) == ("first", "second")
    assert tokens.find(second, 1_000) is None
    reopened = Tokens(tmp_path / "tokens.json")
    assert reopened.find(first, 0).name == "first"
    assert [row.name for row in reopened.rows(1_000)] == ["first", "second"]
    reopened.revoke("first")
    with pytest.raises(RequestError) as refused:
        reopened.revoke("first")
    assert (refused.value.status, refused.value.code) == (404, "no_such_token")
    assert reopened.find(first, 0) is None


def test_a_body_of_a_hundred_megabytes_is_refused_and_not_repeated(open_place: ServerHome) -> None:
    token = open_place.client.create_token("large", None)
    headers = {"Authorization": bearer(token), "Content-Type": "application/json"}
    large = b'{"directory": "' + b"hidden" * 16_700_000 + b'"}'
    for announced in (True, False):
        link = http.client.HTTPConnection(url_of(open_place).removeprefix("http://"), timeout=60)
        body = (
            large if announced else (large[offset : offset + 1_000_000] for offset in range(0, len(large), 1_000_000))
        )
        link.request("POST", "/api/v1/jobs", body, headers, encode_chunked=not announced)
        answer = link.getresponse()
        problem = json.loads(answer.read())
        link.close()
        assert (answer.status, problem["code"]) == (413, "body_too_large")
        assert "hidden" not in json.dumps(problem)
    status, problem, _ = ask(
        open_place,
        "POST",
        "/jobs",
        {"directory": 7, "secrets": {"TOKEN": "hidden"}},
        Authorization=headers["Authorization"],
    )
    assert (status, problem["code"], "hidden" in json.dumps(problem)) == (422, "invalid_request", False)
    assert "hidden" not in open_place.home.server_log.read_text()
    assert ask(open_place, "GET", "/server", Authorization=bearer(token))[0] == 200
    open_place.client.revoke_token("large")


def test_a_token_allows_what_its_scope_says(open_place: ServerHome) -> None:
    reader, guest, chief = (
        {
            "Authorization": bearer(open_place.client.create_token(scope, None, scope)),
            "Content_Type": "application/json",
        }
        for scope in ("read", "submit", "admin")
    )
    assert {row["name"]: row["scope"] for row in open_place.client.tokens()}["submit"] == "submit"
    for method, path, body in (
        ("POST", "/jobs", open_place.request(["true"])),
        ("POST", "/jobs?dryRun=plan", open_place.request(["true"])),
        ("POST", "/jobs/any/stop", None),
        ("DELETE", "/jobs/any", None),
        ("PUT", "/secrets/KEY", {"value": "x"}),
        ("PUT", "/policy", {}),
    ):
        status, problem, _ = ask(open_place, method, path, body, **reader)
        assert (status, problem["code"]) == (403, "insufficient_scope"), path
        assert f"--scope {'admin' if path == '/policy' else 'submit'}" in problem["next"]
    for path in ("/jobs", "/secrets", "/nodes"):
        assert ask(open_place, "GET", path, **reader)[0] == 200
    assert ask(open_place, "POST", "/policy/diff", {}, **reader)[0] != 403
    for method, path, body in (
        ("PUT", "/queues/mine", {"user_limits": {"priority": 1000}}),
        ("PUT", "/queues/mine?dryRun=plan", {}),
        ("DELETE", "/queues/mine", None),
        ("PATCH", "/nodes/n1", {"cordoned": True}),
        ("POST", "/nodes/n1/drain", {}),
        ("POST", "/maintenance", {"nodes": ["n1"], "from_ms": 0, "until_ms": 1}),
        ("PUT", "/policy", {}),
        ("PUT", "/policy/", {}),
        ("PUT", "/policy?dryRun=plan&dryRun=", {}),
        ("PUT", "/policy%0A", {}),  # a router may leave out a line feed at the end
        ("POST", "/nodes/n1/drain%0A", {}),
    ):
        status, problem, _ = ask(open_place, method, path, body, **guest)
        assert (status, problem["code"]) == (403, "insufficient_scope"), path
    for method, path in (("GET", "/queues"), ("GET", "/nodes"), ("GET", "/policy"), ("POST", "/policy/check")):
        assert ask(open_place, method, path, {} if method == "POST" else None, **guest)[0] != 403, path
    assert ask(open_place, "PUT", "/policy?dryRun=plan", {}, **guest)[0] != 403
    assert ask(open_place, "PUT", "/queues/calm", {"user_limits": {"priority": 5}}, **chief)[0] == 200
    request = open_place.request(["sleep", "600"], queue="calm", priority=6)
    status, problem, _ = ask(open_place, "POST", "/jobs", request, **guest)
    assert (status, problem["code"]) == (409, "over_user_limit")
    status, job, _ = ask(open_place, "POST", "/jobs", request, **chief)
    assert status == 201
    path = f"/jobs/{job['row']['id']}"
    assert ask(open_place, "PATCH", path, {"priority": 7}, **guest)[1]["code"] == "over_user_limit"
    assert ask(open_place, "PATCH", path, {"priority": 5}, **guest)[1]["row"]["priority"] == 5
    assert ask(open_place, "PATCH", path, {"priority": 7}, **chief)[1]["row"]["priority"] == 7
    open_place.client.stop(job["row"]["id"])
    for name in ("read", "submit", "admin"):
        open_place.client.revoke_token(name)
    refused = open_place.client
    with pytest.raises(ClientError, match="scope"):
        refused.create_token("third", None, "owner")


def test_a_token_has_a_limited_number_of_requests_at_one_time(open_place: ServerHome) -> None:
    given, other = ({"Authorization": bearer(open_place.client.create_token(name, None, "read"))} for name in "ab")
    links = [http.client.HTTPConnection(url_of(open_place).removeprefix("http://")) for _ in range(MAX_REQUESTS)]
    try:
        for link in links:
            link.request("GET", "/api/v1/stream", headers=given)
            assert link.getresponse().status == 200
        status, problem, _ = ask(open_place, "GET", "/server", **given)
        assert (status, problem["code"]) == (503, "too_many_requests")
        assert ask(open_place, "GET", "/server", **other)[0] == 200
    finally:
        open_place.client.revoke_token("a")
        for link in links:
            link.close()
