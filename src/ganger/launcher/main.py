"""Entry of the zipapp: `python -I -S launcher-HASH.pyz TASK_DIR SERVER GENERATION`. Started by a backend, or as the
first process of a container. SERVER is the path of a unix socket, or `tcp:HOST:PORT`, or `file:PATH` of a file
that has HOST:PORT.

`launcher-HASH.pyz agent NODE WORD...` is what mpirun runs in place of ssh; `launcher-HASH.pyz exec ...` runs a command
beside a rank.
Takes the lock of the task directory before anything else, says in launcher.json who it is, and only then runs.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import time

from ganger.launcher.health.procfs import is_running, start_ticks
from ganger.launcher.health.reaper import clear_left_over, start_guard
from ganger.launcher.protocol.server_address import BadServerError, Server
from ganger.launcher.ranks.process import become_subreaper
from ganger.launcher.runtime import Launcher
from ganger.launcher.task_directory import TaskDirectory, write_json
from ganger.launcher.task_plan import BadPlanError, load_plan

LEFT = 0
USAGE = 64  # sysexits.h
BAD_CODE = 65
NO_PLAN = 66
CANNOT_WRITE = 73
LOCKED = 75

LOCK_WAIT_S = 5.0
LOCK_PAUSE_S = 0.01


def main(arguments: list[str]) -> int:
    """Exit code of the launcher: the constants above, explained in docs/reference/launcher-protocol.md."""
    if arguments[1:2] == ["agent"]:
        from ganger.launcher.remote_exec import agent_client

        return agent_client.main(arguments[2:])
    if arguments[1:2] == ["exec"]:
        from ganger.launcher.remote_exec import exec_command

        return exec_command.main(arguments[2:])
    if len(arguments) != 4 or not arguments[3].isdecimal():
        sys.stderr.write("usage: python launcher.pyz TASK_DIR SOCKET|tcp:HOST:PORT|file:PATH GENERATION\n")
        return USAGE
    _limit_open_files()
    task, generation = TaskDirectory(arguments[1]), int(arguments[3])
    try:
        server = Server(arguments[2], os.environ.get("GANGER_CA_FILE") or None)
        about = _of_container(generation) if server.is_remote else None
    except BadServerError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    echoes = bool(os.environ.get("GANGER_LOG_TO_STDOUT"))
    try:
        lock = _lock(task)
        if lock is None:
            sys.stderr.write(f"another launcher has {task.path}\n")
            return LOCKED
        if not echoes:
            _redirect_output(task)
        write_json(task.file("launcher.json"), {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
        clear_left_over(task)
        if about is None:
            first = load_plan(task.plan(generation), generation)
            about = (first.gang, first.node, generation)
        if archive := os.environ.get("GANGER_CODE_FILE"):
            _unpack(archive, os.environ.get("GANGER_CODE_SHA256", ""), os.getcwd())
    except OSError as error:
        sys.stderr.write(f"the task directory {task.path} cannot be used: {error}\n")
        return CANNOT_WRITE
    except BadArchiveError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_CODE
    except BadPlanError as error:
        sys.stderr.write(f"{error}\n")
        return NO_PLAN
    start_guard(task, lock)
    become_subreaper()
    code = Launcher(task, server, about, 1 if echoes else None).run()
    return code if server.is_remote else LEFT


def _limit_open_files() -> None:
    """Take back the soft limit of descriptors that the server had before it raised its own."""
    if soft := os.environ.pop("GANGER_OPEN_FILES", ""):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _of_container(generation: int) -> tuple[str, str, int]:
    """For whom a launcher is there whose plan is yet to come. BadServerError when it was not told."""
    gang, node = (os.environ.get(name, "") for name in ("GANGER_GANG", "GANGER_NODE"))
    if not gang or not node:
        raise BadServerError("GANGER_GANG and GANGER_NODE must say whose launcher this is: its plan comes from there")
    return gang, node, generation


def _lock(task: TaskDirectory) -> int | None:
    """The lock's file descriptor; None when another launcher has it. The guard of a dead one is waited for."""
    lock = os.open(task.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if _holder_lives(task) or time.monotonic() >= give_up_at:
                return None
        time.sleep(LOCK_PAUSE_S)


def _holder_lives(task: TaskDirectory) -> bool:
    import json

    try:
        with open(task.file("launcher.json"), encoding="utf-8") as file:
            holder = json.load(file)
        return is_running(holder["pid"], holder["start_ticks"])
    except (OSError, ValueError, TypeError, KeyError):
        return True  # it has only just taken the lock


def _redirect_output(task: TaskDirectory) -> None:
    """Whoever started the launcher may go away; what it has to say stays in its directory."""
    log = os.open(task.file("launcher.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)


class BadArchiveError(Exception):
    """An archive of code that cannot be unpacked; the text is one sentence."""


def _unpack(archive: str, digest: str, directory: str) -> None:
    """Unpack the code of a job, which came with its pod. Raise BadArchiveError when its SHA-256 is not `digest`, taken
    at submission: another user of the job's namespace could have replaced it."""
    import tarfile

    try:
        if _sha256_of(archive) != digest:
            raise BadArchiveError(
                f"the code of the job in {archive} is not what it was submitted with (its SHA-256 is not {digest})"
            )
        with tarfile.open(archive) as code:
            if hasattr(tarfile, "data_filter"):
                code.extractall(directory, filter="data")
            else:
                # The job's own, into its own container; an older Python has no filter.
                code.extractall(directory)  # noqa: S202
    except (OSError, tarfile.TarError) as error:
        raise BadArchiveError(f"the code of the job in {archive} cannot be unpacked: {error}") from error


def _sha256_of(path: str) -> str:
    import hashlib

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
