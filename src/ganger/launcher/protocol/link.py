"""Connection to the server: newline-delimited JSON over what `dial` returns, reconnected whenever it breaks.

Facts are numbered and kept until the server acknowledges them; other messages are sent only while connected. Nothing
here blocks. The messages are in `messages` and docs/reference/launcher-protocol.md.
"""

from __future__ import annotations

import json
import os
import selectors

from ganger.launcher.logs.log_records import note
from ganger.launcher.protocol.messages import FROM_LAUNCHER, OPTIONAL, REPLACED, SUPERSEDED, TO_LAUNCHER, VERSION
from ganger.launcher.protocol.server_address import BadServerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ganger.launcher.protocol.server_address import Server, ServerConnection

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 1.0
MAX_REMOTE_PAUSE_S = 3.0  # all launchers of a cluster may lose the server at the same time
WELCOME_TIMEOUT_S = 15.0  # of a server on another machine, which may disappear at any moment
READ_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 1 << 20
MAX_REMOTE_MESSAGE_BYTES = 16 << 20  # a message may contain a plan


class Link:
    """The connection; `hello` returns the fields of the first message, `receive` handles all but acknowledgements."""

    def __init__(
        self,
        server: Server,
        selector: selectors.BaseSelector,
        hello: Callable[[], dict[str, Any]],
        receive: Callable[[dict[str, Any]], None],
    ) -> None:
        self.is_up = False  # the server has said welcome
        self.is_remote = server.is_remote  # it shares no disk with the server
        self._server = server
        self._max_bytes = MAX_REMOTE_MESSAGE_BYTES if server.is_remote else MAX_MESSAGE_BYTES
        self._selector = selector
        self._hello = hello
        self._receive = receive
        self._connection: ServerConnection | None = None
        self._error = ""
        self._retry_at = float("-inf")
        self._give_up_at = float("inf")
        self._pause_s = FIRST_PAUSE_S
        self._incoming = bytearray()
        self._outgoing = b""
        self._number = 0
        self._unacknowledged: dict[int, dict[str, Any]] = {}
        self._repeated: list[dict[str, Any]] = []

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return self._retry_at if self._connection is None else self._give_up_at

    @property
    def has_unacknowledged(self) -> bool:
        return bool(self._unacknowledged)

    def send_fact(self, kind: str, **fields: Any) -> None:
        """Send a message, again after each reconnection until it is acknowledged."""
        self._number += 1
        message = _message(kind, n=self._number, **fields)
        if kind in SUPERSEDED and not self.is_up:
            self._discard_older(message)
        self._unacknowledged[self._number] = message
        if self.is_up:
            self._write(message)

    def send_update(self, kind: str, **fields: Any) -> None:
        """Send a message if the server is connected and keeps up."""
        if self.is_up and not self._outgoing:
            self._write(_message(kind, **fields))

    def send_state(self, kind: str, **fields: Any) -> None:
        """Send a message if connected; the caller repeats it after each `welcome`, as long as it holds."""
        if self.is_up:
            self._write(_message(kind, **fields))

    def send_repeated(self, kind: str, **fields: Any) -> None:
        """Send a message if connected, and again after each `welcome`, before the facts that may depend on it.

        Ends when a newer generation repeats messages.
        """
        message = _message(kind, **fields)
        if self._repeated and self._repeated[0]["generation"] != message["generation"]:
            self._repeated.clear()
        if kind in REPLACED:
            self._repeated = [earlier for earlier in self._repeated if earlier["type"] != kind]
        self._repeated.append(message)
        if self.is_up:
            self._write(message)

    def tick(self, now: float) -> None:
        """Connect when it is time to."""
        if self._connection is not None:
            if now >= self._give_up_at:
                self._drop()
            return
        if now < self._retry_at:
            return
        self._retry_at = now + self._pause_s * (_jitter() if self.is_remote else 1)
        self._pause_s = min(2 * self._pause_s, MAX_REMOTE_PAUSE_S if self.is_remote else MAX_PAUSE_S)
        try:
            self._connection = self._server.dial()
        except (OSError, ValueError, BadServerError) as error:  # ValueError: an invalid host name
            self._note_error(error)
        if self._connection is None:
            return
        self._incoming.clear()
        self._outgoing = b""
        self._give_up_at = now + WELCOME_TIMEOUT_S if self.is_remote else float("inf")
        self._selector.register(self._connection.fileno(), self._connection.wants, self._ready)
        if self._connection.is_open:
            self._write(_message("hello", **self._hello()))

    def close(self) -> None:
        self._drop()

    def _discard_older(self, newer: dict[str, Any]) -> None:
        numbers = [
            number
            for number, message in self._unacknowledged.items()
            if message["type"] == newer["type"] and message["generation"] == newer["generation"]
        ]
        for number in numbers:
            del self._unacknowledged[number]

    def _ready(self) -> None:
        connection = self._connection
        if connection is not None and not connection.is_open:
            self._open(connection)
            return
        if self._outgoing:
            self._flush()
        while (
            connection is not None and connection is self._connection and self._read(connection) and connection.has_more
        ):
            pass

    def _open(self, connection: ServerConnection) -> None:
        try:
            connection.proceed()
        except (OSError, ValueError) as error:
            self._note_error(error)
            self._drop()
            return
        if connection.is_open:
            self._write(_message("hello", **self._hello()))
        else:
            self._selector.modify(connection.fileno(), connection.wants, self._ready)

    def _read(self, connection: ServerConnection) -> bool:
        """Read once; return False if nothing arrived."""
        try:
            data = connection.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._drop()
            return False
        self._incoming += data
        if b"\n" in data:
            *messages, rest = self._incoming.split(b"\n")
            self._incoming = rest
            for message in messages:
                self._handle(bytes(message))
        if len(self._incoming) > self._max_bytes:
            note(f"the server sent a message of more than {self._max_bytes} bytes: reconnecting")
            self._drop()
        return True

    def _handle(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind, version = message["type"], message["v"]
            fields = {name: message[name] for name in TO_LAUNCHER.get(kind, ()) if name not in OPTIONAL}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            note(f"ignored an invalid message: {line[:200]!r} ({error!r})")
            return
        if version != VERSION:
            note(f"ignored a message of version {version!r} of the protocol; this launcher speaks version {VERSION}")
        elif kind == "welcome":
            self._welcomed()
            self._receive(message)
        elif kind == "ack":
            self._acknowledged(fields["n"])
        elif kind in TO_LAUNCHER:
            self._receive(message)

    def _welcomed(self) -> None:
        self.is_up = True
        self._error = ""
        self._give_up_at = float("inf")
        for message in [*self._repeated, *self._unacknowledged.values()]:
            self._write(message)

    def _acknowledged(self, number: object) -> None:
        """Forget everything up to `number`.

        A server that refuses a message drops the connection after each welcome, so only an acknowledgement resets the
        pause before the next attempt.
        """
        if isinstance(number, int):
            self._pause_s = FIRST_PAUSE_S
            self._unacknowledged = {
                sent_number: message for sent_number, message in self._unacknowledged.items() if sent_number > number
            }

    def _write(self, message: dict[str, Any]) -> None:
        # A lone surrogate, for example of a path that is not UTF-8, is not valid text for the server.
        line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        if len(line) > MAX_MESSAGE_BYTES:
            note(f"dropped {message['type']}: it has {len(line)} bytes, the server accepts {MAX_MESSAGE_BYTES}")
            self._unacknowledged.pop(message.get("n", 0), None)
            return
        self._outgoing += line
        self._flush()

    def _flush(self) -> None:
        if self._connection is None:
            return
        try:
            sent = self._connection.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop()
            return
        self._outgoing = self._outgoing[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(self._connection.fileno(), events, self._ready)

    def _drop(self) -> None:
        self.is_up = False
        if self._connection is not None:
            self._selector.unregister(self._connection.fileno())
            self._connection.close()
            self._connection = None

    def _note_error(self, error: Exception) -> None:
        """Log an error once while it stays the same: it recurs with each attempt."""
        if self._error != str(error):
            self._error = str(error)
            note(f"cannot reach the server: {error}")


class MessageSender:
    """The link as used by one generation: adds gang, node and generation to its messages."""

    def __init__(self, link: Link, identity: dict[str, Any]) -> None:
        self.is_remote = link.is_remote
        self._link = link
        self._identity = identity

    @property
    def is_up(self) -> bool:
        """True while the server listens: it has said welcome."""
        return self._link.is_up

    def send_fact(self, kind: str, **fields: Any) -> None:
        self._link.send_fact(kind, **self._identity, **fields)

    def send_repeated(self, kind: str, **fields: Any) -> None:
        self._link.send_repeated(kind, **self._identity, **fields)

    def send_update(self, kind: str, **fields: Any) -> None:
        self._link.send_update(kind, **self._identity, **fields)

    def send_state(self, kind: str, **fields: Any) -> None:
        self._link.send_state(kind, **self._identity, **fields)


def _jitter() -> float:
    """Return a random factor for a pause, so that not all launchers connect at once."""
    return 0.5 + os.urandom(1)[0] / 512


def _message(kind: str, **fields: Any) -> dict[str, Any]:
    unknown = [name for name in fields if name not in (*FROM_LAUNCHER[kind], "gang", "node", "generation", "n")]
    if unknown:
        raise ValueError(f"{kind} has no field {unknown[0]!r}")
    return {"v": VERSION, "type": kind, **fields}
