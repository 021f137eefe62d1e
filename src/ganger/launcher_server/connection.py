"""The server's side of a launcher connection: newline-delimited JSON (docs/reference/launcher-protocol.md).

A launcher authenticates with the token of its task directory; from then on its messages are passed to the listener,
which interprets them. Everything here runs on the event loop.
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

VERSION: Final = 2
LINE_LIMIT_BYTES: Final = 1 << 20
HELLO_LIMIT_BYTES: Final = 64 << 10
"""Limit for peers that have not presented a token yet."""
SEND_LIMIT_BYTES: Final = 16 << 20
HELLO_TIMEOUT_S: Final = 10.0
CODE_TIMEOUT_S: Final = 60.0
"""Time within which a launcher that fetches code has to ask for the next piece."""
_BACKLOG: Final = 1024

PERMANENT_ERRORS: Final = ("bad_text", "bad_event")
"""Error codes of events that are refused however often they are sent."""

MAX_COMPLAINTS: Final = 1_000

_log = logging.getLogger(__name__)
_complaints: set[str] = set()


@dataclass(frozen=True, slots=True)
class Hello:
    """Identity of a connected launcher.

    generations: those of which it still has something
    generation: the one it was started for; 0 for an older launcher, which does not tell
    address: where its node can be reached, if known
    """

    gang: str
    node: str
    process: Process
    generations: tuple[int, ...]
    generation: int = 0
    address: str | None = None


class Listener(Protocol):
    """Receiver of connection events and messages."""

    def connected(self, connection: "Connection") -> None:
        """Handle a new connection, which is not authenticated yet."""

    def launcher_connected(self, connection: "Connection", hello: Hello) -> None:
        """Handle a launcher that has presented its token."""

    def message_received(self, connection: "Connection", hello: Hello, message: dict[str, Any]) -> None:
        """Handle a message that fits `message_schema`; raise BadMessage to refuse it."""

    def message_refused(self, hello: Hello, reason: str) -> None:
        """Handle the refusal of a launcher's message: the connection is dropped, and the launcher repeats it."""

    def launcher_disconnected(self, connection: "Connection") -> None:
        """Handle the end of a connection, after all messages received over it."""


class PeerListener(Listener, Protocol):
    """Receiver of everything that authenticated peers send, also before they identify themselves as launchers."""

    def code_requested(self, connection: "Connection", gang: str, node: str, start: int) -> None:
        """Handle a request for the code of a gang, from byte `start` on, with the token of its launcher on a node.

        Raises BadMessage to refuse it.
        """


TokenOf = Callable[[str, str, int], str | None]
"""Returns the token of the launcher of (gang, node, generation), None if there is none.

May raise ValueError for invalid names.
"""


class Connection(asyncio.Protocol):
    """One launcher's connection; `hello` is set once it has presented its token."""

    def __init__(self, listener: PeerListener, token_of: TokenOf) -> None:
        self._listener = listener
        self._token_of = token_of
        self._pending = bytearray()
        self.hello: Hello | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unacknowledged: deque[tuple[int, Future[int] | None, Callable[[], None]]] = deque()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message unless the launcher has disconnected; raise ValueError if it exceeds the limit."""
        line = json.dumps({"v": VERSION, "type": kind, **fields}).encode() + b"\n"
        if len(line) > SEND_LIMIT_BYTES:
            raise ValueError(f"{kind} takes {len(line)} bytes; a launcher takes at most {SEND_LIMIT_BYTES}")
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)

    @property
    def has_unsent(self) -> bool:
        """True while the launcher has not read all that was sent, as far as this process knows."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def keep_alive(self, options: Iterable[tuple[int, int]], unsent_ms: int) -> None:
        """Have the system detect a peer that vanishes without closing the connection; `options` are those of TCP."""
        tcp_socket = None if self._transport is None else self._transport.get_extra_info("socket")
        if tcp_socket is not None:
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unsent_ms)
            for option, value in options:
                tcp_socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        """Drop the connection; the launcher reconnects, and repeats what was not acknowledged."""
        if self._transport is not None:
            self._transport.abort()

    def acknowledge(self, number: int, durable: Future[int] | None, on_acknowledged: Callable[[], None]) -> None:
        """Acknowledge message `number` as soon as it is durable, at once if there is nothing to wait for.

        An acknowledgement covers all earlier messages too, so none is sent before an earlier message is durable.
        `on_acknowledged` of the last of these is called once it is sent; never if the connection is lost before.
        """
        self._unacknowledged.append((number, durable, on_acknowledged))
        if durable is None:
            self._send_acknowledgement()
        else:
            durable.add_done_callback(self._schedule_acknowledgement)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio gives stream protocols a transport that writes
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(HELLO_TIMEOUT_S, self.close)
        self._listener.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self.hello is not None:
            _log.debug(
                "the connection of %s on %s is lost: %s", self.hello.gang, self.hello.node, exc or "it was closed"
            )
        self._listener.launcher_disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        lines: list[bytearray] = []
        if b"\n" in data:
            *lines, self._pending = self._pending.split(b"\n")
        try:
            for line in lines:
                if self._transport is None or self._transport.is_closing():
                    return
                self._handle_line(line)
            limit = HELLO_LIMIT_BYTES if self.hello is None else LINE_LIMIT_BYTES
            if len(self._pending) > limit:
                raise BadMessage(f"a message of more than {limit} bytes")
        except Exception as error:  # noqa: BLE001 - one launcher's message must not end the server of all
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Drop the connection without an acknowledgement."""
        hello, reason = self.hello, str(error) if isinstance(error, ValueError) else repr(error)
        self.close()
        if hello is None:
            self._log_once(reason, reason)
            return
        launcher = f"{hello.gang} on {hello.node}, attempt {hello.generation}"
        self._log_once(f"{launcher}: {reason}", launcher, None if isinstance(error, ValueError) else error)
        self._listener.message_refused(hello, reason)

    def _log_once(self, reason: str, source: str, fault: Exception | None = None) -> None:
        """Log a dropped connection once per `source`, since the launcher reconnects; `fault` is the server's own."""
        if source not in _complaints:
            if len(_complaints) >= MAX_COMPLAINTS:
                _complaints.clear()
            _complaints.add(source)
            text = "dropped a launcher's connection: %s; not logged again while it repeats"
            _log.warning(text, reason, exc_info=fault)

    def _schedule_acknowledgement(self, durable: Future[int]) -> None:
        """Acknowledge from the thread that made the message durable, which may outlive the event loop."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._send_acknowledgement)

    def _send_acknowledgement(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # the launcher repeats what was not acknowledged
        number, on_acknowledged = 0, None
        while self._unacknowledged and (self._unacknowledged[0][1] is None or self._unacknowledged[0][1].done()):
            number, durable, on_acknowledged = self._unacknowledged.popleft()
            if durable is not None and (durable.cancelled() or (error := durable.exception())):
                if not durable.cancelled() and getattr(error, "code", "") in PERMANENT_ERRORS:
                    self._refuse(BadMessage(str(error)))
                _log.debug("message %d is not durable, and its launcher dropped to repeat it", number)
                self.close()
                return
        if on_acknowledged is not None:
            self.send("ack", n=number)
            on_acknowledged()

    def _handle_line(self, line: bytearray) -> None:
        if self.hello is not None:
            message = message_schema.message(line)
            if (message["gang"], message["node"]) != (self.hello.gang, self.hello.node):
                raise BadMessage(f"{message['type']}: the message is about another task than its connection")
            self._listener.message_received(self, self.hello, message)
            return
        first = message_schema.first_message(line)
        self._authenticate(first)
        if self._deadline is not None:
            self._deadline.cancel()
        if first["type"] == "get_code":
            self._deadline = self._loop.call_later(CODE_TIMEOUT_S, self.close)
            self._listener.code_requested(self, first["gang"], first["node"], first["start"])
            return
        self.hello = _hello(first)
        self._listener.launcher_connected(self, self.hello)

    def _authenticate(self, message: dict[str, Any]) -> None:
        gang, node, generation = message["gang"], message["node"], message["generation"]
        token = self._token_of(gang, node, generation)
        if token is None or not hmac.compare_digest(message["token"].encode(), token.encode()):
            raise BadMessage(f"wrong token for attempt {generation} of {gang} on {node}")


def _hello(message: dict[str, Any]) -> Hello:
    return Hello(
        message["gang"],
        message["node"],
        Process(message["pid"], message["start_ticks"]),
        generations=tuple(message["generations"]),
        generation=message["generation"],
        address=message["address"],
    )


def listen(path: Path) -> socket.socket:
    """Open a socket at `path` for this user only, replacing one that a dead server left; raise OSError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} exists and is not a socket: move it elsewhere")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
