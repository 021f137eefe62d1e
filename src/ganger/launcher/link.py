"""The connection to the server: newline-delimited JSON over a unix socket, made again whenever it breaks.

Facts are numbered and kept until the server acknowledges them; the rest is said only while somebody listens. Nothing
here ever waits. Used by `runtime`; the messages are in `protocol` and docs/launcher-protocol.md.
"""

from __future__ import annotations

import json
import selectors
import socket

from ganger.launcher.logs import note
from ganger.launcher.protocol import FROM_LAUNCHER, SUPERSEDED, TO_LAUNCHER, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
READ_BYTES = 64 * 1024
LONGEST_MESSAGE_BYTES = 1 << 20


class Link:
    """`hello` gives the fields of the first message; `receive` gets every message but acknowledgements."""

    def __init__(
        self,
        path: str,
        selector: selectors.BaseSelector,
        hello: Callable[[], dict[str, Any]],
        receive: Callable[[dict[str, Any]], None],
    ) -> None:
        self.is_up = False  # the server has said welcome
        self._path = path
        self._selector = selector
        self._hello = hello
        self._receive = receive
        self._socket: socket.socket | None = None
        self._retry_at = float("-inf")
        self._pause_s = FIRST_PAUSE_S
        self._incoming = b""
        self._outgoing = b""
        self._number = 0
        self._unacknowledged: dict[int, dict[str, Any]] = {}

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        return self._retry_at if self._socket is None else float("inf")

    @property
    def has_unacknowledged(self) -> bool:
        return bool(self._unacknowledged)

    def fact(self, kind: str, **fields: Any) -> None:
        """Send now or when the server is there, again and again until it is acknowledged."""
        self._number += 1
        message = _message(kind, n=self._number, **fields)
        if kind in SUPERSEDED and not self.is_up:
            self._forget_older(message)
        self._unacknowledged[self._number] = message
        if self.is_up:
            self._write(message)

    def say(self, kind: str, **fields: Any) -> None:
        """Send if the server listens and keeps up."""
        if self.is_up and not self._outgoing:
            self._write(_message(kind, **fields))

    def state(self, kind: str, **fields: Any) -> None:
        """Send if the server is there. The caller repeats it after each `welcome`, for as long as it holds."""
        if self.is_up:
            self._write(_message(kind, **fields))

    def tick(self, now: float) -> None:
        """Connect when it is time to."""
        if self._socket is not None or now < self._retry_at:
            return
        self._retry_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        connection = _connect(self._path)
        if connection is None:
            return
        self._socket = connection
        self._incoming = self._outgoing = b""
        self._selector.register(connection, selectors.EVENT_READ, self._ready)
        self._write(_message("hello", **self._hello()))

    def close(self) -> None:
        self._drop()

    def _forget_older(self, newer: dict[str, Any]) -> None:
        same = [
            number
            for number, message in self._unacknowledged.items()
            if message["type"] == newer["type"] and message["generation"] == newer["generation"]
        ]
        for number in same:
            del self._unacknowledged[number]

    def _ready(self) -> None:
        if self._outgoing:
            self._flush()
        if self._socket is None:
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop()
            return
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._incoming) > LONGEST_MESSAGE_BYTES:
            note(f"the server sent a message of more than {LONGEST_MESSAGE_BYTES} bytes: connecting anew")
            self._drop()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind, version = message["type"], message["v"]
            fields = {name: message[name] for name in TO_LAUNCHER.get(kind, ())}
        except (ValueError, TypeError, KeyError) as error:
            note(f"ignored what is no message: {line[:200]!r} ({error!r})")
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
        self._pause_s = FIRST_PAUSE_S
        for message in list(self._unacknowledged.values()):
            self._write(message)

    def _acknowledged(self, number: object) -> None:
        """Everything up to and with `number`."""
        if isinstance(number, int):
            self._unacknowledged = {n: message for n, message in self._unacknowledged.items() if n > number}

    def _write(self, message: dict[str, Any]) -> None:
        self._outgoing += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop()
            return
        self._outgoing = self._outgoing[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(self._socket, events, self._ready)

    def _drop(self) -> None:
        self.is_up = False
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None


class Speaker:
    """The link as one generation uses it: its messages say what they are about."""

    def __init__(self, link: Link, about: dict[str, Any]) -> None:
        self._link = link
        self._about = about

    def fact(self, kind: str, **fields: Any) -> None:
        """Link.fact."""
        self._link.fact(kind, **self._about, **fields)

    def say(self, kind: str, **fields: Any) -> None:
        """Link.say."""
        self._link.say(kind, **self._about, **fields)

    def state(self, kind: str, **fields: Any) -> None:
        """Link.state."""
        self._link.state(kind, **self._about, **fields)


def _connect(path: str) -> socket.socket | None:
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None  # too many open files
    try:
        connection.setblocking(False)
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _message(kind: str, **fields: Any) -> dict[str, Any]:
    unknown = [name for name in fields if name not in (*FROM_LAUNCHER[kind], "gang", "node", "generation", "n")]
    if unknown:
        raise ValueError(f"{kind} has no field {unknown[0]!r}")
    return {"v": VERSION, "type": kind, **fields}
