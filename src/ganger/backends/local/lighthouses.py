"""The lighthouses of jobs with replica groups: the program of torchft through which the groups find each other.

There is one for each job, at a port of the loopback interface that it keeps. It outlives the server like the ranks
whose heartbeats it counts, and a shell starts it again where it ends, so that nothing here has to watch it: groups that
run take it for away meanwhile, and go on. In an environment without torchft there is none.
"""

import errno
import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles, read_json, write_private

ADDRESS: Final = "127.0.0.1"
MARK: Final = b"GANGER_LIGHTHOUSE_OF="
"""The variable of its processes: the directory of the job."""
_RECORD: Final = "lighthouse.json"
# It pauses for longer each time, as long as the program does not run for a minute. A program that is not there, or is
# none, ends the loop. The job's PATH may be anything.
_AGAIN: Final = """
pause=1
while :; do
  began=$(/bin/date +%s)
  "$@"
  case $? in 126|127) exit 1;; esac
  [ $(($(/bin/date +%s) - began)) -lt 60 ] || pause=1
  /bin/sleep $pause
  pause=$((pause < 60 ? 2 * pause : 60))
done
"""

_log = logging.getLogger(__name__)


class Lighthouses:
    """The lighthouses of this machine. Everything runs on the event loop."""

    def __init__(self, files: JobFiles) -> None:
        self._files = files
        self._children: dict[Path, subprocess.Popen[bytes]] = {}
        """By job, the shell that this server has started."""
        self._groups: dict[Path, set[str]] = {}
        """By job, its gangs that have started and are not over."""

    def url(self, gang: str, command: tuple[str, ...], environment: Mapping[str, str], directory: str) -> str | None:
        """Return the address of the lighthouse of a gang's job, which is started with this command if it does not run.

        None if there is no such program. OSError if it cannot be started.
        """
        job = self._files.array(gang)
        self._groups.setdefault(job, set()).add(gang)
        pid, port = _recorded(job)
        if pid is None:
            named = Path(directory, command[0]) if "/" in command[0] else command[0]
            program = shutil.which(named, path=environment.get("PATH"))
            if program is None:
                return None
            port = _free_port(port)
            self._end_child(job)
            job.mkdir(mode=0o700, parents=True, exist_ok=True)
            child = _spawn(job, (program, *command[1:], "--bind", f"{ADDRESS}:{port}"), environment, directory)
            self._children[job] = child
            try:
                write_private(job / _RECORD, json.dumps({"pid": child.pid, "port": port}))
            except OSError:
                self._end_child(job)  # the next server would not find it
                raise
        return f"http://{ADDRESS}:{port}"

    def leave(self, gang: str) -> None:
        """End the lighthouse of a job with the last of its gangs."""
        job = self._files.array(gang)
        groups = self._groups.get(job, set())
        groups.discard(gang)
        if job not in self._groups or groups:
            return
        del self._groups[job]
        pid, _ = _recorded(job)
        if pid is not None:
            _log.debug("ends the lighthouse of %s", gang)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._end_child(job)

    def resume(self, gangs: Iterable[str]) -> None:
        """Go on with those of these gangs, which run; end the others, whose jobs ended while no server ran."""
        for gang in gangs:
            self._groups.setdefault(self._files.array(gang), set()).add(gang)
        for directory, pid, _ in machine_processes.marked(MARK):
            if directory.parent == self._files.jobs and directory not in self._groups:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end_child(self, job: Path) -> None:
        """End the shell that this server has started for a job, with its program, and reap it."""
        if (child := self._children.pop(job, None)) is not None:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _spawn(
    job: Path, command: tuple[str, ...], environment: Mapping[str, str], directory: str
) -> subprocess.Popen[bytes]:
    """Start the shell that keeps a program running, which appends to the log of the job. Raises OSError."""
    _log.debug("starts a lighthouse: %s", command)
    log = _open_log(job / "lighthouse.log")
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _AGAIN, "lighthouse", *command],
            cwd=directory,
            # Of all that it logs, a line for each step, only errors are of use.
            env={**environment, "RUST_LOG": "error", MARK.decode()[:-1]: str(job)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


def _open_log(path: Path) -> int:
    """Open a log for appending. OSError if it is no file: ranks, which run as the same user, could put a pipe there."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(log).st_mode):
        os.close(log)
        raise FileExistsError(errno.EEXIST, "it is no file", str(path))
    return log


def _recorded(job: Path) -> tuple[int | None, int]:
    """Return the pid of a job's lighthouse, None if it does not run, and its port, 0 if it has none yet.

    The record may be of a process that is gone, and ranks could have written it.
    """
    match read_json(job / _RECORD):
        case {"pid": int(pid), "port": int(port)} if pid > 0 and 0 < port < 1 << 16:
            return (pid if machine_processes.is_marked(pid, MARK, job) else None), port
        case _:
            return None, 0


def _free_port(before: int) -> int:
    """Return a port to listen at: that of before if it is free, which groups that run have heard of."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, before))
        except OSError:
            probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])
