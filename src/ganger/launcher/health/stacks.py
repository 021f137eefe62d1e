"""Stack dumps of the ranks of a node: the Python stacks of all threads, into `rank-R.stacks`.

Taken by py-spy if it exists and has the permission (it needs no cooperation of the process, which may be stopped), else
by faulthandler, which `ganger.train` has registered for a signal; of other programs, by the kernel's wait function.
Nothing here blocks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress

from ganger.launcher.health.leftovers import has_handler
from ganger.launcher.health.proc_stats import kernel_function, state_of
from ganger.launcher.logs.log_records import note, read_available
from ganger.launcher.protocol.messages import LARGEST, LINE_DIGITS, TEXT_CHARACTERS
from ganger.launcher.task_directory import now_ms, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_S = 0.02
SETTLE_S = 0.1  # time for faulthandler to write
LIMIT_S = 1.0
MAX_PROCESSES = 256
MAX_FRAMES = 32  # of the frames sent to the server
MAIN = "MainThread"
TRACE_SIGNAL = signal.SIGRTMAX - 2  # as in ganger.train.progress_report

_THREAD = re.compile(r"(?:Thread|Current thread) 0x[0-9a-f]+(?: \[(.*)\])? .*")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def find_py_spy(preferred: str | None, environment: dict[str, str]) -> str | None:
    """Return the py-spy to use: the given one, else one in the ranks' PATH."""
    folders = environment.get("PATH", "").split(os.pathsep)
    paths = [preferred, *(os.path.join(folder, "py-spy") for folder in folders if folder)]
    return next((path for path in paths if path is not None and os.access(path, os.X_OK)), None)


class Stacks:
    """One collection of stacks, started by the constructor; `pids` has the processes of each rank."""

    def __init__(self, directory: str, pids: dict[int, list[int]], py_spy: str | None, now: float) -> None:
        self.due = now + POLL_S
        self.states: dict[int, str] = {}
        """State of each rank's first process in /proc, at the start."""
        self.main_frames: dict[int, list[list[Any]]] = {}
        """Innermost frames of each rank's first thread, once collected."""
        self._deadline = now + LIMIT_S
        self._settled_at = now + SETTLE_S
        self._directory = directory
        self._at_ms = now_ms()
        self._dumps: dict[int, list[_Dump]] = {}
        room = MAX_PROCESSES
        for rank, rank_pids in pids.items():
            trace = os.path.join(directory, f"rank-{rank}.trace")
            self._dumps[rank] = [_Dump(pid, trace, py_spy) for pid in rank_pids[:room]]
            self.states[rank] = self._dumps[rank][0].state if self._dumps[rank] else "?"
            room -= len(self._dumps[rank])

    def is_done(self, now: float) -> bool:
        """Return True, and write the files, once there is nothing more to wait for."""
        self.due = now + POLL_S
        dumps = [dump for rank_dumps in self._dumps.values() for dump in rank_dumps]
        if now < self._deadline and (now < self._settled_at or any(dump.is_running for dump in dumps)):
            return False
        for rank, rank_dumps in self._dumps.items():
            processes = [dump.result() for dump in rank_dumps]
            threads = [thread for process in processes for thread in process["threads"]]
            first = [thread["frames"] for thread in threads if thread["name"] == MAIN]
            self.main_frames[rank] = first[0][:MAX_FRAMES] if first else []
            content = {"rank": rank, "at_ms": self._at_ms, "processes": processes}
            try:
                write_json(os.path.join(self._directory, f"rank-{rank}.stacks"), content)
            except OSError as error:
                note(f"cannot write the stacks of rank {rank}: {error.strerror}")
        return True


class _Dump:
    """Stack dump of one process."""

    def __init__(self, pid: int, trace: str, py_spy: str | None) -> None:
        self.state = state_of(pid)
        self._pid = pid
        self._trace = trace
        self._trace_start = _size(trace)
        self._is_signalled = self.state not in ("T", "D") and has_handler(pid, TRACE_SIGNAL)
        self._output = b""
        self._spy = self._start(py_spy) if py_spy is not None else None
        if self._is_signalled:
            _send(pid)

    @property
    def is_running(self) -> bool:
        self._read()
        return self._spy is not None and self._spy.poll() is None

    def result(self) -> dict[str, Any]:
        """Return what has been collected."""
        if self.is_running and self._spy is not None:
            self._spy.kill()
        self._read()
        if self._spy is not None and self._spy.stdout is not None:
            self._spy.stdout.close()
        threads, source = _parse_py_spy(self._output), "py-spy"
        if not threads and self._is_signalled:
            threads, source = _parse_faulthandler(self._trace, self._trace_start), "faulthandler"
        return {
            "pid": self._pid,
            "state": self.state,
            "source": source if threads else "",
            "threads": threads,
            "kernel_function": kernel_function(self._pid),
        }

    def _start(self, py_spy: str) -> subprocess.Popen[bytes] | None:
        # By default py-spy stops the process, which fails if it is already stopped.
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
        while data := read_available(self._spy.stdout.fileno()):
            self._output += data


def _parse_py_spy(text: bytes) -> list[dict[str, Any]]:
    """Parse the threads in py-spy's output, each with its frames, the innermost first.

    A program that has not imported `threading` has no names of threads: the first one has the id of the process.
    """
    try:
        return [
            {
                "name": MAIN if thread["os_thread_id"] == thread["pid"] else thread["thread_name"] or "",
                "frames": [_frame(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"]],
            }
            for thread in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def _parse_faulthandler(path: str, start: int) -> list[dict[str, Any]]:
    """Parse what faulthandler wrote from `start` on; the last thread is the first one of its process."""
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
    """Return a frame within the server's limits: py-spy gives a negative line for a frame that has none."""
    return [str(function)[:TEXT_CHARACTERS], str(file)[:TEXT_CHARACTERS], int(min(max(0, line), LARGEST))]


def _send(pid: int) -> None:
    with suppress(OSError):  # the process has ended
        os.kill(pid, TRACE_SIGNAL)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
