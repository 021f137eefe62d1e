"""Training progress: lines appended to this rank's report, which the launcher and the server read.

The first line of a process has its pid and the last one tells that it ended normally, so that the launcher can tell a
hang from an exit. Nothing here ever raises into training code, and a full disk only loses the line.
"""

from __future__ import annotations

import math
import os
import sys
import time

from ganger.train import read_lock
from ganger.train.launcher_environment import rank, task_directory

_file: tuple[str, int, int] | None = None  # path, file descriptor, pid
_phase: str | None = None
_step = -1
_warned = False


def report(step: int, **metrics: object) -> None:
    """Report that `step` is done, with metrics: `report(step=12, loss=2.3, lr=1e-4)`. Does nothing outside ganger.

    Metrics may be anything that `float()` accepts, including a tensor of one element (for a GPU tensor this waits for
    the GPU). A value that is not finite is reported as null.
    """
    global _step  # noqa: PLW0603 (of one process)
    if task_directory() is None:
        return
    try:
        _step = int(step)
        numbers = {name: _finite(float(value)) for name, value in metrics.items()}  # type: ignore[arg-type]
        append({"step": _step, "metrics": numbers})
        read_lock.release()
    except Exception as error:  # noqa: BLE001 (a report is not worth a training run)
        warn_once(f"ganger: a report was dropped: {error}")


def newest_step() -> int:
    """Return the step that this process reported last; -1 if it has reported none."""
    return _step


class phase:  # noqa: N801 (used like a function)
    """Report what the job is doing now: `phase("eval")` from here on, or `with phase("eval"):` for a block."""

    def __init__(self, name: str | None) -> None:
        self._before = _phase
        _enter(name)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _enter(self._before)


def append(record: dict[str, object]) -> None:
    """Append one line with the time to this rank's report, with a single write; do nothing outside ganger."""
    directory = task_directory()
    if directory is None:
        return
    import json

    path = os.path.join(directory, f"rank-{rank()}.report")
    try:
        if _file is None or _file[0] != path or _file[2] != os.getpid():
            record = {"pid": os.getpid(), **record}
            _open(path)
        line = json.dumps({"t": int(time.time() * 1000), **record}).encode() + b"\n"
        if _file is not None:
            os.write(_file[1], line)
    except OSError:
        pass  # a full disk; contextlib would cost more than the rest of the import


def _open(path: str) -> None:
    global _file  # noqa: PLW0603 (one report of one process)
    is_new = _file is None or _file[2] != os.getpid()
    _file = (path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), os.getpid())
    if is_new:
        _begin_liveness(path)


def _enter(name: str | None) -> None:
    global _phase  # noqa: PLW0603 (what one process does)
    _phase = None if name is None else str(name)
    append({"phase": _phase})


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def warn_once(message: str) -> None:
    """Write the first message of this process to stderr; drop later ones."""
    global _warned  # noqa: PLW0603 (once a process)
    from contextlib import suppress

    if not _warned:
        _warned = True
        with suppress(Exception):  # there may be no stderr
            sys.stderr.write(message + "\n")


def _begin_liveness(report: str) -> None:
    """Let the launcher tell a hung process from a busy one, and a killed one from one that exited.

    Registers stack dumps on a signal, and a last line of the report at exit. `report` is the path of this rank's
    report. Raises nothing: training continues without it.
    """
    from contextlib import suppress

    _report_exit()
    with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no such signal here, or no room
        _write_stacks_on_signal(report[: -len(".report")] + ".trace")


def _report_exit() -> None:
    """Report the exit of this process, also for a child of multiprocessing, which skips atexit functions."""
    import atexit

    def end() -> None:
        append({"end": os.getpid()})

    atexit.register(end)
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].Finalize(None, end, exitpriority=-100)


def _write_stacks_on_signal(path: str) -> None:
    """Write the stacks of all threads on a signal.

    C code writes them, so that it works while one thread holds the interpreter. Does nothing if the script has a
    handler.
    """
    import faulthandler
    import signal

    number = signal.SIGRTMAX - 2  # few programs use any real-time signal, and those that do count from the ends
    if signal.getsignal(number) is signal.SIG_DFL and not _is_caught(number):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(number, file=file, all_threads=True)


def _is_caught(number: int) -> bool:
    """Return True if the process handles a signal, also if C code or the parent installed the handler."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True
