"""The code of a job as the server has it, received before the launcher identifies itself, and unpacked (`main`).

Pieces are requested one after the other over a connection of its own, with the token of the launcher. While the server
is away, or cannot read the code, the launcher tries again, from where it was.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import sys
import time

from ganger.launcher.protocol.messages import VERSION
from ganger.launcher.protocol.server_address import BadServerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from ganger.launcher.protocol.server_address import Server, ServerConnection

GIVE_UP_S = 600.0  # without a piece; as a launcher that has neither a rank nor a server
ANSWER_TIMEOUT_S = 30.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 3.0
MAX_ARCHIVE_BYTES = 128 << 20
MAX_LINE_BYTES = 1 << 20
READ_BYTES = 64 * 1024


class NoCodeError(Exception):
    """The server has no such code; the text is one sentence."""


class ServerAwayError(Exception):
    """The server could not be reached for too long."""


def receive_code(server: Server, identity: tuple[str, str, int], token_file: str, path: str) -> None:
    """Write the code of a job to a file. Raises NoCodeError, ServerAwayError, and OSError for the file.

    SIGTERM ends the process: nothing runs here yet, and process 1 of a container would ignore it.
    """
    former = signal.signal(signal.SIGTERM, _end)
    try:
        with open(path, "wb") as file:
            _receive_all(server, identity, token_file, file)
    finally:
        signal.signal(signal.SIGTERM, former)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def _receive_all(server: Server, identity: tuple[str, str, int], token_file: str, file: BinaryIO) -> None:
    give_up_at, pause_s, written = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S, 0
    while True:
        try:
            _receive(server, identity, token_file, file)
            return
        except _FailedExchangeError as error:
            if file.tell() > written:
                give_up_at, pause_s, written = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S, file.tell()
            elif time.monotonic() >= give_up_at:
                raise ServerAwayError(f"no server has sent the code of the job: {error}") from None
        time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 512))
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


class _FailedExchangeError(Exception):
    """An exchange with the server that may succeed later."""


def _receive(server: Server, identity: tuple[str, str, int], token_file: str, file: BinaryIO) -> None:
    """Append the pieces that are missing to the file."""
    gang, node, generation = identity
    exchange = None
    try:
        exchange = _dial(server)
        about = {"token": _token(token_file), "gang": gang, "node": node, "generation": generation}
        while True:
            message = exchange.ask({"v": VERSION, "type": "get_code", "start": file.tell(), **about})
            if message.get("type") == "no_code":
                raise NoCodeError(str(message.get("detail", ""))[:1000])
            content, end = base64.b64decode(message["data"], validate=True), message["end"]
            if message["start"] != file.tell() or not isinstance(end, int) or end < file.tell() + len(content):
                raise ValueError("another piece than the next one")
            if end > MAX_ARCHIVE_BYTES:
                raise NoCodeError(f"it has {end} bytes; the limit is {MAX_ARCHIVE_BYTES}")
            file.write(content)
            if file.tell() == end:
                return
            if not content:
                raise ValueError("an empty piece")
    except (BadServerError, ConnectionError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _FailedExchangeError(str(error) or type(error).__name__) from None
    finally:
        if exchange is not None:
            exchange.close()


def _token(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise BadServerError(f"cannot read the token for the server: {error}") from None


def _dial(server: Server) -> _Exchange:
    """Return an open connection. Raises ConnectionError and BadServerError."""
    exchange = None
    try:
        connection = server.dial()
        if connection is None:
            raise ConnectionError("there is nothing to connect to")
        exchange = _Exchange(connection)
        exchange.open()
    except OSError as error:
        if exchange is not None:
            exchange.close()
        raise ConnectionError(str(error)) from None
    return exchange


class _Exchange:
    """A connection over which messages are answered one by one. Raises ConnectionError."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._pending = bytearray()
        self._deadline = time.monotonic() + ANSWER_TIMEOUT_S
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection.fileno(), connection.wants)

    def open(self) -> None:
        """Wait until the connection is open."""
        while not self._connection.is_open:
            self._wait(self._connection.wants)
            self._connection.proceed()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Raises ValueError if that is none."""
        self._deadline = time.monotonic() + ANSWER_TIMEOUT_S
        try:
            self._send(json.dumps(message).encode() + b"\n")
            answer = json.loads(self._line())
        except OSError as error:
            raise ConnectionError(str(error)) from None
        if not isinstance(answer, dict) or answer.get("v") != VERSION:
            raise ValueError("an answer of another version")
        return answer

    def close(self) -> None:
        self._selector.close()
        self._connection.close()

    def _send(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._connection.send(data) :]
            except BlockingIOError:
                self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _line(self) -> bytes:
        while b"\n" not in self._pending:
            if len(self._pending) > MAX_LINE_BYTES:
                raise ValueError("an answer that is too long")
            try:
                data = self._connection.recv(READ_BYTES)
            except BlockingIOError:
                self._wait(selectors.EVENT_READ)
                continue
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return bytes(line)

    def _wait(self, events: int) -> None:
        remaining_s = self._deadline - time.monotonic()
        self._selector.modify(self._connection.fileno(), events)
        if remaining_s <= 0 or not self._selector.select(remaining_s):
            raise ConnectionError(f"the server has not replied for {ANSWER_TIMEOUT_S:g} s")
