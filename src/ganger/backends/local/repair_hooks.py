"""Hooks that repair or test a node: programs of the site that the server's machine runs, without a shell.

A hook is run once, also if the server ends while it runs: its directory below `repairs` is made before it starts, and
its end is written there before it is reported. Of one whose server has ended the exit code is unknown: it has failed.
"""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from ganger.model.node_health.health_event import RepairEnded
from ganger.model.units import format_duration
from ganger.ports import RepairCall, Report

KEPT: Final = 100
"""Directories of hooks that are kept, for their output."""
TAIL_BYTES: Final = 4096
MAX_DETAIL_CHARACTERS: Final = 300
_TOO_LATE: Final = False, "the server was away for a day: the hook was not begun"
_PID, _END, _OUTPUT = "pid", "end.json", "output"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LD_LIBRARY_PATH", "VIRTUAL_ENV")

_log = logging.getLogger(__name__)


class HookRunner:
    """The hooks of one server."""

    def __init__(self, directory: Path) -> None:
        """Keep what hooks write below `directory`."""
        self._directory = directory

    def run(self, call: RepairCall, report: Report) -> None:
        """Run a hook unless that was done before; its end is reported. Returns at once."""
        name = f"repair-{call.node}-{call.repair}"
        threading.Thread(target=self._run, args=(call, report), name=name, daemon=True).start()

    def _run(self, call: RepairCall, report: Report) -> None:
        try:
            has_succeeded, detail = self._ended(call)
        except OSError as error:
            _log.warning("cannot run the hook %s of node %s: %s", call.step, call.node, error)
            has_succeeded, detail = False, f"the hook {call.step} cannot be run: {error}"
        detail = detail[:MAX_DETAIL_CHARACTERS]
        report(RepairEnded(node=call.node, repair=call.repair, has_succeeded=has_succeeded, detail=detail))

    def _ended(self, call: RepairCall) -> tuple[bool, str]:
        """Return how the hook ended, once it has."""
        folder = self._directory / _UNSAFE.sub("_", f"{call.node}.{call.repair}.{call.begun_ms}")
        self._directory.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            end = _known_end(folder) or _end_of_orphan(folder, call)
        else:
            _prune(self._directory)
            end = _TOO_LATE if call.is_over else _run_program(folder, call)
        draft = folder / f".{_END}"
        draft.write_text(json.dumps(end))
        draft.replace(folder / _END)
        return end


def _known_end(folder: Path) -> tuple[bool, str] | None:
    with suppress(FileNotFoundError, ValueError, TypeError):
        has_succeeded, detail = json.loads((folder / _END).read_text())
        return bool(has_succeeded), str(detail)
    return None


def _run_program(folder: Path, call: RepairCall) -> tuple[bool, str]:
    with (folder / _OUTPUT).open("wb") as output:
        try:
            process = subprocess.Popen(
                call.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(call),
                start_new_session=True,
            )
        except OSError as error:
            return False, f"{call.step}: {call.argv[0]} cannot be started: {error.strerror}"
    whole = folder / f"{_PID}.new"  # a server that ends while it writes leaves no file with half of it
    whole.write_text(f"{process.pid} {_created(process.pid)}")
    whole.replace(folder / _PID)
    try:
        code = process.wait(call.timeout_ms / 1000)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        process.wait()
        return False, f"{call.step}: the hook did not end within {format_duration(call.timeout_ms)}: it was killed"
    if code == 0:
        return True, f"{call.step} succeeded"
    ended = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return False, f"{call.step}: the hook {ended}{_last_line(folder)}"


def _end_of_orphan(folder: Path, call: RepairCall) -> tuple[bool, str]:
    """Return the end of a hook that a server before this one started, once its process is gone."""
    with suppress(OSError, ValueError, psutil.Error):
        pid, created = (folder / _PID).read_text().split()
        if _created(int(pid)) == created:
            try:
                psutil.Process(int(pid)).wait(call.timeout_ms / 1000)
            except psutil.TimeoutExpired:
                _kill(int(pid))
    return False, f"{call.step}: the server ended while the hook ran: its exit code is unknown"


def _created(pid: int) -> str:
    """Return when a process was created, which tells it from a later one of its id; empty for none."""
    with suppress(psutil.Error):
        return str(psutil.Process(pid).create_time())
    return ""


def _kill(pid: int) -> None:
    """Kill a hook with all processes of its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _environment(call: RepairCall) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES}
    return own | call.variables


def _last_line(folder: Path) -> str:
    with (folder / _OUTPUT).open("rb") as output:
        output.seek(max(0, os.fstat(output.fileno()).st_size - TAIL_BYTES))
        lines = output.read().decode(errors="replace").split("\n")
    written = [line.strip() for line in lines if line.strip()]
    return f": {written[-1]}" if written else ""


def _prune(directory: Path) -> None:
    """Remove the oldest directories of hooks that have ended."""
    ended: list[tuple[float, Path]] = []
    for folder in directory.iterdir():
        with suppress(OSError):
            ended.append(((folder / _END).stat().st_mtime, folder))
    for _, folder in sorted(ended)[: max(0, len(ended) - KEPT)]:
        shutil.rmtree(folder, ignore_errors=True)
