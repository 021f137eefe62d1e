"""HTTP over a unix socket, or to another machine: one request for each connection, problem details as `ClientError`.

http.client is imported with the first request, because it costs more than the rest of a short command.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ganger.client.client_errors import (
    NOT_FOUND,
    REFUSED,
    UNREACHABLE,
    USAGE,
    ClientError,
    client_error,
    timed_out,
    unreachable,
)

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from http.client import HTTPResponse

PREFIX: Final = "/api/v1"
ANSWER_S: Final = 60.0
"""The timeout of a plain request."""
SUBMIT_S: Final = 600.0
"""The timeout of a submission: the code directory is copied first."""
_READ_BYTES: Final = 64 << 10
_EXIT_CODES: Final = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND, 409: REFUSED, 507: REFUSED}
_OF_THE_STATE: Final = frozenset(
    ("already_ended", "conflict", "not_running", "queue_in_use", "request_id_reused", "still_live", "token_exists")
)
"""Codes with status 409 that concern the current state; the others are errors of usage."""


class Answer:
    """A response: read as a whole, or line by line."""

    def __init__(self, response: "HTTPResponse", link: socket.socket) -> None:
        """Wrap a response that arrives over `link`, whose timeout `lines` sets."""
        self._response = response
        self._link = link

    def read(self) -> bytes:
        """Return the whole body."""
        return self._response.read()

    def blocks(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        while block := self._some(None):
            yield block

    def lines(self, deadline: float | None = None) -> Iterator[bytes]:
        """Yield lines as they arrive, without their ends; raise TimeoutError at `deadline` (time.monotonic)."""
        parts: list[bytes] = []  # of a line whose end has not come
        while block := self._some(deadline):
            first, *others = block.split(b"\n")
            parts.append(first)
            for line in others:
                yield b"".join(parts).removesuffix(b"\r")
                parts = [line]
        if last := b"".join(parts):
            yield last

    def _some(self, deadline: float | None) -> bytes:
        """Read at least a byte; return b"" at the end."""
        if deadline is not None:
            self._link.settimeout(max(0.001, deadline - time.monotonic()))
        return self._response.read1(_READ_BYTES)


class Remote(Protocol):
    """A server on another machine.

    Attributes:
        host: The Host header of a request to it.
        headers: Further headers of each request.
    """

    host: str
    headers: Mapping[str, str]

    def connected(self, timeout_s: float | None) -> socket.socket:
        """Return a connection to the server, once its certificate was checked; else raise ClientError."""

    async def opened(self) -> "tuple[StreamReader, StreamWriter]":
        """Return the same to an event loop."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request below /api/v1.

    Attributes:
        body: A value that is sent as JSON, or the bytes of an archive.
        timeout_s: The limit of every wait for bytes; None: no limit.
        key: Idempotency key: a repetition under the same key changes nothing.
    """

    method: str
    target: str
    body: Any = None
    timeout_s: float | None = ANSWER_S
    key: str | None = None

    @property
    def repeatable(self) -> bool:
        """True if it may be sent again when it is unknown whether the server received it."""
        return self.method != "POST" or self.key is not None

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers besides those of HTTP itself."""
        kind = "gzip" if isinstance(self.body, bytes) else "json"
        headers = {"Content-Type": f"application/{kind}"} if self.body is not None else {}
        return headers | ({"Idempotency-Key": self.key} if self.key else {})


@contextmanager
def exchange(server: Path | Remote, request: Request) -> Iterator[Answer]:
    """Send one request and yield its response; raise ClientError for an unsuccessful one."""
    from http.client import HTTPConnection, HTTPException

    host, headers = host_and_headers(server, request)
    connection = HTTPConnection(host)
    try:
        connection.sock = link = connected(server, request.timeout_s)
        connection.request(request.method, PREFIX + request.target, request.content or None, headers)
        response = connection.getresponse()
        if response.status >= 400:
            raise problem_of(response.status, response.read())
        yield Answer(response, link)
    except (HTTPException, OSError) as error:
        raise lost(server, request, error) from None
    finally:
        connection.close()


def host_and_headers(server: Path | Remote, request: Request) -> tuple[str, dict[str, str]]:
    """Return the Host header of a request, and its others."""
    if isinstance(server, Path):
        return "localhost", request.headers
    return server.host, request.headers | dict(server.headers)


def lost(server: Path | Remote, request: Request, error: Exception) -> ClientError:
    """Return the error of a connection that broke, or of a response that did not arrive in time."""
    # One with a number is the kernel's: it has given up a connection to a machine that vanished.
    if isinstance(error, TimeoutError) and error.errno is None:
        return timed_out(f"no answer in time to {request.method} {request.target}")
    broken = unreachable(f"the server at {server} went away: {str(error) or type(error).__name__}")
    broken.sent = True
    return broken


def listens(path: Path) -> bool:
    """Return whether a process accepts connections at a socket."""
    try:
        connected(path, 1).close()
    except (ClientError, OSError):
        return False
    return True


def listener(path: Path) -> int | None:
    """Return the pid of the process that listens at a socket (SO_PEERCRED of unix(7)), or None."""
    try:
        with connected(path, 1) as link:
            return _peer(link)[0]
    except (ClientError, OSError):
        return None


def connected(server: Path | Remote, timeout_s: float | None) -> socket.socket:
    """Return a connection to a server; to a socket only if it is this user's own."""
    if not isinstance(server, Path):
        return server.connected(timeout_s)
    path = server
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(timeout_s)
        link.connect(str(path))
    except TimeoutError:
        link.close()
        raise
    except OSError as error:
        link.close()
        raise unreachable(f"no server listens at {path}: {error.strerror or error}", "ganger server start") from None
    # A deep state directory has its sockets under /tmp, where they may be cleaned away and another user be the next.
    if _peer(link)[1] != os.getuid():
        link.close()
        stranger = unreachable(f"another user's program listens at {path}: nothing was sent to it", f"ls -l {path}")
        stranger.is_final = True
        raise stranger
    return link


def _peer(link: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end."""
    pid, uid, _gid = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid), int(uid)


def problem_of(status: int, body: bytes) -> ClientError:
    """Return the error of a response with this status."""
    try:
        problem = json.loads(body)
        parts = (problem["code"], problem["detail"], problem.get("next", ""))
    except (ValueError, KeyError, TypeError):
        parts = ("no_problem", f"status {status} without a reason: {body[:200]!r}", "ganger server status")
    if status == 409 and parts[0] not in _OF_THE_STATE:
        return client_error(*parts, exit_code=USAGE)
    return client_error(*parts, exit_code=_EXIT_CODES.get(status, USAGE if status < 500 else UNREACHABLE))


def quoted(name: str) -> str:
    """Return a name as a path segment; raise NotFound for an empty one, or one with a slash."""
    from urllib.parse import quote

    if not name or "/" in name:
        raise client_error(
            "not_found", f"{name!r} is not a valid name: a name is not empty and has no /", "ganger ls", NOT_FOUND
        )
    return quote(name, safe="")


def query_of(values: Mapping[str, Any]) -> str:
    """Return the query string of all values that are not None, with its question mark."""
    from urllib.parse import urlencode

    parameters = {
        name: str(value).lower() if value is True else value for name, value in values.items() if value is not None
    }
    return f"?{urlencode(parameters, errors='surrogateescape')}" if parameters else ""
