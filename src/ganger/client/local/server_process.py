"""The process that holds a state directory: its pid, why it is unreachable, and how to end it by a signal.

The lock shows whether it lives: the kernel releases it when the process ends.
"""

import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from ganger.client.client_errors import ClientError, unreachable
from ganger.settings import Home

GONE_S: Final = 20.0
"""Time that a server may take to end."""
POLL_S: Final = 0.01
SETTLES_S: Final = 0.5
"""A server that starts or ends may be announced without a socket for less than that."""


def lives(home: Home) -> bool:
    """Return whether a server holds the state directory, even if it does not respond."""
    try:
        with home.server_lock.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def has_died(home: Home) -> bool:
    """Return whether the last server ended without stopping: a server that stops removes the server file."""
    return home.server_file.exists() and not lives(home)


def pid_of(home: Home) -> int | None:
    """Return the pid of the server that holds the state directory, from the lock file; None if there is none."""
    try:
        return int(home.server_lock.read_text()) if lives(home) else None
    except (OSError, ValueError):
        return None


def url_of(home: Home) -> str | None:
    """Return the URL of the TCP listener that the running server announced."""
    url = _announced(home).get("url")
    return url if isinstance(url, str) else None


def lost_its_socket(home: Home) -> bool:
    """Return whether the socket of a running server is gone; checked twice."""
    if not _without_socket(home):
        return False
    time.sleep(SETTLES_S)
    return _without_socket(home)


def unreached(home: Home) -> ClientError:
    """Return the error of a running server that accepts no connection."""
    what = "has lost its socket" if _without_socket(home) else "does not answer at"
    why = f"the server with pid {pid_of(home)} runs, but {what} {home.socket('server')}; jobs outlive its end"
    return unreachable(why, "ganger server stop")


def silent(home: Home, waited_s: float) -> ClientError:
    """Return the error of a server that accepts connections and does not respond."""
    pid = pid_of(home)
    detail = f"the server with pid {pid} has not answered for {waited_s:g} s"
    if pid is not None and _stat(pid)[:1] == ["T"]:
        return unreachable(f"{detail}: it is suspended", f"kill -CONT {pid}")
    return unreachable(f"{detail}; jobs outlive its end", "ganger server stop")


def end(home: Home) -> int:
    """End the server of the state directory by SIGTERM, and return its pid once it is gone.

    Raise ClientError if it is not certain which process that is, or if it does not end.
    """
    pid, announced = pid_of(home), _announced(home)
    if pid is None or (announced.get("pid"), [str(announced.get("start_ticks"))]) != (pid, _stat(pid)[19:20]):
        why = f"a server holds {home.path}, and {home.server_file} does not tell which process it is"
        raise unreachable(why, f"see who: lsof {home.server_lock}")
    # One that is suspended would not hear of it otherwise.
    for number in (signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, number)
    await_gone(home)
    return pid


def await_gone(home: Home) -> None:
    """Wait until no server holds the state directory."""
    deadline = time.monotonic() + GONE_S
    while lives(home):
        if time.monotonic() > deadline:
            raise unreachable(f"the server of {home.path} does not end; jobs outlive it", f"kill -KILL {pid_of(home)}")
        time.sleep(POLL_S)


def _without_socket(home: Home) -> bool:
    pid = pid_of(home)
    return pid is not None and _announced(home).get("pid") == pid and not home.socket("server").exists()


def _announced(home: Home) -> dict[str, Any]:
    """Return the server file as a mapping; empty if there is none."""
    try:
        record = json.loads(home.server_file.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third, the state, on; empty if there is no such process.

    The twentieth is start_ticks (proc_pid_stat(5)).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
