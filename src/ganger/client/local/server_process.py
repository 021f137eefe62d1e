"""The process that holds a state directory: who it is, why it is out of reach, and its end by a signal.

Called by `client` and `spawn` where a server cannot be asked. The lock says that it lives: the kernel frees it.
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
"""How long a server that was told to end may take."""
POLL_S: Final = 0.01
SETTLES_S: Final = 0.5
"""For less than that a server that begins or ends is announced and has no socket."""


def lives(home: Home) -> bool:
    """Whether some server holds the state directory, even if it does not answer."""
    try:
        with home.server_lock.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def pid_of(home: Home) -> int | None:
    """Pid of the server that holds the state directory, as it wrote it into the lock; None if nobody does."""
    try:
        return int(home.server_lock.read_text()) if lives(home) else None
    except (OSError, ValueError):
        return None


def url_of(home: Home) -> str | None:
    """Where the server that lives listens beside its socket, as it said when it started."""
    url = _announced(home).get("url")
    return url if isinstance(url, str) else None


def lost_its_socket(home: Home) -> bool:
    """Whether the server that lives has said where it listens, and nothing is there any more. Looks twice."""
    if not _without_socket(home):
        return False
    time.sleep(SETTLES_S)
    return _without_socket(home)


def unreached(home: Home) -> ClientError:
    """The error of a server that lives, and that no connection leads to."""
    what = "has lost its socket" if _without_socket(home) else "does not answer at"
    why = f"the server with pid {pid_of(home)} runs, but {what} {home.socket('server')}; jobs outlive its end"
    return unreachable(why, "ganger server stop")


def silent(home: Home, waited_s: float) -> ClientError:
    """The error of a server that takes connections and does not answer them."""
    pid = pid_of(home)
    said = f"the server with pid {pid} has not answered for {waited_s:g} s"
    if pid is not None and _stat(pid)[:1] == ["T"]:
        return unreachable(f"{said}: it is suspended", f"kill -CONT {pid}")
    return unreachable(f"{said}; jobs outlive its end", "ganger server stop")


def end(home: Home) -> int:
    """End the server that holds the state directory by SIGTERM; gives its pid once it is gone. ClientError when it is
    not certain which process that is, or when it stays."""
    pid, said = pid_of(home), _announced(home)
    if pid is None or (said.get("pid"), [str(said.get("start_ticks"))]) != (pid, _stat(pid)[19:20]):
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
    """What the server says of itself; empty when it says nothing."""
    try:
        record = json.loads(home.server_file.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on, the state (proc_pid_stat(5)); the twentieth of them is start_ticks.
    Empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
