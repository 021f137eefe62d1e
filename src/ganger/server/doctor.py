"""Checks of this machine, the state directory and its server.

`examine` changes nothing: it does not start a stopped server nor repair a broken log. `restore_to` restores the log
to an earlier event, on request.
"""

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganger import __version__, registry
from ganger.backends.local.job_files import InvalidNameError, JobFiles
from ganger.client import Client, ClientError
from ganger.engine.eventlog import log_repair
from ganger.engine.eventlog.disk_reserve import RESERVE_BYTES
from ganger.engine.eventlog.event_log import move_aside_command
from ganger.engine.eventlog.log_retention import tree_bytes
from ganger.engine.eventlog.read_only_log import open_snapshot
from ganger.errors import RequestError
from ganger.model.units import GIB_BYTES, format_bytes, format_duration
from ganger.server.state_directory import lock_state_directory, lost_log, network_filesystem
from ganger.settings import Home, SettingsError, read_agent_settings, read_retention_limits

MIN_FREE_BYTES: Final = GIB_BYTES
MAX_FAULTS_SHOWN: Final = 5
MIN_PYTHON: Final = (3, 11)
_ANOTHER_HOME: Final = "set GANGER_HOME to a directory of yours"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `next` is the repair if it is not ok."""

    name: str
    ok: bool
    detail: str
    next: str = ""


def examine(home: Home) -> Iterator[Check]:
    """Yield every check, in the order in which faults should be repaired."""
    yield _python()
    yield from _home(home)
    yield _database(home)
    yield from _storage(home)
    yield _clock(home)
    yield _server(home)
    yield _gpus(home)
    yield _git()
    yield from (Check("plug-in", False, error, "fix or remove it") for error in registry.broken().values())


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= MIN_PYTHON
    return Check("python", ok, f"ganger {__version__} on Python {version}", "" if ok else "use Python 3.11 or later")


def _home(home: Home) -> Iterator[Check]:
    path = home.path
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises where this user may not look
        yield _future_home(path)
        return
    if not path.is_dir():
        yield Check("home", False, f"{path} is not a directory", _ANOTHER_HOME)
        return
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        yield Check(
            "home", False, f"{path} is accessible to other users or belongs to another user", f"chmod 700 {path}"
        )
    elif kind := network_filesystem(path):
        elsewhere = "set GANGER_HOME to a directory on a local disk"
        yield Check("home", False, f"{path} is on a network file system ({kind})", elsewhere)
    else:
        yield Check("home", True, f"{path} is private and on a local disk")
    free = shutil.disk_usage(path).free
    detail = f"{format_bytes(free)} free for {path}"
    remedy = "" if free >= MIN_FREE_BYTES else f"see what takes the space: du -sh {path}/*"
    yield Check("disk", free >= MIN_FREE_BYTES, detail, remedy)
    socket = home.socket("server")
    yield Check("socket", True, f"{socket}" if socket.parent == path else f"{socket}, since {path} is too long for one")


def _future_home(path: Path) -> Check:
    """Check that the first server can create the state directory, by its nearest existing parent."""
    parent = next(candidate for candidate in path.parents if os.path.exists(candidate))  # noqa: PTH110
    if not parent.is_dir():
        reason = f"{parent} is not a directory"
    elif not os.access(parent, os.W_OK | os.X_OK):
        reason = f"you may not write in {parent}"
    elif not shutil.disk_usage(parent).total:
        reason = f"{parent} cannot store files"
    else:
        return Check("home", True, f"{path} does not exist yet: the first server creates it")
    return Check("home", False, f"{path} does not exist and cannot be created: {reason}", _ANOTHER_HOME)


def _database(home: Home) -> Check:
    if loss := lost_log(home):
        return Check("log", False, *loss)
    if not home.database.exists():
        return Check("log", True, f"{home.database} does not exist yet")
    try:
        with closing(_open_read_only(home)) as database:
            result = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
            if result == "ok" and not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return Check("log", True, f"{home.database} is empty: the first server ended before it wrote to it")
            events = database.execute("SELECT count(*) FROM event").fetchone()[0]
    except sqlite3.Error as error:
        result, events = str(error), 0
        if isinstance(error, sqlite3.OperationalError) and shutil.disk_usage(home.path).free < RESERVE_BYTES:
            detail = f"{home.database} cannot be read while its disk is full: {error}"
            return Check("log", False, detail, f"free some space on that disk: df -h {home.path}")
    if result == "ok" and events:
        return _events(home)
    if result == "ok":
        return Check("log", True, f"{home.database} is intact: 0 events")
    return Check("log", False, f"{home.database} is corrupt: {result}", _start_over(home))


def _start_over(home: Home) -> str:
    return f"to start with an empty log and keep this one: {move_aside_command(str(home.database))}"


def _events(home: Home) -> Check:
    """Decode every event and report those that cannot be read."""
    try:
        with open_snapshot(home.database) as log:
            damage = log_repair.examine(log)
    except RequestError as error:
        return Check("log", False, error.detail, error.next)
    if not damage.faults:
        return Check("log", True, f"{home.database} is intact: {damage.events} events")
    faults = [f"event {seq}: {reason}" for seq, reason in [*damage.faults.items()][:MAX_FAULTS_SHOWN]]
    hidden = len(damage.faults) - len(faults)
    if damage.refusal is None:
        summary = f"{home.database} has {len(damage.faults)} unreadable events of {damage.events}, which a server skips"
        remedies = ["no repair needed, jobs continue"]
    else:
        summary = f"no server can start: {damage.refusal.detail}"
        remedies = [_start_over(home)]
    if damage.last_good > 0:
        remedies.append(f"to restore the log to the last good event: ganger doctor --restore-to {damage.last_good}")
    return Check(
        "log", False, "\n".join([summary, *faults, *([f"and {hidden} more"] if hidden else [])]), "; ".join(remedies)
    )


def restore_to(home: Home, seq: int) -> Path:
    """Restore the log to event `seq` and return the backup of the previous log.

    ServerStartError while a server runs; RequestError if there is no such event.
    """
    if not home.database.exists():
        raise RequestError("log_failed", f"there is no event log at {home.database}", "see `ganger doctor`", 500)
    with lock_state_directory(home, None) as lock:
        try:
            return log_repair.go_back(home.database, seq)
        finally:
            os.close(lock)  # a server keeps it until its process ends; this process may go on and start one


def _storage(home: Home) -> Iterator[Check]:
    """Check the sizes of logs, code copies, repositories and the event log against the settings."""
    try:
        limits = read_retention_limits(home)
    except SettingsError as error:
        yield Check("settings", False, str(error), error.next)
        return
    job_files = JobFiles(home=home.path, socket=home.socket("launcher"), launcher=home.path)
    jobs = [path.name for path in home.jobs.iterdir() if path.is_dir()] if home.jobs.is_dir() else []
    logs = sum(_log_bytes(job_files, job) for job in jobs)
    events = sum(path.stat().st_size for path in home.path.glob(f"{home.database.name}*"))
    for name, used, max_bytes, max_age_ms in (
        (f"logs of {len(jobs)} jobs", logs, limits.logs_bytes, limits.logs_ms),
        ("copies of code", tree_bytes(home.code), limits.code_bytes, limits.code_ms),
        ("repositories", tree_bytes(home.git), None, limits.code_ms),
        ("the event log", events, limits.events_bytes, limits.events_ms),
    ):
        ok = max_bytes is None or used <= max_bytes
        size = "" if max_bytes is None else f" of at most {format_bytes(max_bytes)}"
        age = "always" if max_age_ms is None else format_duration(max_age_ms)
        detail = f"{name}: {format_bytes(used)}{size}; kept {age}"
        yield Check(
            "storage", ok, detail, "" if ok else "ganger prune --older-than 1d; limits: docs/reference/retention.md"
        )


def _log_bytes(job_files: JobFiles, job: str) -> int:
    """Return the size of a job's logs, without files that disappear meanwhile."""
    total = 0
    with suppress(OSError, InvalidNameError):  # deleted meanwhile, or a directory that is not a job's
        for path in job_files.logs(job):
            total += path.stat().st_size
    return total


def _clock(home: Home) -> Check:
    try:
        with closing(_open_read_only(home)) as database:
            newest_ms = database.execute("SELECT coalesce(max(at_ms), 0) FROM event").fetchone()[0]
    except sqlite3.Error:
        newest_ms = 0
    behind_ms = newest_ms - time.time_ns() // 1_000_000
    if behind_ms <= 0:
        return Check("clock", True, "the clock is not behind the event log")
    detail = f"the clock is {format_duration(behind_ms)} behind the newest event: it was set back"
    return Check("clock", False, detail, "set the clock; until then the server's time continues from the newest event")


def _open_read_only(home: Home) -> sqlite3.Connection:
    return sqlite3.connect(home.database.absolute().as_uri() + "?mode=ro", uri=True)


def _server(home: Home) -> Check:
    try:
        server = Client(home).connect(start=False).server()
    except ClientError as error:
        if error.next == "ganger server start":
            return Check("server", True, f"{error.detail}: it starts with the first command")
        return Check("server", False, error.detail, error.next)
    detail = f"ganger {server['version']} serves with pid {server['pid']}: {server['health']}"
    ok = server["health"] == "ok"
    return Check("server", ok, detail, "" if ok else f"see {home.server_log}")


def _gpus(home: Home) -> Check:
    from ganger.backends.local.machine import MEMORY_NOTE, machine

    try:
        library = read_agent_settings(home).get("nvml_library")
    except SettingsError as error:
        return Check("devices", False, str(error), error.next)
    this_machine = machine(home.jobs, Path(library) if library else None)
    cpus = f"{this_machine.cpu_milli // 1000} CPUs"
    gpus = f"{len(this_machine.gpus)} {this_machine.gpu_type} GPUs" if this_machine.gpus else "no GPU"
    unavailable = "".join(f"; GPU {index} {reason}" for index, reason in this_machine.unavailable.items())
    return Check("devices", True, f"{cpus}, {gpus} available{unavailable}; {MEMORY_NOTE}")


def _git() -> Check:
    path = shutil.which("git")
    detail = (
        f"{path} records the commit of each job"
        if path
        else "git is not on PATH: jobs run without a record of their commit"
    )
    return Check("git", path is not None, detail, "" if path else "install git")
