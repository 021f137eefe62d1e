"""Code that a launcher receives from the server before it runs anything: real processes, TCP and TLS."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import tarfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.main import BAD_CODE
from ganger.launcher_server.code_pieces import MAX_AT_ONCE, PIECE_BYTES, CodePiece, CodePieces, NoCodeError
from ganger.launcher_server.connection import Connection
from ganger.launcher_server.message_schema import BadMessage
from tests.launcher.harness import GANG, SH, TOKEN
from tests.launcher.remote_launchers import HOST, Controller, ListenFixture, StartFixture
from tests.waiting import until, wait_until

MOST_UNREAD = 200
"""Pieces that exceed all buffers of the system by far."""


class Code:
    """An archive with train.sh, and with what does not get smaller; `faults` are answered first."""

    def __init__(self, folder: Path, *faults: str) -> None:
        (folder / "train.sh").write_text("exit 7")
        (folder / "noise").write_bytes(os.urandom(2 * PIECE_BYTES))
        with tarfile.open(folder / "code.tar.gz", "w:gz") as archive:
            for name in ("train.sh", "noise"):
                archive.add(folder / name, name)
        self.content = (folder / "code.tar.gz").read_bytes()
        self.digest = hashlib.sha256(self.content).hexdigest()
        self.work = folder / "unpacked"
        self.work.mkdir()
        self.reads: list[int] = []
        self._faults = list(faults)

    @property
    def before(self) -> tuple[str, ...]:
        return ("/usr/bin/env", "--chdir", str(self.work))

    def serve(self, controller: Controller) -> None:
        async def serve() -> None:
            controller.listener.serve_code(self.read)

        controller.do(serve())

    def read(self, gang: str, start: int, max_bytes: int) -> CodePiece | None:
        assert gang == GANG
        self.reads.append(start)
        fault = self._faults.pop(0) if self._faults and start else ""
        if fault == "missing":
            raise NoCodeError("it was deleted")
        piece = CodePiece(self.content[start : start + max_bytes], len(self.content))
        match fault:
            case "away":
                return None
            case "damaged":
                return CodePiece(b"x" * len(piece.content), piece.size_bytes)
            case "endless":
                return CodePiece(piece.content, 1 << 40)
        return piece


@pytest.mark.parametrize("faults", [(), ("away", "away")])
def test_code_comes_in_pieces_also_from_a_server_that_cannot_read_it_for_a_while(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    controller, code = listens(), Code(tmp_path, *faults)
    code.serve(controller)
    pod = starts(controller, before=code.before, GANGER_CODE_SHA256=code.digest)
    controller.run(pod.plan([*SH, f"sh {code.work}/train.sh"]))
    controller.wait("rank_failed", "n1")
    pieces = list(range(0, len(code.content), PIECE_BYTES))
    assert len(pieces) > 2
    assert [start for index, start in enumerate(code.reads) if start not in code.reads[:index]] == pieces
    assert len(code.reads) == len(pieces) + len(faults), "none is read twice"
    assert not (pod.task / "code.tar.gz").exists()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "the server does not have the code of the job: it was deleted"),
        ("damaged", "is not what was submitted"),
        ("endless", "the limit is"),
    ],
)
def test_other_code_than_the_submitted_is_not_run(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path, fault: str, message: str
) -> None:
    controller, code = listens(), Code(tmp_path, fault)
    code.serve(controller)
    pod = starts(controller, before=code.before, GANGER_CODE_SHA256=code.digest, GANGER_LOG_TO_STDOUT="1")
    assert pod.ended() == BAD_CODE
    assert message in pod.stderr.read_text()
    assert not list(code.work.iterdir())


@pytest.mark.parametrize("server", ["serves none", "wrong token"])
def test_code_is_for_launchers_of_a_server_that_has_some(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path, server: str
) -> None:
    controller, code = listens(), Code(tmp_path)
    if server == "wrong token":
        code.serve(controller)
        controller.tokens["n1"] = "another"
    pod = starts(controller, before=code.before, GANGER_CODE_SHA256=code.digest)
    wait_until((pod.task / "code.tar.gz").exists, "the launcher asks")
    assert pod.process is not None
    pod.process.send_signal(signal.SIGTERM)
    assert pod.ended() == 128 + signal.SIGTERM, "process 1 ends by SIGTERM, though it runs nothing yet"
    assert not code.reads


class Handshaken:
    """A connection whose TLS session tickets are still to be sent."""

    has_unsent = True

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, kind: str, **_: Any) -> None:
        self.sent.append(kind)


def test_what_tls_has_to_send_after_the_handshake_refuses_no_first_request() -> None:
    """The request comes in one read with the end of the handshake where the server's machine is busy."""

    async def ask() -> None:
        pieces, connection = CodePieces(lambda *_: CodePiece(b"a", 2)), Handshaken()
        pieces.requested(connection, GANG, "n1", 0)  # type: ignore[arg-type]  # stands for a Connection
        await until(lambda: connection.sent)
        assert connection.sent == ["code"]
        with pytest.raises(BadMessage, match="before it has the one before"):
            pieces.requested(connection, GANG, "n1", 1)  # type: ignore[arg-type]

    asyncio.run(ask())


class BlockedCode(Code):
    """Code that is read once `may_read` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_read = threading.Event()

    def read(self, gang: str, start: int, max_bytes: int) -> CodePiece | None:
        piece = super().read(gang, start, max_bytes)
        assert self.may_read.wait(60)
        return piece


def request(node: str, start: int) -> bytes:
    about = {"v": 2, "type": "get_code", "token": TOKEN, "gang": GANG, "node": node, "generation": 1, "start": start}
    return json.dumps(about).encode() + b"\n"


def is_dropped(controller: Controller) -> bool:
    """Return whether the server has dropped the only connection."""
    return not controller.listener._connections


def test_a_launcher_asks_for_one_piece_at_a_time(listens: ListenFixture, tmp_path: Path) -> None:
    controller, code = listens(context=None), BlockedCode(tmp_path)
    code.serve(controller)
    with socket.create_connection((HOST, controller.port)) as connection:
        connection.sendall(request("n1", 0))
        wait_until(lambda: code.reads == [0], "the first piece is being read")
        connection.sendall(request("n1", 1))
        wait_until(lambda: is_dropped(controller), "the second request is refused")
    code.may_read.set()
    wait_until(lambda: not answering(controller), "the read ends")
    assert code.reads == [0]


def test_a_launcher_that_does_not_read_is_refused_more(listens: ListenFixture, tmp_path: Path) -> None:
    controller, code = listens(context=None), Code(tmp_path)
    code.serve(controller)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((HOST, controller.port))
        for count in range(1, MOST_UNREAD + 1):
            try:
                connection.sendall(request("n1", 0))
            except ConnectionError:
                break
            wait_until(lambda count=count: len(code.reads) == count or is_dropped(controller), "it is read or refused")
            wait_until(lambda: not answering(controller), "the piece is in the buffers")
        assert is_dropped(controller)


def test_nothing_is_read_for_a_launcher_that_is_gone(listens: ListenFixture, tmp_path: Path) -> None:
    controller, code = listens(context=None), BlockedCode(tmp_path)
    code.serve(controller)
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((HOST, controller.port))) for _ in range(3)]
        for number in (0, 1):
            connections[number].sendall(request(f"n{number + 1}", number))
        wait_until(lambda: sorted(code.reads) == [0, 1], f"{MAX_AT_ONCE} pieces are being read")
        connections[2].sendall(request("n3", 2))
        wait_until(lambda: len(answering(controller)) == 3, "the third launcher waits")
        connections[2].close()
        wait_until(lambda: len(controller.listener._connections) == 2, "it is gone")
        code.may_read.set()
        wait_until(lambda: not answering(controller), "all are answered")
    assert sorted(code.reads) == [0, 1]


def answering(controller: Controller) -> set[Connection]:
    assert controller.listener._code is not None
    return controller.listener._code._answering
