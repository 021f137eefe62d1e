"""Routes of commands beside a rank: /jobs/{id}/exec.

Over the unix socket a caller gets the command line and runs it. Over TCP the server runs it: the response has its
output, and its input comes by further requests. It ends when the response does, so with the caller's token.
"""

import base64
import fcntl
import os
import pty
import secrets
import selectors
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field

from ganger.engine.service import RequestError, Service, TokenRow
from ganger.model.views.service_views import ExecCommand
from ganger.rest.responses import (
    HOLDER,
    NDJSON,
    ServiceParam,
    json_response,
    response_docs,
    text_responses,
    view_responses,
)
from ganger.rest.stream_feed import StreamFeed
from ganger.rest.token_gate import LocalOnly

router: Final = APIRouter()

MAX_COMMANDS: Final = 32
"""Commands that run at one time for all callers: each has a thread and a process."""
READ_BYTES: Final = 64 << 10
IDLE_S: Final = 0.5
"""Interval at which a silent command is checked for a caller who has left."""
INPUT_S: Final = 5.0
"""Time for which a request with input waits until the command reads it."""
GRACE_S: Final = 5.0
"""Time between SIGHUP and SIGKILL for a command whose caller has left."""
CANNOT_RUN: Final = 125
RankParam = Annotated[int | None, Field(ge=0, le=999_999, description="unset: the first on the node, else rank 0")]
NodeParam = Annotated[str | None, Field(description="a node that the job runs on")]
Cells = Annotated[int, Field(ge=1, le=10_000)]


@dataclass(frozen=True, kw_only=True)
class ExecBody:
    """A command to run beside a rank. `size`: rows and columns of the caller's terminal; null: none is wanted."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    command: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    rank: RankParam = None
    node: NodeParam = None
    input: bool = False
    size: tuple[Cells, Cells] | None = None
    term: Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,64}$")] = "xterm"


@dataclass(frozen=True, kw_only=True)
class InputBody:
    """Input of a command: `data` in base64, `ends` after which nothing comes, a new `size` of the terminal."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    data: str = ""
    ends: bool = False
    size: tuple[Cells, Cells] | None = None


class ExecSession:
    """A command beside a rank, and its streams."""

    def __init__(self, argv: Sequence[str], body: ExecBody) -> None:
        """Start the command. Raises OSError, ValueError."""
        self._lock = threading.Lock()
        self._master: int | None = None
        terminal: int | None = None
        if body.size is not None:
            self._master, terminal = pty.openpty()
            self._resize(body.size)
        pipe, absent = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=terminal or (pipe if body.input else absent),
                stdout=terminal or pipe,
                stderr=terminal or pipe,
                env={**os.environ, "TERM": body.term},
                start_new_session=True,
            )
        except BaseException:
            if self._master is not None:
                os.close(self._master)
            raise
        finally:
            if terminal is not None:
                os.close(terminal)
        self._input = self._master
        if self._process.stdin is not None:
            self._input = self._process.stdin.fileno()
        if self._input is not None:
            os.set_blocking(self._input, False)

    def output(self) -> Iterator[dict[str, Any] | None]:
        """Yield what the command writes, {"stream", "data"}, and {"exit_code"}; None from time to time."""
        with selectors.DefaultSelector() as selector:
            if self._master is not None:
                selector.register(self._master, selectors.EVENT_READ, "o")
            else:
                for pipe, name in ((self._process.stdout, "o"), (self._process.stderr, "e")):
                    selector.register(pipe, selectors.EVENT_READ, name)  # type: ignore[arg-type]  # they are pipes
            while selector.get_map():
                for key, _ in selector.select(IDLE_S):
                    if data := _read(key.fd):
                        yield {"stream": key.data, "data": base64.b64encode(data).decode()}
                    else:
                        selector.unregister(key.fileobj)
                yield None
        code = self._process.wait()
        yield {"exit_code": 128 - code if code < 0 else code}

    def feed(self, data: bytes, *, ends: bool) -> int:
        """Write input as far as the command reads it in time, and return the number of bytes. `ends`: end the input."""
        with self._lock, selectors.DefaultSelector() as selector:
            if self._input is None:
                return len(data)
            written, deadline = 0, time.monotonic() + INPUT_S
            selector.register(self._input, selectors.EVENT_WRITE)
            while written < len(data) and selector.select(max(0.0, deadline - time.monotonic())):
                try:
                    written += os.write(self._input, data[written:])
                except OSError:  # it has closed its input, or ended
                    written = len(data)
            if ends and written == len(data) and self._process.stdin is not None:
                self._process.stdin.close()
                self._input = None
            return written

    def resize(self, size: tuple[int, int]) -> None:
        """Make the command's terminal as large as the caller's."""
        with self._lock:
            self._resize(size)
        self._process.send_signal(signal.SIGWINCH)

    def end(self) -> None:
        """End the command if it still runs, and release its streams."""
        self._process.send_signal(signal.SIGHUP)
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill()
        with self._lock:
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            if self._master is not None:
                os.close(self._master)
            self._master = self._input = None

    def _kill(self) -> None:
        """Kill the command and what it has started, which would outlive the process that watches it."""
        import psutil

        with suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
        self._process.kill()
        self._process.wait()

    def _resize(self, size: tuple[int, int]) -> None:
        if self._master is not None:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


_sessions: Final[dict[str, ExecSession]] = {}
"""The commands that run, by the secret that permits to write to one."""


@router.get(
    "/jobs/{id}/exec", tags=["usage"], responses=view_responses(ExecCommand, 404, 409), dependencies=[LocalOnly]
)
def get_exec_command(
    service: ServiceParam,
    id: str,
    rank: Annotated[
        int | None, Query(ge=0, le=999_999, description="unset: the first on the node, else rank 0")
    ] = None,
    node: Annotated[str | None, Query(description="a node that the job runs on")] = None,
) -> Response:
    """Return how to run a command beside a rank, with its variables and in its directory, as `ganger exec` does.

    Only over the unix socket.
    """
    return json_response(service.live_usage.exec_command(id, rank=rank, node=node))


@router.post(
    "/jobs/{id}/exec",
    tags=["usage"],
    responses=text_responses(
        NDJSON,
        "A line {session}, then lines {stream, data} with stream o or e and data in base64, then {exit_code}",
        *(400, 404, 409, 413),
    ),
)
def run_command(request: Request, service: ServiceParam, id: str, body: ExecBody) -> Response:
    """Run a command beside a rank of one's own job, or as an administrator of any, and return its output.

    The command ends when the response is closed, the token is revoked or the attempt ends.
    """
    _require_own(request, service, id)
    beside = service.live_usage.exec_command(id, rank=body.rank, node=body.node)
    if len(_sessions) >= MAX_COMMANDS:
        detail = f"{MAX_COMMANDS} commands run beside ranks for users of other machines, the most at one time"
        raise RequestError("too_many_requests", detail, "end some of them", 503)
    flags = "i" * body.input + "t" * (body.size is not None) or "-"
    argv = [*beside.argv, str(beside.generation), str(beside.rank), flags, *body.command]
    feed: StreamFeed = request.app.state.feed
    return StreamingResponse(feed.follow(lambda: _run(argv, body)), media_type=NDJSON)


@router.post(
    "/jobs/{id}/exec/{session}",
    tags=["usage"],
    responses=response_docs(
        {
            "application/json": {
                "schema": {"type": "object", "properties": {"written": {"type": "integer"}}, "required": ["written"]}
            }
        },
        200,
        "The number of bytes that the command has taken; the rest is to be sent again",
        *(400, 404, 409, 413),
    ),
)
def write_input(id: str, session: str, body: InputBody) -> Response:
    """Write to the input of a command that runs beside a rank, or resize its terminal."""
    running = _sessions.get(session)
    if running is None:
        raise RequestError("not_running", f"no such command runs beside a rank of {id}", "start it again", 409)
    try:
        data = base64.b64decode(body.data, validate=True)
    except ValueError:
        raise RequestError("bad_request", "data is not base64", "send it in base64", 400) from None
    if body.size is not None:
        running.resize(body.size)
    return json_response({"written": running.feed(data, ends=body.ends)})


def _require_own(request: Request, service: Service, id: str) -> None:
    token: TokenRow | None = request.scope.get(HOLDER)
    if token is None or token.allows("admin"):
        return
    row = service.job(id).row
    if row.user != token.user:
        detail = f"{row.id} belongs to {row.user}, and a command beside a rank has the secrets of its job"
        raise RequestError("not_your_job", detail, "ask for a token with --scope admin", 403)


def _run(argv: Sequence[str], body: ExecBody) -> Iterator[dict[str, Any] | None]:
    """Run a command, and yield the lines of the response; the command ends when the caller leaves."""
    try:
        session = ExecSession(argv, body)
    except (OSError, ValueError) as error:
        text = f"ganger exec: the server cannot start it: {error}\n".encode()
        yield {"stream": "e", "data": base64.b64encode(text).decode()}
        yield {"exit_code": CANNOT_RUN}
        return
    key = secrets.token_hex(16)
    _sessions[key] = session
    try:
        yield {"session": key}
        yield None
        yield from session.output()
    finally:
        del _sessions[key]
        session.end()


def _read(number: int) -> bytes:
    try:
        return os.read(number, READ_BYTES)
    except OSError:  # EIO: the other end of the terminal is closed
        return b""
