"""Connections over TCP without a token do not take resources from the unix socket or from clients with a token."""

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ganger.client.local.start_server import running
from ganger.launcher_server.acceptor import MAX_SILENT_OF_ADDRESS
from ganger.server.server_log import LINES_PER_MINUTE
from tests.rest.server.test_tcp import ask, bearer, url_of
from tests.rest.serving import ServerHome
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.serial

OPEN_FILES = 256
MANY_CONNECTIONS = 350


@contextmanager
def limited(place: ServerHome, soft: int, hard: int) -> Iterator[int]:
    """Yield the pid of a server with limited descriptors."""
    limits = ["sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "sh"]
    serve = [sys.executable, "-P", "-m", "ganger.server", "serve", "--home", str(place.home.path)]
    with place.home.server_log.open("ab") as log:
        process = subprocess.Popen([*limits, *serve, "--listen", "127.0.0.1:0"], stderr=log)
    with process:
        try:
            wait_until(place.home.server_file.exists, "the server announces itself")
            running(place.home)
            yield process.pid
        finally:
            process.terminate()


def connect_many(stack: ExitStack, place: ServerHome, words: bytes = b"") -> list[socket.socket]:
    """Return many connections over TCP, each after sending `words`."""
    connections = []
    for _ in range(MANY_CONNECTIONS):
        connections.append(stack.enter_context(socket.create_connection(address_of(place), DEADLINE_S)))
        connections[-1].sendall(words)
    return connections


@pytest.fixture(scope="module")
def open_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    """Yield a server that also listens on a port of the loopback."""
    place = ServerHome(tmp_path_factory.mktemp("open"))
    place.client.connect(arguments=["--listen", "127.0.0.1:0"])
    yield place
    place.close()


def address_of(place: ServerHome) -> tuple[str, int]:
    host, _, port = url_of(place).removeprefix("http://").rpartition(":")
    return host, int(port)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("words", [b"", b"GET /api/v1/jobs HTTP/1.1\r\n"], ids=["nothing", "half a header"])
def test_unix_socket_and_token_are_answered_when_descriptors_run_out(place: ServerHome, words: bytes) -> None:
    with limited(place, 64, OPEN_FILES) as pid, ExitStack() as stack:
        token = place.client.create_token("good", None)
        connect_many(stack, place, words)
        listed = place.ganger("ls")
        assert (listed.returncode, listed.stderr) == (0, "")
        assert ask(place, "GET", "/server", Authorization=bearer(token))[0] == 200
        assert descriptors(pid) <= OPEN_FILES * 7 // 8
        assert len(place.home.server_log.read_text().splitlines()) < 2 * LINES_PER_MINUTE


def test_silent_connections_of_one_address_are_limited(open_place: ServerHome) -> None:
    before = descriptors(open_place.pid)
    with ExitStack() as stack:
        connections = connect_many(stack, open_place)
        newest = connections[-1]
        newest.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"401" in newest.recv(4096), "the newest has a place"
        assert connections[0].recv(1) == b"", "the oldest has none"
        wait_until(lambda: descriptors(open_place.pid) < before + MAX_SILENT_OF_ADDRESS + 10, "the others are gone")
    wait_until(lambda: descriptors(open_place.pid) < before + 10, "all of them are closed")


def test_connection_with_a_token_outlives_many_silent_ones(open_place: ServerHome) -> None:
    token = open_place.client.create_token("good", None)
    with ExitStack() as stack:
        follower = stack.enter_context(socket.create_connection(address_of(open_place), DEADLINE_S))
        follower.sendall(
            f"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        answer = stack.enter_context(follower.makefile("rb"))
        assert b"200" in answer.readline()
        connect_many(stack, open_place, b"GET /api/v1/jobs HTTP/1.1\r\n")
        connect_many(stack, open_place, b"GET /api/v1/jobs HTTP/1.1\r\n")
        job = open_place.submit(["true"])
        assert any(job.encode() in line for line in answer)


def test_junk_leaves_few_lines_in_the_log(place: ServerHome) -> None:
    place.client.connect(arguments=["--listen", "127.0.0.1:0"])
    with ExitStack() as stack:
        for connection in connect_many(stack, place, b"\x16\x03\x01 no HTTP\r\n\r\n"):
            assert b"400" in connection.recv(4096)
    place.client.shutdown()
    warnings = [line for line in place.home.server_log.read_text().splitlines() if "Invalid HTTP request" in line]
    assert len(warnings) == LINES_PER_MINUTE + 1
    assert f"{MANY_CONNECTIONS - LINES_PER_MINUTE} more like this in the last minute" in warnings[-1]


def test_an_endless_header_is_dropped(open_place: ServerHome) -> None:
    with socket.create_connection(address_of(open_place), DEADLINE_S) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * (64 << 20))


def test_jobs_get_the_limit_that_the_server_was_started_with(place: ServerHome) -> None:
    with limited(place, 512, 4_096) as pid:
        place.client.restart()  # the next server must not take the raised limit for the one that it was started with
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (4_096, 4_096)
        job = place.submit("ulimit -Sn; ulimit -Hn; env | grep OPEN_FILES; true")
        place.until(job, "succeeded")
        logs = place.ganger("logs", job).stdout
        assert logs.split() == ["512", "4096"], logs
