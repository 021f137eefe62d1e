"""Uploads of code: slow ones take the slot of one user, and what a server did not finish is gone."""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from ganger.code.code_snapshot import snapshot
from ganger.code.packed_code import pack
from ganger.engine.submit.received_code import ReceivedCode
from ganger.errors import RequestError
from ganger.rest.routes import code_routes
from ganger.rest.routes.code_routes import UploadSlots
from tests.rest.asgi import call, scope
from tests.rest.serving import ServerHome
from tests.waiting import DEADLINE_S, wait_until


@contextlib.contextmanager
def begun(place: ServerHome, token: str) -> Iterator[socket.socket]:
    """Yield a connection on which an upload has begun, of which no more comes by itself."""
    host, _, port = json.loads(place.home.server_file.read_text())["url"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as link:
        head = f"PUT /api/v1/code/{'0' * 64} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        link.sendall(f"{head}Content-Length: 1000\r\n\r\nbegin".encode())
        yield link


def upload(place: ServerHome, token: str, directory: Path) -> int:
    """Return the status of the upload of a directory."""
    digest = snapshot(directory, directory.with_name("store"))
    address = json.loads(place.home.server_file.read_text())["url"].removeprefix("http://")
    link = http.client.HTTPConnection(address, timeout=DEADLINE_S)
    with contextlib.closing(link):
        body = pack(directory.with_name("store") / digest)
        link.request("PUT", f"/api/v1/code/{digest}", body, {"Authorization": f"Bearer {token}"})
        return link.getresponse().status


def archives(place: ServerHome) -> int:
    """Return how many archives a server is receiving: files without a name in the directory of copies."""
    links = Path(f"/proc/{place.pid}/fd").iterdir()
    return sum("/code/" in str(link.readlink()) for link in links if link.is_symlink())


def test_slow_uploads_of_a_user_stop_no_other_and_end_with_the_server(place: ServerHome, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("1")
    place.client.connect(arguments=["--listen", "127.0.0.1:0"])
    slow, quick = (place.client.create_token(name, None) for name in ("slow", "quick"))
    with begun(place, slow) as first, begun(place, slow), begun(place, slow):
        wait_until(lambda: archives(place) == 1, "one of them is received")
        assert upload(place, quick, tmp_path / "project") == 204
        place.client.shutdown()
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 503")
    assert "Traceback" not in place.home.server_log.read_text()


def test_what_a_killed_server_was_writing_is_removed_at_the_next_start(place: ServerHome) -> None:
    for name in (".unpacked-x1", ".copy-y2", "0" * 64):
        (place.home.code / name / "folder").mkdir(parents=True)
    place.client.connect()
    assert [path.name for path in place.home.code.iterdir()] == ["0" * 64]


def test_an_upload_waits_for_a_slot_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_routes, "WAIT_S", 0.02)

    async def scene() -> None:
        slots = UploadSlots()
        async with slots.hold("a"):
            async with slots.hold("b"), slots.hold("c"), slots.hold("d"):
                with pytest.raises(RequestError, match="other uploads are in progress"):
                    async with slots.hold("e"):
                        pass
            with pytest.raises(RequestError, match="other uploads are in progress") as refused:
                async with slots.hold("a"):
                    pass
            assert (refused.value.code, refused.value.status) == ("too_many_uploads", 503)
        for user in "abcde":
            async with slots.hold(user):
                pass

    asyncio.run(scene())


def test_an_upload_has_a_time_limit(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_routes, "UPLOAD_S", 0.02)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.005)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope("PUT", f"/code/{'0' * 64}"), receive, send))
    assert (sent[0]["status"], json.loads(sent[1]["body"])["code"]) == (408, "upload_too_slow")


def test_no_change_waits_for_an_archive_that_is_unpacked(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(ReceivedCode, "keep", lambda *_: taken.append(app.state.writers.borrowed_tokens))
    assert call(app, "PUT", f"/code/{'0' * 64}", b"archive").status == 204
    assert taken == [0]
