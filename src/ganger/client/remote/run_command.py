"""A command beside a rank of a server on another machine: its output is a response, its input further requests."""

import base64
import json
import os
import shutil
import signal
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ganger.client.client_errors import ClientError, unreachable
from ganger.client.local.http import Remote, Request, exchange, quoted

READ_BYTES: Final = 64 << 10
STREAMS: Final = {"o": 1, "e": 2}


def run_command(server: Remote, id: str, command: Sequence[str], place: Mapping[str, Any], flags: str) -> int:
    """Run a command beside a rank with this process's streams, and return its exit code. Raise ClientError.

    Args:
        server: The server.
        id: The job.
        command: Program and arguments.
        place: {"rank", "node"}, each may be None.
        flags: `i` passes stdin on, `t` allocates a terminal, `-`: neither.
    """
    has_terminal = "t" in flags
    body = {
        "command": list(command),
        **place,
        "input": "i" in flags,
        "size": _size() if has_terminal else None,
        "term": os.environ.get("TERM", "xterm"),
    }
    with exchange(server, Request("POST", f"/jobs/{quoted(id)}/exec", body, timeout_s=None)) as answer:
        code: int | None = None
        with _raw_terminal(is_wanted=has_terminal and "i" in flags):
            for line in filter(None, answer.lines()):
                record = json.loads(line)
                if "session" in record:
                    _Input(server, f"/jobs/{quoted(id)}/exec/{record['session']}").start(
                        reads="i" in flags, has_terminal=has_terminal
                    )
                elif "stream" in record:
                    _write(STREAMS[record["stream"]], base64.b64decode(record["data"]))
                else:
                    code = record["exit_code"]
    if code is None:
        raise unreachable(f"the server at {server} ended the command beside {id}", "ganger whoami")
    return code


class _Input:
    """Sends what is typed, and the size of the terminal, by threads that end with the process."""

    def __init__(self, server: Remote, target: str) -> None:
        self._server, self._target = server, target

    def start(self, *, reads: bool, has_terminal: bool) -> None:
        if reads:
            threading.Thread(target=self._read, daemon=True).start()
        if has_terminal:
            signal.signal(signal.SIGWINCH, lambda *_: threading.Thread(target=self._resize, daemon=True).start())

    def _read(self) -> None:
        while data := os.read(0, READ_BYTES):
            while data:
                written = self._send(data=base64.b64encode(data).decode())
                if written is None:
                    return
                data = data[written:]
        self._send(ends=True)

    def _resize(self) -> None:
        self._send(size=_size())

    def _send(self, **body: Any) -> int | None:
        """Send a part; return how much of it was taken, None if the command has ended."""
        try:
            with exchange(self._server, Request("POST", self._target, body)) as answer:
                return int(json.loads(answer.read())["written"])
        except ClientError:  # the response with the output says why
            return None


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def _size() -> tuple[int, int]:
    columns, rows = shutil.get_terminal_size()
    return rows, columns


@contextmanager
def _raw_terminal(*, is_wanted: bool) -> Iterator[None]:
    """Pass on keys as they are typed, Ctrl-C among them."""
    if not is_wanted:
        yield
        return
    mode = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
