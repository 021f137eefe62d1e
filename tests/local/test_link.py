"""The launchers' socket: who is let in, and what becomes of those who are not."""

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
    """Somebody who connects to the launchers' socket."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(server.layout.socket))
        self.lines = self.socket.makefile("rb")

    def say(self, kind: str, **fields: Any) -> None:
        self.raw(json.dumps({"v": 1, "type": kind, **fields}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hear(self) -> dict[str, Any] | None:
        """The next message; None when the connection was dropped."""
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
    server.layout.task("job", "n1").make()
    return server


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    peer = Peer(server)
    yield peer
    peer.close()


def hello(server: Server, **changed: Any) -> dict[str, Any]:
    """What the launcher of job on n1 would say, if it were this process."""
    me = machine_processes.identify(os.getpid())
    assert me is not None
    token = server.layout.task("job", "n1").token()
    said = {
        "token": token,
        "gang": "job",
        "node": "n1",
        "pid": me.pid,
        "start_ticks": me.start_ticks,
        "generations": [],
    }
    return said | changed


def test_only_its_user_may_connect(server: Server) -> None:
    assert stat.S_IMODE(server.layout.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE((server.layout.task("job", "n1").path / "token").stat().st_mode) == 0o600


def test_who_is_not_let_in_is_said_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        peer = Peer(server)
        peer.say("hello", **hello(server, gang="stranger"))
        assert peer.hear() is None
        peer.close()
    assert caplog.text.count("wrong token for stranger on n1") == 1


def test_launcher_of_a_gang_that_is_over_is_told_to_leave(server: Server, peer: Peer) -> None:
    peer.say("hello", **hello(server, generations=[3]))
    assert [message["type"] for message in (peer.hear(), peer.hear(), peer.hear())] == ["welcome", "stop", "leave"]


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
def test_who_is_no_launcher_is_not_let_in(server: Server, peer: Peer, changed: dict[str, Any]) -> None:
    peer.say("hello", **hello(server, **changed))
    assert peer.hear() is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'{"v": 2, "type": "hello"}\n',
        b'{"v": 1}\n',
        b'{"v": 1, "type": "started", "generation": 1}\n',
        b"x" * (HELLO_LIMIT_BYTES + 1),
    ],
)
def test_noise_is_dropped(server: Server, peer: Peer, data: bytes) -> None:
    peer.raw(data)
    assert peer.hear() is None


@pytest.mark.parametrize(
    "message",
    [
        {"type": "sings"},
        {"type": "exited", "generation": 1, "rank": "two"},
        {"type": "checkpointed", "generation": 1},
        {"type": "started", "generation": "1"},
        {"generation": 1},
    ],
)
def test_launcher_that_talks_nonsense_is_dropped_and_may_come_again(
    server: Server, peer: Peer, message: dict[str, Any]
) -> None:
    peer.say("hello", **hello(server))
    assert peer.hear() == {"v": 1, "type": "welcome"}
    assert peer.hear() == {"v": 1, "type": "leave"}
    peer.raw(json.dumps({"v": 1, "n": 1} | message).encode() + b"\n")
    assert peer.hear() is None
    assert [event.kind for event in server.events] == ["nodes_listed"]
    again = Peer(server)
    again.say("hello", **hello(server))
    assert again.hear() == {"v": 1, "type": "welcome"}
    again.close()


def test_stale_fact_is_passed_on_and_acknowledged(server: Server, peer: Peer) -> None:
    peer.say("hello", **hello(server))
    peer.say("checkpointed", gang="job", node="n1", generation=1, step=7, n=1)
    assert server.wait("checkpointed").step == 7
    assert [peer.hear() for _ in range(3)][-1] == {"v": 1, "type": "ack", "n": 1}


def test_nothing_is_acknowledged_ahead_of_an_earlier_fact(server: Server, peer: Peer) -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    futures = [first, second]
    server.durable = lambda: futures.pop(0)
    peer.say("hello", **hello(server))
    peer.say("checkpointed", gang="job", node="n1", generation=1, step=1, n=1)
    peer.say("checkpointed", gang="job", node="n1", generation=1, step=2, n=2)
    server.wait("checkpointed", 2)
    second.set_result(0)
    server.turned()
    first.set_result(1)
    assert [peer.hear() for _ in range(3)][-1] == {"v": 1, "type": "ack", "n": 2}


def test_noise_does_not_disturb_a_gang(server: Server, peer: Peer, tmp_path: Path) -> None:
    peer.raw(b"noise" * 1000)
    job = make_job(tmp_path, "true")
    server.backend.start(make_start(job), job)
    server.wait("finished", 2)


def test_dead_servers_socket_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen(path).close()
    listen(path).close()
    path.unlink()
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="is not a socket"):
        listen(path)
    assert path.read_text() == "precious"
