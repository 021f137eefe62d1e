"""Where the ranks of a node are: the Python stacks of all threads, into `rank-R.stacks`. Called by `lookout`.

By py-spy where it is found and may look (it needs nothing of the process, which may be stopped), else by faulthandler,
which `ganger.train` has set up for a signal; of what is no Python, the kernel's word. Nothing here waits.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress

from ganger.launcher.health.leftovers import catches
from ganger.launcher.health.proc_stats import kernel_function, state_of
from ganger.launcher.logs.log_records import note, taken
from ganger.launcher.protocol.messages import LARGEST, LINE_DIGITS, TEXT_CHARACTERS
from ganger.launcher.task_directory import now_ms, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_S = 0.02
SETTLE_S = 0.1  # for faulthandler to write
LIMIT_S = 1.0
MOST_PROCESSES = 256
MOST_FRAMES = 32  # of a place that is told
MAIN = "MainThread"
TRACE_SIGNAL = signal.SIGRTMAX - 2  # as in ganger.train.progress_report

_THREAD = re.compile(r"(?:Thread|Current thread) 0x[0-9a-f]+(?: \[(.*)\])? .*")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def program(given: str | None, environment: dict[str, str]) -> str | None:
    """The py-spy to use: the one that is given, else one that the ranks could run."""
    folders = environment.get("PATH", "").split(os.pathsep)
    found = [given, *(os.path.join(folder, "py-spy") for folder in folders if folder)]
    return next((path for path in found if path is not None and os.access(path, os.X_OK)), None)


class Stacks:
    """Begins to take them when it is made. `pids`: the processes of each rank."""

    def __init__(self, directory: str, pids: dict[int, list[int]], py_spy: str | None, now: float) -> None:
        self.due = now + POLL_S
        self.states: dict[int, str] = {}
        """The state of each rank's first process, as /proc has it, at the beginning."""
        self.places: dict[int, list[list[Any]]] = {}
        """The innermost frames of each rank's first thread, once it is done."""
        self._until = now + LIMIT_S
        self._settled_at = now + SETTLE_S
        self._directory = directory
        self._at_ms = now_ms()
        self._looks: dict[int, list[_Look]] = {}
        room = MOST_PROCESSES
        for rank, those in pids.items():
            self._looks[rank] = [_Look(pid, self._trace(rank), py_spy) for pid in those[:room]]
            self.states[rank] = self._looks[rank][0].state if self._looks[rank] else "?"
            room -= len(self._looks[rank])

    def is_done(self, now: float) -> bool:
        """Whether there is nothing more to wait for, and the files are there."""
        self.due = now + POLL_S
        looks = [look for looks in self._looks.values() for look in looks]
        if now < self._until and (now < self._settled_at or any(look.is_looking for look in looks)):
            return False
        for rank, those in self._looks.items():
            processes = [look.found() for look in those]
            threads = [thread for process in processes for thread in process["threads"]]
            first = [thread["frames"] for thread in threads if thread["name"] == MAIN]
            self.places[rank] = first[0][:MOST_FRAMES] if first else []
            found = {"rank": rank, "at_ms": self._at_ms, "processes": processes}
            try:
                write_json(os.path.join(self._directory, f"rank-{rank}.stacks"), found)
            except OSError as error:
                note(f"the stacks of rank {rank} cannot be written down: {error.strerror}")
        return True

    def _trace(self, rank: int) -> str:
        return os.path.join(self._directory, f"rank-{rank}.trace")


class _Look:
    """At one process."""

    def __init__(self, pid: int, trace: str, py_spy: str | None) -> None:
        self.state = state_of(pid)
        self._pid = pid
        self._trace = trace
        self._trace_at = _size(trace)
        self._asked = self.state not in ("T", "D") and catches(pid, TRACE_SIGNAL)
        self._output = b""
        self._spy = self._start(py_spy) if py_spy is not None else None
        if self._asked:
            _send(pid)

    @property
    def is_looking(self) -> bool:
        self._read()
        return self._spy is not None and self._spy.poll() is None

    def found(self) -> dict[str, Any]:
        """What there is by now."""
        if self.is_looking and self._spy is not None:
            self._spy.kill()
        self._read()
        if self._spy is not None and self._spy.stdout is not None:
            self._spy.stdout.close()
        threads, by = _spied(self._output), "py-spy"
        if not threads and self._asked:
            threads, by = _dumped(self._trace, self._trace_at), "faulthandler"
        return {
            "pid": self._pid,
            "state": self.state,
            "by": by if threads else "",
            "threads": threads,
            "kernel": kernel_function(self._pid),
        }

    def _start(self, py_spy: str) -> subprocess.Popen[bytes] | None:
        # It stops the process by default, which it cannot where that is stopped already.
        command = [py_spy, "dump", "--json", "--nonblocking", "--pid", str(self._pid)]
        try:
            spy = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except OSError:
            return None
        if spy.stdout is not None:
            os.set_blocking(spy.stdout.fileno(), False)
        return spy

    def _read(self) -> None:
        if self._spy is None or self._spy.stdout is None or self._spy.stdout.closed:
            return
        while data := taken(self._spy.stdout.fileno()):
            self._output += data


def _spied(text: bytes) -> list[dict[str, Any]]:
    """Threads with their frames, the innermost first, as py-spy tells them."""
    try:
        return [
            {
                "name": thread["thread_name"] or "",
                "frames": [_frame(each["name"], each["filename"], each["line"]) for each in thread["frames"]],
            }
            for thread in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def _dumped(path: str, start: int) -> list[dict[str, Any]]:
    """The same, as faulthandler wrote them behind that place. The last thread is the first one of its process."""
    threads: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        thread, frame = _THREAD.fullmatch(line), _FRAME.fullmatch(line)
        if thread:
            threads.append({"name": thread[1] or "", "frames": []})
        elif frame and threads:
            line_number = int(frame[2][:LINE_DIGITS]) if frame[2].isdigit() else 0
            threads[-1]["frames"].append(_frame(frame[3], frame[1], line_number))
    if threads:
        threads[-1]["name"] = MAIN
    return threads


def _frame(function: str, file: str, line: int) -> list[Any]:
    """Return a frame as the server takes it: py-spy tells a negative line of what has none."""
    return [str(function)[:TEXT_CHARACTERS], str(file)[:TEXT_CHARACTERS], int(min(max(0, line), LARGEST))]


def _send(pid: int) -> None:
    with suppress(OSError):  # it has ended
        os.kill(pid, TRACE_SIGNAL)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
