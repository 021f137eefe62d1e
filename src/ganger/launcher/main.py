"""Entry point of the zipapp: `python -I -S launcher-HASH.pyz TASK_DIR SERVER GENERATION`.

A backend starts it, or it is the first process of a container. SERVER is the path of a unix socket, `tcp:HOST:PORT`, or
`file:PATH` of a file that contains HOST:PORT. `launcher-HASH.pyz agent NODE WORD...` is what mpirun runs in place of
ssh; `launcher-HASH.pyz exec ...` runs a command beside a rank, `launcher-HASH.pyz files ...` sends files that ranks
wrote, `launcher-HASH.pyz copy ...` copies checkpoints off the node, `launcher-HASH.pyz push ...` and `hold ...` to
another one, and `launcher-HASH.pyz fetch ...` fetches the code of a job. The launcher takes the lock of the task
directory before anything else, then writes its pid to launcher.json.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import time

from ganger.launcher.health.procfs import is_running, start_ticks
from ganger.launcher.health.reaper import clear_leftovers, start_reaper
from ganger.launcher.protocol.server_address import BadServerError, Server
from ganger.launcher.ranks.process import become_subreaper, keep_files_private
from ganger.launcher.runtime import NO_SERVER, Launcher
from ganger.launcher.task_directory import TaskDirectory, write_json
from ganger.launcher.task_plan import BadPlanError, load_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LEFT = 0
USAGE = 64  # sysexits.h
BAD_CODE = 65
NO_PLAN = 66
CANNOT_WRITE = 73
LOCKED = 75

LOCK_WAIT_S = 5.0
LOCK_PAUSE_S = 0.01


def main(arguments: list[str]) -> int:
    """Run the launcher; return its exit code, one of the constants above (docs/reference/launcher-protocol.md)."""
    keep_files_private()
    subcommand = _subcommand(*arguments[1:3]) if len(arguments) > 1 else None
    if subcommand is not None:
        return subcommand(arguments[2:])
    if len(arguments) != 4 or not arguments[3].isdecimal():
        sys.stderr.write("usage: python launcher.pyz TASK_DIR SOCKET|unix:PATH|tcp:HOST:PORT|file:PATH GENERATION\n")
        return USAGE
    _limit_open_files()
    task, generation = TaskDirectory(arguments[1]), int(arguments[3])
    try:
        server = Server(arguments[2], os.environ.get("GANGER_CA_FILE") or None)
        identity = _identity_from_environment(generation) if server.is_remote else None
    except BadServerError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    is_mirrored = bool(os.environ.get("GANGER_LOG_TO_STDOUT"))
    try:
        lock = _lock(task)
        if lock is None:
            sys.stderr.write(f"another launcher holds the lock of {task.path}\n")
            return LOCKED
        if not is_mirrored:
            _redirect_output(task)
        write_json(task.file("launcher.json"), {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
        clear_leftovers(task)
        if identity is None:
            first = load_plan(task.plan(generation), generation)
            identity = (first.gang, first.node, generation)
        _unpack_code(task, server, identity)
    except OSError as error:
        sys.stderr.write(f"cannot use the task directory {task.path}: {error}\n")
        return CANNOT_WRITE
    except BadArchiveError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except BadPlanError as error:
        sys.stderr.write(f"{error}\n")
        return NO_PLAN
    start_reaper(task, lock)
    become_subreaper()
    code = Launcher(task, server, identity, 1 if is_mirrored else None).run()
    return code if server.is_remote else LEFT


def _subcommand(name: str, first: str = "") -> Callable[[list[str]], int] | None:
    """Return what else the zipapp can do; None for a task directory."""
    if name == "agent" and first == "--srun":  # no node has such a name
        from ganger.launcher.remote_exec import srun as module
    elif name == "agent":
        from ganger.launcher.remote_exec import agent_client as module  # type: ignore[no-redef]
    elif name == "exec":
        from ganger.launcher.remote_exec import exec_command as module  # type: ignore[no-redef]
    elif name == "fetch":
        from ganger.launcher import fetch_code as module  # type: ignore[no-redef]
    elif name == "copy":
        from ganger.train.tiers import copy_checkpoints as module  # type: ignore[no-redef]
    elif name in ("push", "hold"):
        from ganger.launcher.remote_exec import peer_copy

        return peer_copy.push if name == "push" else peer_copy.hold
    elif name == "files":
        from ganger.launcher import send_files as module  # type: ignore[no-redef]
    else:
        return None
    return module.main


def _limit_open_files() -> None:
    """Restore the soft limit of descriptors that the server had before it raised its own."""
    if soft := os.environ.pop("GANGER_OPEN_FILES", ""):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _identity_from_environment(generation: int) -> tuple[str, str, int]:
    """Return gang, node and generation of a launcher that receives its plan later; raise BadServerError if unset."""
    gang, node = (os.environ.get(name, "") for name in ("GANGER_GANG", "GANGER_NODE"))
    if not gang or not node:
        raise BadServerError("GANGER_GANG and GANGER_NODE must be set: the launcher receives its plan from the server")
    return gang, node, generation


def _lock(task: TaskDirectory) -> int | None:
    """Return the lock's descriptor; None if another launcher holds it. Wait for the reaper of a dead launcher."""
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
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return True  # it has only just taken the lock


def _redirect_output(task: TaskDirectory) -> None:
    """Send output to launcher.log: the process that started the launcher may exit."""
    log = os.open(task.file("launcher.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)


class BadArchiveError(Exception):
    """A code archive that cannot be unpacked; the text is one sentence."""

    def __init__(self, text: str, exit_code: int = BAD_CODE) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _unpack_code(task: TaskDirectory, server: Server, identity: tuple[str, str, int]) -> None:
    """Unpack a job's code, if it has some: from the file that came with the pod, or else from the server.

    Raises BadArchiveError.
    """
    archive, digest = os.environ.get("GANGER_CODE_FILE"), os.environ.get("GANGER_CODE_SHA256")
    if archive:
        _unpack(archive, digest or "", os.getcwd())
    elif digest and server.is_remote:
        from ganger.launcher.receive_code import NoCodeError, ServerAwayError, receive_code

        archive = task.file("code.tar.gz")
        try:
            receive_code(server, identity, os.environ.get("GANGER_TOKEN_FILE") or task.file("token"), archive)
            _unpack(archive, digest, os.getcwd())
        except NoCodeError as error:
            raise BadArchiveError(f"the server does not have the code of the job: {error}") from None
        except ServerAwayError as error:
            raise BadArchiveError(str(error), NO_SERVER) from None
        finally:
            if os.path.exists(archive):
                os.unlink(archive)


def _unpack(archive: str, digest: str, directory: str) -> None:
    """Unpack a job's code, which came with its pod; raise BadArchiveError unless its SHA-256 is `digest`.

    The digest was taken at submission: another user of the job's namespace could have replaced the archive.
    """
    import tarfile

    try:
        if _sha256_of(archive) != digest:
            raise BadArchiveError(
                f"the code of the job in {archive} is not what was submitted (its SHA-256 is not {digest})"
            )
        with tarfile.open(archive) as code:
            if hasattr(tarfile, "data_filter"):
                code.extractall(directory, filter="data")
            else:
                # An older Python has no filter; the job's own code is unpacked into its own container.
                code.extractall(directory)  # noqa: S202
    except (OSError, tarfile.TarError) as error:
        raise BadArchiveError(f"cannot unpack the code of the job in {archive}: {error}") from error


def _sha256_of(path: str) -> str:
    import hashlib

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
