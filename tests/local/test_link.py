"""The launchers' socket: authentication, and rejected connections."""

import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.local import machine_processes
from ganger.launcher_server.connection import HELLO_LIMIT_BYTES, listen
from tests.local.world import DEADLINE_S, Server, make_job, make_start

Serve = Callable[..., Server]


class Peer:
    """A client of the launchers' socket."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(server.files.socket))
        self.lines = self.socket.makefile("rb")

    def send(self, kind: str, **fields: Any) -> None:
        self.raw(json.dumps({"v": 2, "type": kind, **fields}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None if the connection was dropped."""
        try:
            line = self.lines.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@pytest.fixture
def server(serve: Serve) -> Server:
    server = serve().open()
    server.files.task("job", "n1").make()
    return server


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    peer = Peer(server)
    yield peer
    peer.close()


def hello(server: Server, **changed: Any) -> dict[str, Any]:
    """Return the hello of the launcher of `job` on n1, with this process as the launcher."""
    process = machine_processes.identify(os.getpid())
    assert process is not None
    token = server.files.task("job", "n1").token()
    fields = {
        "token": token,
        "gang": "job",
        "node": "n1",
        "pid": process.pid,
        "start_ticks": process.start_ticks,
        "generations": [],
    }
    return fields | changed


def test_only_its_user_may_connect(server: Server) -> None:
    assert stat.S_IMODE(server.files.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE((server.files.task("job", "n1").path / "token").stat().st_mode) == 0o600


def test_a_rejected_launcher_is_logged_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        peer = Peer(server)
        peer.send("hello", **hello(server, gang="stranger"))
        assert peer.receive() is None
        peer.close()
    assert caplog.text.count("wrong token for attempt 0 of stranger on n1") == 1


def test_launcher_of_an_ended_gang_is_dismissed(server: Server, peer: Peer) -> None:
    peer.send("hello", **hello(server, generations=[3]))
    assert [message["type"] for message in (peer.receive(), peer.receive(), peer.receive())] == [
        "welcome",
        "stop",
        "leave",
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"token": "guessed"},
        {"token": ""},
        {"gang": "other"},
        {"gang": "../job"},
        {"node": ".."},
        {"pid": "many"},
        {"generations": 1},
        {"start_ticks": 1},
    ],
)
def test_invalid_hellos_are_rejected(server: Server, peer: Peer, changed: dict[str, Any]) -> None:
    peer.send("hello", **hello(server, **changed))
    assert peer.receive() is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'{"v": 3, "type": "hello"}\n',
        b'{"v": 2}\n',
        b'{"v": 2, "type": "started", "generation": 1}\n',
        b"x" * (HELLO_LIMIT_BYTES + 1),
    ],
)
def test_noise_is_dropped(server: Server, peer: Peer, data: bytes) -> None:
    peer.raw(data)
    assert peer.receive() is None


@pytest.mark.parametrize(
    "message",
    [
        {"type": "sings"},
        {"type": "rank_failed", "generation": 1, "rank": "two"},
        {"type": "checkpointed", "generation": 1},
        {"type": "started", "generation": "1"},
        {"generation": 1},
    ],
)
def test_launcher_with_an_invalid_message_is_dropped_and_may_reconnect(
    server: Server, peer: Peer, message: dict[str, Any]
) -> None:
    peer.send("hello", **hello(server))
    assert peer.receive() == {"v": 2, "type": "welcome"}
    assert peer.receive() == {"v": 2, "type": "leave"}
    peer.raw(json.dumps({"v": 2, "n": 1} | message).encode() + b"\n")
    assert peer.receive() is None
    assert [event.kind for event in server.events] == ["nodes_listed"]
    again = Peer(server)
    again.send("hello", **hello(server))
    assert again.receive() == {"v": 2, "type": "welcome"}
    again.close()


def test_stale_reports_are_passed_on_and_acknowledged(server: Server, peer: Peer) -> None:
    peer.send("hello", **hello(server))
    peer.send("checkpointed", gang="job", node="n1", generation=1, step=7, n=1)
    assert server.wait("checkpointed").step == 7
    assert [peer.receive() for _ in range(3)][-1] == {"v": 2, "type": "ack", "n": 1}


def test_reports_are_acknowledged_in_order(server: Server, peer: Peer) -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    futures = [first, second]
    server.durable = lambda: futures.pop(0)
    peer.send("hello", **hello(server))
    peer.send("checkpointed", gang="job", node="n1", generation=1, step=1, n=1)
    peer.send("checkpointed", gang="job", node="n1", generation=1, step=2, n=2)
    server.wait("checkpointed", 2)
    second.set_result(0)
    server.drain_loop()
    first.set_result(1)
    assert [peer.receive() for _ in range(3)][-1] == {"v": 2, "type": "ack", "n": 2}


def test_noise_does_not_disturb_a_gang(server: Server, peer: Peer, tmp_path: Path) -> None:
    peer.raw(b"noise" * 1000)
    job = make_job(tmp_path, "true")
    server.backend.start(make_start(job), job)
    server.wait("finished", 2)


def test_only_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen(path).close()
    listen(path).close()
    path.unlink()
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="is not a socket"):
        listen(path)
    assert path.read_text() == "precious"
