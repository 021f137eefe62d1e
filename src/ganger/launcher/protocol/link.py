"""The connection to the server: newline-delimited JSON over what `dial` gives, made again whenever it breaks.

Facts are numbered and kept until the server acknowledges them; the rest is said only while somebody listens. Nothing
here ever waits. Used by `runtime`; the messages are in `protocol` and docs/reference/launcher-protocol.md.
"""

from __future__ import annotations

import json
import os
import selectors

from ganger.launcher.logs.log_records import note
from ganger.launcher.protocol.messages import FROM_LAUNCHER, OPTIONAL, SUPERSEDED, TO_LAUNCHER, VERSION
from ganger.launcher.protocol.server_address import BadServerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ganger.launcher.protocol.server_address import Line, Server

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
LONGEST_REMOTE_PAUSE_S = 3.0  # all the launchers of a cluster may be without their server at once
WELCOME_WITHIN_S = 15.0  # of a server on another machine, which may vanish at any moment
READ_BYTES = 64 * 1024
LONGEST_MESSAGE_BYTES = 1 << 20
LONGEST_REMOTE_MESSAGE_BYTES = 16 << 20  # a plan comes over the wire


class Link:
    """`hello` gives the fields of the first message; `receive` gets every message but acknowledgements."""

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
        self._longest_bytes = LONGEST_REMOTE_MESSAGE_BYTES if server.is_remote else LONGEST_MESSAGE_BYTES
        self._selector = selector
        self._hello = hello
        self._receive = receive
        self._line: Line | None = None
        self._trouble = ""
        self._retry_at = float("-inf")
        self._give_up_at = float("inf")
        self._pause_s = FIRST_PAUSE_S
        self._incoming = bytearray()
        self._outgoing = b""
        self._number = 0
        self._unacknowledged: dict[int, dict[str, Any]] = {}
        self._kept: list[dict[str, Any]] = []

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        return self._retry_at if self._line is None else self._give_up_at

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

    def keep(self, kind: str, **fields: Any) -> None:
        """Send if the server is there, and after each `welcome`, before the facts, which may have a meaning only by
        that; until a newer generation has something to keep."""
        message = _message(kind, **fields)
        if self._kept and self._kept[0]["generation"] != message["generation"]:
            self._kept.clear()
        self._kept.append(message)
        if self.is_up:
            self._write(message)

    def tick(self, now: float) -> None:
        """Connect when it is time to."""
        if self._line is not None:
            if now >= self._give_up_at:
                self._drop()
            return
        if now < self._retry_at:
            return
        self._retry_at = now + self._pause_s * (_share() if self.is_remote else 1)
        self._pause_s = min(2 * self._pause_s, LONGEST_REMOTE_PAUSE_S if self.is_remote else LONGEST_PAUSE_S)
        try:
            self._line = self._server.dial()
        except (OSError, ValueError, BadServerError) as error:  # a name may be none
            self._note_trouble(error)
        if self._line is None:
            return
        self._incoming.clear()
        self._outgoing = b""
        self._give_up_at = now + WELCOME_WITHIN_S if self.is_remote else float("inf")
        self._selector.register(self._line.fileno(), self._line.wants, self._ready)
        if self._line.is_open:
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
        line = self._line
        if line is not None and not line.is_open:
            self._open(line)
            return
        if self._outgoing:
            self._flush()
        while line is not None and line is self._line and self._read(line) and line.has_more:
            pass

    def _open(self, line: Line) -> None:
        try:
            line.proceed()
        except (OSError, ValueError) as error:
            self._note_trouble(error)
            self._drop()
            return
        if line.is_open:
            self._write(_message("hello", **self._hello()))
        else:
            self._selector.modify(line.fileno(), line.wants, self._ready)

    def _read(self, line: Line) -> bool:
        """False when nothing came."""
        try:
            data = line.recv(READ_BYTES)
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
                self._take(bytes(message))
        if len(self._incoming) > self._longest_bytes:
            note(f"the server sent a message of more than {self._longest_bytes} bytes: connecting anew")
            self._drop()
        return True

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind, version = message["type"], message["v"]
            fields = {name: message[name] for name in TO_LAUNCHER.get(kind, ()) if name not in OPTIONAL}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
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
        self._trouble = ""
        self._give_up_at = float("inf")
        for message in [*self._kept, *self._unacknowledged.values()]:
            self._write(message)

    def _acknowledged(self, number: object) -> None:
        """Everything up to and with `number`. A server that refuses a message drops the connection after each welcome,
        so that only now the next connection may be tried at once."""
        if isinstance(number, int):
            self._pause_s = FIRST_PAUSE_S
            self._unacknowledged = {n: message for n, message in self._unacknowledged.items() if n > number}

    def _write(self, message: dict[str, Any]) -> None:
        # A lone surrogate, say of a path that is no UTF-8, is no text to the server.
        line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        if len(line) > LONGEST_MESSAGE_BYTES:
            note(f"left out {message['type']}: it takes {len(line)} bytes, the server takes {LONGEST_MESSAGE_BYTES}")
            self._unacknowledged.pop(message.get("n", 0), None)
            return
        self._outgoing += line
        self._flush()

    def _flush(self) -> None:
        if self._line is None:
            return
        try:
            sent = self._line.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop()
            return
        self._outgoing = self._outgoing[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(self._line.fileno(), events, self._ready)

    def _drop(self) -> None:
        self.is_up = False
        if self._line is not None:
            self._selector.unregister(self._line.fileno())
            self._line.close()
            self._line = None

    def _note_trouble(self, error: Exception) -> None:
        """Once, while it stays the same: it comes again with each attempt."""
        if self._trouble != str(error):
            self._trouble = str(error)
            note(f"the server cannot be reached: {error}")


class Speaker:
    """The link as one generation uses it: its messages say what they are about."""

    def __init__(self, link: Link, about: dict[str, Any]) -> None:
        self.is_remote = link.is_remote
        self._link = link
        self._about = about

    def fact(self, kind: str, **fields: Any) -> None:
        """Link.fact."""
        self._link.fact(kind, **self._about, **fields)

    def keep(self, kind: str, **fields: Any) -> None:
        """Link.keep."""
        self._link.keep(kind, **self._about, **fields)

    def say(self, kind: str, **fields: Any) -> None:
        """Link.say."""
        self._link.say(kind, **self._about, **fields)

    def state(self, kind: str, **fields: Any) -> None:
        """Link.state."""
        self._link.state(kind, **self._about, **fields)


def _share() -> float:
    """A random part of a pause, so that not all launchers come at once."""
    return 0.5 + os.urandom(1)[0] / 512


def _message(kind: str, **fields: Any) -> dict[str, Any]:
    unknown = [name for name in fields if name not in (*FROM_LAUNCHER[kind], "gang", "node", "generation", "n")]
    if unknown:
        raise ValueError(f"{kind} has no field {unknown[0]!r}")
    return {"v": VERSION, "type": kind, **fields}
