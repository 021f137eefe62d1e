"""Processes of this machine: starting launchers, identifying processes, finding leftovers.

A process is identified by its pid and its start time, because pids are reused (proc(5)); it is signalled through a
pidfd, so that a signal never hits a successor (pidfd_open(2)).
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
"""The variable of every process of a rank: the directory of its generation on its node."""

OPEN_FILES: Final = "GANGER_OPEN_FILES"
"""The variable with the launcher's soft limit of descriptors.

The server has raised its own, which a user's program that calls select(2) must not inherit.
"""

_PASSED_ON: Final = ("PATH", "HOME", "LD_LIBRARY_PATH")
_TO_DEFAULT: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ)


def identify(pid: int) -> Process | None:
    """Return the process that has this pid now; None if there is none, or only a zombie."""
    try:
        # The name, in brackets, may contain anything; field 3, the state, follows the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else Process(pid, int(fields[19]))


def watch(process: Process) -> int | None:
    """Return a pidfd that turns readable when the process ends, to be closed by the caller; None if it has ended."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if identify(process.pid) == process:
        return pidfd
    os.close(pidfd)
    return None


def kill(process: Process) -> None:
    """Kill this process and no other."""
    pidfd = watch(process)
    if pidfd is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def ending(pidfd: int) -> str:
    """Reap a child and return how it ended, as the end of a sentence; empty if it is not a child."""
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        status = None
    if status is None:
        return ""
    if status.si_code == os.CLD_EXITED:
        return f"exited with code {status.si_status}"
    return f"was killed by {describe_signal(status.si_status)}"


def spawn(arguments: list[str], log: Path, open_files: int, eviction_s: int) -> tuple[Process, int]:
    """Start a program under this interpreter in a session of its own, so that it outlives the server.

    Returns the process and a pidfd, as `watch` does. stderr goes to `log`. It gets only the environment that an
    interpreter needs, the soft limit of descriptors to set for itself (0: none), and the seconds that it has after
    SIGTERM. OSError if it cannot be started.
    """
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["GANGER_GRACE_PERIOD_S"] = str(eviction_s)
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
    # A child that is not reaped yet: its pid cannot be reused, but it may have ended already.
    return identify(pid) or Process(pid, 0), os.pidfd_open(pid)


def launchers() -> Iterator[tuple[Path, Process]]:
    """Yield (task directory, process) of every launcher of this user, by one scan of all processes."""
    for pid in _own_pids():
        arguments = _read(pid, "cmdline").split(b"\0")
        for program, task in pairwise(arguments):
            if program.endswith(b".pyz") and task.startswith(b"/"):
                process = identify(pid)
                if process:
                    yield Path(os.fsdecode(task)), process
                break


def rank_processes() -> Iterator[tuple[Path, int]]:
    """Yield (generation directory, pid) of every rank process of this user."""
    return ((directory, pid) for directory, pid, _ in rank_environments())


def rank_environments() -> Iterator[tuple[Path, int, list[bytes]]]:
    """Yield (generation directory, pid, initial environment) of every rank process of this user."""
    return marked(MARK)


def marked(mark: bytes) -> Iterator[tuple[Path, int, list[bytes]]]:
    """Yield (directory, pid, initial environment) of every process of this user whose variable `mark` names one."""
    for pid in _own_pids():
        environment = _read(pid, "environ").split(b"\0")
        for variable in environment:
            if variable.startswith(mark):
                yield Path(os.fsdecode(variable.removeprefix(mark))), pid, environment
                break


def is_marked(pid: int, mark: bytes, directory: Path) -> bool:
    """Return whether there is a process with this pid now whose variable `mark` is this directory."""
    return mark + os.fsencode(directory) in _read(pid, "environ").split(b"\0")


def kill_rank_processes(directory: Path) -> int:
    """Kill the processes of the generation with this directory, and return their number."""
    pids = [pid for marked_directory, pid in rank_processes() if marked_directory == directory]
    for pid in pids:
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # Checked again, now that the pid cannot be reused.
                if is_marked(pid, MARK, directory):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return len(pids)


def _own_pids() -> Iterator[int]:
    uid = os.getuid()
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with suppress(OSError):
                    if entry.stat().st_uid == uid:
                        yield int(entry.name)


def _read(pid: int, name: str) -> bytes:
    """Return a /proc file of a process; empty if it is gone or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
