"""The server's side of the launcher protocol: newline-delimited JSON over any transport
(docs/reference/launcher-protocol.md).

A launcher is let in with the token of its task directory; from then on what it says is handed to the listener, which
owns all meaning. Everything here runs on the event loop.
"""

import asyncio
import hmac
import json
import logging
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ganger.launcher_server import message_schema
from ganger.launcher_server.launcher_process import Process
from ganger.launcher_server.message_schema import BadMessage

VERSION: Final = 1
LINE_LIMIT_BYTES: Final = 1 << 20
HELLO_LIMIT_BYTES: Final = 64 << 10
"""Of what comes from somebody who has yet to show a token."""
SEND_LIMIT_BYTES: Final = 16 << 20
HELLO_WITHIN_S: Final = 10.0
_BACKLOG: Final = 1024

FOR_EVER: Final = ("bad_text", "bad_event")
"""Codes of events that are not taken however often they come."""

COMPLAINTS_KEPT: Final = 1_000

_log = logging.getLogger(__name__)
_complaints: set[str] = set()


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks: a launcher's task, its process, the generations it still has something of, and the one it was started
    for (0: an older launcher does not say); address: where its node can be reached, if it knows."""

    gang: str
    node: str
    process: Process
    generations: tuple[int, ...]
    generation: int = 0
    address: str | None = None


class Listener(Protocol):
    """Who is told what comes in."""

    def connected(self, connection: "Connection") -> None:
        """Somebody is there, who has yet to say who."""

    def greeted(self, connection: "Connection", hello: Hello) -> None:
        """A launcher has shown its token."""

    def heard(self, connection: "Connection", hello: Hello, message: dict[str, Any]) -> None:
        """It said something, which fits `message_schema`. A BadMessage refuses it."""

    def refused(self, hello: Hello, why: str) -> None:
        """A message of a launcher was refused, and its connection is dropped; it comes again and repeats itself."""

    def parted(self, connection: "Connection") -> None:
        """The connection is gone, after everything that had come over it was heard."""


TokenOf = Callable[[str, str], str | None]
"""The token of the task of (gang, node); None when there is none. May raise ValueError for what is no name."""


class Connection(asyncio.Protocol):
    """One launcher's connection. `hello` is there once it has shown its token."""

    def __init__(self, listener: Listener, token_of: TokenOf) -> None:
        self._listener = listener
        self._token_of = token_of
        self._pending = bytearray()
        self.hello: Hello | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._owed: deque[tuple[int, Future[int] | None, Callable[[], None]]] = deque()

    def send(self, kind: str, **fields: Any) -> None:
        """Say something to the launcher; nothing happens when it has gone meanwhile. ValueError when it is more than a
        launcher takes."""
        line = json.dumps({"v": VERSION, "type": kind, **fields}).encode() + b"\n"
        if len(line) > SEND_LIMIT_BYTES:
            raise ValueError(f"{kind} takes {len(line)} bytes; a launcher takes at most {SEND_LIMIT_BYTES}")
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)

    def keep_alive(self, options: Iterable[tuple[int, int]], unsent_ms: int) -> None:
        """Have the system notice when whoever is there vanishes without a word. `options` are those of TCP."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unsent_ms)
            for option, value in options:
                found.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        """Drop the connection. The launcher tries again, and repeats what was not acknowledged."""
        if self._transport is not None:
            self._transport.abort()

    def acknowledge(self, number: int, durable: Future[int] | None, acknowledged: Callable[[], None]) -> None:
        """Let the launcher forget message `number` as soon as it is durable; at once when there is nothing to wait for.
        An acknowledgement speaks for all messages before it too, so none goes out ahead of an earlier one. Call
        `acknowledged` of the last of these once it is sent; never if the connection is gone by then."""
        self._owed.append((number, durable, acknowledged))
        if durable is None:
            self._settle()
        else:
            durable.add_done_callback(self._settle_soon)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio gives stream protocols a transport that writes
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(HELLO_WITHIN_S, self.close)
        self._listener.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.parted(self)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        lines: list[bytearray] = []
        if b"\n" in data:
            *lines, self._pending = self._pending.split(b"\n")
        try:
            for line in lines:
                if self._transport is None or self._transport.is_closing():
                    return
                self._line(line)
            limit = HELLO_LIMIT_BYTES if self.hello is None else LINE_LIMIT_BYTES
            if len(self._pending) > limit:
                raise BadMessage(f"a message of more than {limit} bytes")
        except Exception as error:  # noqa: BLE001 - one launcher's message must not end what serves all of them
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Drop the connection without an acknowledgement."""
        hello, why = self.hello, str(error) if isinstance(error, ValueError) else repr(error)
        self.close()
        if hello is None:
            self._complain(why, why)
            return
        who = f"{hello.gang} on {hello.node}, attempt {hello.generation}"
        self._complain(f"{who}: {why}", who, None if isinstance(error, ValueError) else error)
        self._listener.refused(hello, why)

    def _complain(self, why: str, of: str, fault: Exception | None = None) -> None:
        """Log `why` once for each `of`, since a launcher that is dropped comes again each second. `fault` is a defect
        of the server's own."""
        if of not in _complaints:
            if len(_complaints) >= COMPLAINTS_KEPT:
                _complaints.clear()
            _complaints.add(of)
            said = "dropped a launcher's connection: %s; it is not said again while that goes on"
            _log.warning(said, why, exc_info=fault)

    def _settle_soon(self, durable: Future[int]) -> None:
        """Called on the thread that made the message durable, which may outlive the event loop."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # the launcher says again what was not acknowledged
        number, acknowledged = 0, None
        while self._owed and (self._owed[0][1] is None or self._owed[0][1].done()):
            number, durable, acknowledged = self._owed.popleft()
            if durable is not None and (durable.cancelled() or (error := durable.exception())):
                if not durable.cancelled() and getattr(error, "code", "") in FOR_EVER:
                    self._refuse(BadMessage(str(error)))
                self.close()  # it comes again, and says it again
                return
        if acknowledged is not None:
            self.send("ack", n=number)
            acknowledged()

    def _line(self, line: bytearray) -> None:
        if self.hello is not None:
            message = message_schema.message(line)
            if (message["gang"], message["node"]) != (self.hello.gang, self.hello.node):
                raise BadMessage(f"{message['type']}: the message is about another task than its connection")
            self._listener.heard(self, self.hello, message)
            return
        self.hello = self._let_in(message_schema.hello(line))
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.greeted(self, self.hello)

    def _let_in(self, message: dict[str, Any]) -> Hello:
        gang, node = message["gang"], message["node"]
        token = self._token_of(gang, node)
        if token is None or not hmac.compare_digest(message["token"].encode(), token.encode()):
            raise BadMessage(f"wrong token for {gang} on {node}")
        return Hello(
            gang,
            node,
            Process(message["pid"], message["start_ticks"]),
            generations=tuple(message["generations"]),
            generation=message["generation"],
            address=message["address"],
        )


def listen(path: Path) -> socket.socket:
    """A socket at `path` for this user alone; one that a dead server left is replaced. OSError when it cannot be."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is in the way: it is not a socket; move it elsewhere")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
