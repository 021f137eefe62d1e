"""Examination of this machine, the state directory and its server. Called by `wiring doctor`.

`examine` looks and changes nothing: a server that does not run stays so, and a broken log stays as it is. `restore_to`
takes the log back to an earlier event, when it is told to.
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
from ganger.backends.local.job_files import BadName, JobFiles
from ganger.client import Client, ClientError
from ganger.engine.eventlog import log_repair
from ganger.engine.eventlog.event_log import move_aside_command
from ganger.engine.eventlog.log_retention import tree_bytes
from ganger.engine.eventlog.log_snapshot import open_snapshot
from ganger.errors import RequestError
from ganger.model.units import GIB_BYTES, format_bytes, format_duration
from ganger.server.state_directory import locked
from ganger.settings import Home, SettingsError, network_filesystem, read_retention_limits

ENOUGH_BYTES: Final = GIB_BYTES
FAULTS_TOLD: Final = 5
OLDEST_PYTHON: Final = (3, 11)
_ANOTHER_HOME: Final = "set GANGER_HOME to a directory of yours"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `next` is what to type when it is not ok."""

    name: str
    ok: bool
    detail: str
    next: str = ""


def examine(home: Home) -> Iterator[Check]:
    """Every check, in the order in which one would want to repair them."""
    yield _python()
    yield from _home(home)
    yield _database(home)
    yield from _kept(home)
    yield _clock(home)
    yield _server(home)
    yield _gpus(home)
    yield _git()
    yield from (Check("plug-in", False, why, "correct or remove it") for why in registry.broken().values())


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= OLDEST_PYTHON
    return Check("python", ok, f"ganger {__version__} on Python {version}", "" if ok else "use Python 3.11 or later")


def _home(home: Home) -> Iterator[Check]:
    path = home.path
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises where this user may not look
        yield _home_to_come(path)
        return
    if not path.is_dir():
        yield Check("home", False, f"{path} is not a directory", _ANOTHER_HOME)
        return
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        yield Check("home", False, f"{path} is open to other users, or another's", f"chmod 700 {path}")
    elif kind := network_filesystem(path):
        elsewhere = "set GANGER_HOME to a directory on a disk of this machine"
        yield Check("home", False, f"{path} is on a network file system ({kind})", elsewhere)
    else:
        yield Check("home", True, f"{path} is private and on a disk of this machine")
    free = shutil.disk_usage(path).free
    said = f"{format_bytes(free)} free for {path}"
    yield Check(
        "room", free >= ENOUGH_BYTES, said, "" if free >= ENOUGH_BYTES else f"see what is there: du -sh {path}/*"
    )
    socket = home.socket("server")
    yield Check(
        "socket", True, f"{socket}" if socket.parent == path else f"{socket}, because {path} is too long for one"
    )


def _home_to_come(path: Path) -> Check:
    """Whether the first server can make the state directory: by the nearest directory above it that is there."""
    above = next(parent for parent in path.parents if os.path.exists(parent))  # noqa: PTH110
    if not above.is_dir():
        why = f"{above} is not a directory"
    elif not os.access(above, os.W_OK | os.X_OK):
        why = f"you may not write in {above}"
    elif not shutil.disk_usage(above).total:
        why = f"no files can be kept in {above}"
    else:
        return Check("home", True, f"{path} is not there yet: the first server makes it")
    return Check("home", False, f"{path} is not there and cannot be made: {why}", _ANOTHER_HOME)


def _database(home: Home) -> Check:
    if not home.database.exists():
        return Check("log", True, f"{home.database} is not there yet")
    try:
        with closing(_reading(home)) as database:
            verdict = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
            events = database.execute("SELECT count(*) FROM event").fetchone()[0]
    except sqlite3.Error as error:
        verdict, events = str(error), 0
    if verdict == "ok" and events:
        return _events(home)
    if verdict == "ok":
        return Check("log", True, f"{home.database} is sound: 0 events")
    return Check("log", False, f"{home.database} is corrupt: {verdict}", _anew(home))


def _anew(home: Home) -> str:
    return f"to start over, keeping the old log: {move_aside_command(str(home.database))}"


def _events(home: Home) -> Check:
    """Decode every event, and say which cannot be read."""
    try:
        with open_snapshot(home.database) as log:
            damage = log_repair.examine(log)
    except RequestError as refused:
        return Check("log", False, refused.detail, refused.next)
    if not damage.faults:
        return Check("log", True, f"{home.database} is sound: {damage.events} events")
    told = [f"event {seq}: {why}" for seq, why in [*damage.faults.items()][:FAULTS_TOLD]]
    more = len(damage.faults) - len(told)
    if damage.refusal is None:
        said = f"{home.database} has {len(damage.faults)} events of {damage.events} that a server sets aside"
        remedies = ["nothing has to be done, jobs go on"]
    else:
        said = f"no server starts: {damage.refusal.detail}"
        remedies = [_anew(home)]
    if damage.last_good > 0:
        remedies.append(f"to go back to the last good event: ganger doctor --restore-to {damage.last_good}")
    return Check("log", False, "\n".join([said, *told, *([f"and {more} more"] if more else [])]), "; ".join(remedies))


def restore_to(home: Home, seq: int) -> Path:
    """Take the log back to event `seq`; return the copy that is kept of the whole. CannotServe while a server runs;
    Refused if there is no such event."""
    if not home.database.exists():
        raise RequestError("log_failed", f"there is no event log at {home.database}", "see `ganger doctor`", 500)
    with locked(home, None):
        return log_repair.go_back(home.database, seq)


def _kept(home: Home) -> Iterator[Check]:
    """What logs, copies of code, repositories and events take, against what the settings let them."""
    try:
        limits = read_retention_limits(home)
    except SettingsError as error:
        yield Check("settings", False, str(error), error.next)
        return
    layout = JobFiles(home=home.path, socket=home.socket("launcher"), launcher=home.path)
    jobs = [path.name for path in home.jobs.iterdir() if path.is_dir()] if home.jobs.is_dir() else []
    logs = sum(_log_bytes(layout, job) for job in jobs)
    events = sum(path.stat().st_size for path in home.path.glob(f"{home.database.name}*"))
    for name, used, most, age in (
        (f"logs of {len(jobs)} jobs", logs, limits.logs_bytes, limits.logs_ms),
        ("copies of code", tree_bytes(home.code), limits.code_bytes, limits.code_ms),
        ("repositories", tree_bytes(home.git), None, limits.code_ms),
        ("the event log", events, limits.events_bytes, limits.events_ms),
    ):
        ok = most is None or used <= most
        size = "" if most is None else f" of at most {format_bytes(most)}"
        said = f"{name}: {format_bytes(used)}{size}; kept {'always' if age is None else format_duration(age)}"
        yield Check("kept", ok, said, "" if ok else "ganger prune --older-than 1d; limits: docs/reference/retention.md")


def _log_bytes(layout: JobFiles, job: str) -> int:
    """What the logs of a job take, as far as they stay while they are looked at."""
    total = 0
    with suppress(OSError, BadName):  # it was deleted meanwhile; somebody else's directory
        for path in layout.logs(job):
            total += path.stat().st_size
    return total


def _clock(home: Home) -> Check:
    try:
        with closing(_reading(home)) as database:
            newest_ms = database.execute("SELECT coalesce(max(at_ms), 0) FROM event").fetchone()[0]
    except sqlite3.Error:
        newest_ms = 0
    behind_ms = newest_ms - time.time_ns() // 1_000_000
    if behind_ms <= 0:
        return Check("clock", True, "the clock is not behind the log")
    said = f"the clock is {format_duration(behind_ms)} behind the newest event: it was put back"
    return Check("clock", False, said, "set the clock; until then time goes on from the newest event")


def _reading(home: Home) -> sqlite3.Connection:
    return sqlite3.connect(home.database.absolute().as_uri() + "?mode=ro", uri=True)


def _server(home: Home) -> Check:
    try:
        server = Client(home).connect(start=False).server()
    except ClientError as error:
        if error.next == "ganger server start":
            return Check("server", True, f"{error.detail}: it starts with the first command")
        return Check("server", False, error.detail, error.next)
    said = f"ganger {server['version']} serves with pid {server['pid']}: {server['health']}"
    ok = server["health"] == "ok"
    return Check("server", ok, said, "" if ok else f"see {home.server_log}")


def _gpus(home: Home) -> Check:
    from ganger.backends.local.machine import MEMORY_NOTE, machine

    found = machine(home.jobs)
    cpus = f"{found.cpu_milli // 1000} CPUs"
    gpus = f"{len(found.gpus)} {found.gpu_type} GPUs" if found.gpus else "no GPU"
    others = "".join(f"; GPU {index} {why}" for index, why in found.unavailable.items())
    return Check("devices", True, f"{cpus}, {gpus} on offer{others}; {MEMORY_NOTE}")


def _git() -> Check:
    path = shutil.which("git")
    said = f"{path} tells what was run" if path else "git is not on PATH: jobs run without a record of their commit"
    return Check("git", path is not None, said, "" if path else "install git")
