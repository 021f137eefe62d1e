"""Discovery of the server of a state directory, and its start if there is none.

However many clients start at once, one server comes up: the clients take turns by a lock, and the server holds another.
"""

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ganger import __version__
from ganger.client.client_errors import ClientError, unreachable
from ganger.client.local import server_process
from ganger.client.local.http import listener, listens
from ganger.model.units import format_bytes
from ganger.settings import Home, HomeError, make_private, server_environment

START_S: Final = 60.0
"""Time that a server may take until it responds. It needs two seconds of one processor, which a machine full of ranks
may give it in thirty; a server that ends instead is noticed at once."""
POLL_S: Final = 0.01
LAST_WORDS: Final = 8
"""Lines of the server's log that are shown when it did not start and logged no reason."""
FULL_BYTES: Final = 4 << 20
"""Free space below which a server that did not start had no room to say so in its log."""
_SAYS, _NEXT = "ganger: ", "next: "
"""Lines in which the server's log has the reason for not starting, and what to type."""

_alone: Final = threading.Lock()
"""Serializes the threads of a process.

To check whether a server lives is to hold its lock for a moment; hundreds of threads that check would keep the lock
from the server that is starting.
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """Address of a server, and its version."""

    socket: Path
    version: str


def serving(home: Home) -> Serving | None:
    """Return the responding server of this state directory, or None."""
    try:
        record = json.loads(home.server_file.read_text())
        candidate = Serving(Path(record["socket"]), str(record["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        # No such file, or one that is half gone: the socket tells, if it is not some other program's.
        candidate = Serving(home.socket("server"), __version__)
        if (pid := server_process.pid_of(home)) is None or pid != listener(candidate.socket):
            return None
    return candidate if listens(candidate.socket) else None


def running(home: Home) -> Serving:
    """Return the running server once it responds, without starting one.

    Raise ClientError if there is none, or none that can be reached.
    """
    deadline = time.monotonic() + START_S
    while server_process.lives(home):
        if server := serving(home):
            return server
        if server_process.lost_its_socket(home) or time.monotonic() > deadline:
            raise server_process.unreached(home)
        time.sleep(POLL_S)
    raise unreachable(f"no server runs for {home.path}", "ganger server start")


def start(home: Home, arguments: Sequence[str] = ()) -> Serving:
    """Start a server, or wait for one that is starting, and return it when it responds; raise ClientError if it fails.

    `arguments`: Of `ganger.server serve`: where it listens in addition to its socket.
    """
    try:
        make_private(home.path)
    except HomeError as error:
        raise unreachable(str(error), error.next) from None
    deadline = time.monotonic() + START_S
    with _alone, _log(home) as log, _log(home) as turn:
        log_bytes = log.tell()
        child: int | None = None
        while time.monotonic() < deadline:
            if server := serving(home):
                return server
            if child is None and not server_process.lives(home) and _my_turn(turn):
                child = _spawn(home, log, arguments)
            elif child is None and server_process.lost_its_socket(home):
                break
            elif child is not None and (code := _exit_code(child)) is not None:
                if not server_process.lives(home):
                    _see_room(home, log)
                    raise did_not_start(home, log_bytes, f"exited with {code}")
                child = None
            time.sleep(POLL_S)
    if child is None and server_process.pid_of(home):
        raise server_process.unreached(home)
    raise did_not_start(home, log_bytes, f"did not answer within {START_S:g} s")


def log_length(home: Home) -> int:
    """Return the length of the server's log in bytes."""
    try:
        return home.server_log.stat().st_size
    except OSError:
        return 0


def did_not_start(home: Home, said_before: int, how: str) -> ClientError:
    """Return the error of a server that did not start, with the reason that it logged after position `said_before`."""
    try:
        with home.server_log.open("rb") as log:
            log.seek(said_before)
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    reasons = [line.removeprefix(_SAYS) for line in lines if line.startswith(_SAYS)]
    remedies = [line.removeprefix(_NEXT) for line in reasons if line.startswith(_NEXT)]
    detail = "\n".join(line for line in reasons if not line.startswith(_NEXT))
    free_bytes = _free_bytes(home)
    is_full = free_bytes < FULL_BYTES
    if not detail and is_full:
        detail = f"the server {how}: only {format_bytes(free_bytes)} are free on the disk of {home.path}"
    elif not detail:
        detail = "\n".join([f"the server {how}; the end of {home.server_log}:", *lines[-LAST_WORDS:]])
    # A server that logged a reason, but not what to type, had no room for it.
    fallback = f"free some space on that disk: df -h {home.path}" if is_full else "ganger doctor"
    return unreachable(detail, remedies[-1] if remedies else fallback)


def _free_bytes(home: Home) -> int:
    disk = os.statvfs(home.path)
    return disk.f_bavail * disk.f_frsize


def _see_room(home: Home, log: IO[bytes]) -> None:
    """Check that the log can be written: on a full disk a server cannot even log why it does not start."""
    try:
        log.write(b"\n")
    except OSError as error:
        why = f"cannot write {home.server_log}: {error.strerror}"
        raise unreachable(why, f"free some space on that disk: df -h {home.path}") from None


@contextmanager
def _log(home: Home) -> Iterator[IO[bytes]]:
    try:
        log = os.fdopen(os.open(home.server_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)
    except OSError as error:
        raise unreachable(f"cannot write {home.server_log}: {error.strerror}", "ganger doctor") from None
    with log:
        yield log


def _my_turn(turn: IO[bytes]) -> bool:
    """Return whether this client is the one that starts the server; its turn ends when the file is closed."""
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _spawn(home: Home, log: IO[bytes], arguments: Sequence[str]) -> int:
    """Start a server in a session of its own, so that it outlives the terminal, and return its pid.

    -P: it imports nothing from the current directory.
    """
    argv = [sys.executable, "-P", "-m", "ganger.server", "serve", "--home", str(home.path), *arguments]
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
        (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
    ]
    return os.posix_spawn(sys.executable, argv, server_environment(os.environ), file_actions=files, setsid=True)


def _exit_code(child: int) -> int | None:
    """Return the exit code of the child, None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None
