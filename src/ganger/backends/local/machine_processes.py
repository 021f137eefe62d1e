"""Processes of this machine: starting launchers, telling one process from the next with its number, finding strays.

Called by the supervisor. A process is known by its number and its start time, because numbers come again (proc(5));
it is signalled through a pidfd, so that a signal never hits a successor (pidfd_open(2)).
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from ganger.launcher_server.launcher_process import Process, describe_signal

MARK: Final = b"GANGER_TASK_DIR="
"""The variable every process of a rank carries: the directory of its generation on its node."""

OPEN_FILES: Final = "GANGER_OPEN_FILES"
"""The variable that tells a launcher its soft limit of descriptors: the server has raised its own, and a program of the
user's that calls select(2) must not get the higher one."""

_PASSED_ON: Final = ("PATH", "HOME", "LD_LIBRARY_PATH")
_TO_DEFAULT: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ)


def identify(pid: int) -> Process | None:
    """The process that has this number now; None when there is none, or only what is left of one."""
    try:
        # The name, in brackets, may hold anything; what follows the last bracket is field 3, the state.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else Process(pid, int(fields[19]))


def watch(process: Process) -> int | None:
    """A pidfd that turns readable when the process ends; None when it has ended. The caller closes it."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if identify(process.pid) == process:
        return pidfd
    os.close(pidfd)
    return None


def kill(process: Process) -> None:
    """End a process at once, and no other."""
    pidfd = watch(process)
    if pidfd is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def ending(pidfd: int) -> str:
    """How a child of ours that ended did so, as the end of a sentence; collects it. Empty for another's child."""
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        status = None
    if status is None:
        return ""
    if status.si_code == os.CLD_EXITED:
        return f"exited with code {status.si_status}"
    return f"was killed by {describe_signal(status.si_status)}"


def spawn(arguments: list[str], log: Path, open_files: int) -> tuple[Process, int]:
    """Start a program under this interpreter in a session of its own, so that it outlives us; its errors go to `log`.

    Gives the process and a pidfd, as `watch` would. It gets only what an interpreter needs to start, and the soft limit
    of descriptors to set for itself (0: none). OSError when it cannot be started.
    """
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if open_files:
        environment[OPEN_FILES] = str(open_files)
    quiet = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", *arguments],
        environment,
        file_actions=quiet,
        setsid=True,
        setsigmask=(),
        setsigdef=_TO_DEFAULT,
    )
    # Our child, not yet collected: the number cannot have gone to another, but it may have ended already.
    return identify(pid) or Process(pid, 0), os.pidfd_open(pid)


def launchers() -> Iterator[tuple[Path, Process]]:
    """Every launcher of this user: its task directory and its process. Costs one look at every process."""
    for pid in _own():
        arguments = _read(pid, "cmdline").split(b"\0")
        for program, task in pairwise(arguments):
            if program.endswith(b".pyz") and task.startswith(b"/"):
                process = identify(pid)
                if process:
                    yield Path(os.fsdecode(task)), process
                break


def marked() -> Iterator[tuple[Path, int]]:
    """Every process of this user that belongs to a rank: the directory of its generation and its number."""
    return ((place, pid) for place, pid, _ in members())


def members() -> Iterator[tuple[Path, int, list[bytes]]]:
    """The same, each with the variables that it began with."""
    for pid in _own():
        environment = _read(pid, "environ").split(b"\0")
        for variable in environment:
            if variable.startswith(MARK):
                yield Path(os.fsdecode(variable.removeprefix(MARK))), pid, environment
                break


def kill_marked(directory: Path) -> int:
    """Kill whatever belongs to the generation whose directory this is; how many there were."""
    found = [pid for place, pid in marked() if place == directory]
    for pid in found:
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # Looked at again now that the number cannot change hands.
                if MARK + os.fsencode(directory) in _read(pid, "environ").split(b"\0"):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return len(found)


def _own() -> Iterator[int]:
    uid = os.getuid()
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with suppress(OSError):
                    if entry.stat().st_uid == uid:
                        yield int(entry.name)


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty when the process is gone, or is not ours after all."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
