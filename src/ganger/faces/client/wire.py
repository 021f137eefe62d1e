"""HTTP over a unix socket: one request a connection, problems as `ClientError`. Called by `client` and `spawn`.

http.client is imported with the first request, because it costs more than the rest of a short command.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from http.client import HTTPResponse

PREFIX: Final = "/api/v1"
_EXIT_CODES: Final = {403: 4, 404: 3, 409: 4, 507: 4}
_USAGE, _UNREACHABLE = 2, 5
_OF_THE_STATE: Final = frozenset(
    ("already_ended", "conflict", "queue_in_use", "request_id_reused", "still_live", "token_exists")
)
"""Codes with status 409 that speak of how things are. The others speak of what was asked for: usage, to a person."""


class ClientError(Exception):
    """A request that failed. `code` is stable, `detail` says what and why, `next` what to type; `exit_code` is the
    command line's (docs/decisions/3-foundation.md)."""

    def __init__(self, code: str, detail: str, next: str = "", exit_code: int = _UNREACHABLE) -> None:
        """Keep the parts apart, as the server sent them."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.exit_code = exit_code


def unreachable(detail: str, next: str = "ganger server status") -> ClientError:
    """The error of a server that is not there, or went away."""
    return ClientError("unreachable", detail, next)


class Answer:
    """A response that came: read it whole, or line by line."""

    def __init__(self, response: "HTTPResponse", link: socket.socket) -> None:
        """Over `link`, whose time-out `lines` sets."""
        self._response = response
        self._link = link

    def read(self) -> bytes:
        """The whole body."""
        return self._response.read()

    def lines(self, deadline: float | None = None) -> Iterator[bytes]:
        """Lines as they come, without their ends, empty ones too. TimeoutError at `deadline` (time.monotonic)."""
        while True:
            if deadline is not None:
                self._link.settimeout(max(0.001, deadline - time.monotonic()))
            line = self._response.readline()
            if not line:
                return
            yield line.rstrip(b"\r\n")


@contextmanager
def exchange(
    path: Path, method: str, target: str, body: Any = None, timeout_s: float | None = None
) -> Iterator[Answer]:
    """Send one request and give its answer, good ones only. `timeout_s` bounds every wait for bytes; None waits."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection("localhost")
    try:
        connection.sock = link = _connected(path, timeout_s)
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, PREFIX + target, content, {"Content-Type": "application/json"} if content else {})
        response = connection.getresponse()
        if response.status >= 400:
            raise _problem(response.status, response.read())
        yield Answer(response, link)
    except TimeoutError:
        raise ClientError("timeout", f"no answer in time to {method} {target}", "ganger doctor") from None
    except (HTTPException, OSError) as error:
        raise unreachable(f"the server at {path} went away: {str(error) or type(error).__name__}") from None
    finally:
        connection.close()


def listens(path: Path) -> bool:
    """Whether anybody accepts connections there."""
    try:
        _connected(path, 1).close()
    except (ClientError, OSError):
        return False
    return True


def listener(path: Path) -> int | None:
    """Pid of the process that listens there (SO_PEERCRED of unix(7)), or None."""
    try:
        with _connected(path, 1) as link:
            return _peer(link)[0]
    except (ClientError, OSError):
        return None


def _connected(path: Path, timeout_s: float | None) -> socket.socket:
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
        raise unreachable(f"another user's program listens at {path}: nothing was sent to it", f"ls -l {path}")
    return link


def _peer(link: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that listens at the other end."""
    pid, uid, _gid = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid), int(uid)


def _problem(status: int, body: bytes) -> ClientError:
    try:
        problem = json.loads(body)
        said = (problem["code"], problem["detail"], problem.get("next", ""))
    except (ValueError, KeyError, TypeError):
        said = ("no_problem", f"status {status} without a reason: {body[:200]!r}", "ganger server status")
    if status == 409 and said[0] not in _OF_THE_STATE:
        return ClientError(*said, exit_code=_USAGE)
    return ClientError(*said, exit_code=_EXIT_CODES.get(status, _USAGE if status < 500 else _UNREACHABLE))
