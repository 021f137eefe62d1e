"""What lets the launcher tell a process that stands still from one that is at work, and one that is gone from one that
has ended: stacks on a signal, and a last line. Set up by `reporting` with the first report of a process.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def begin(report: str, append: Callable[[dict[str, object]], None]) -> None:
    """`report` is the path of this rank's report. Raises nothing: training goes on without."""
    from contextlib import suppress

    _say_when_it_ends(append)
    with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no such signal here, or no room
        _write_stacks_on_signal(report[: -len(".report")] + ".trace")


def _say_when_it_ends(append: Callable[[dict[str, object]], None]) -> None:
    """Also of a child of multiprocessing, which ends without what atexit knows."""
    import atexit

    def end() -> None:
        append({"end": os.getpid()})

    atexit.register(end)
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].Finalize(None, end, exitpriority=-100)


def _write_stacks_on_signal(path: str) -> None:
    """Of all threads, from C code, so that it works while one keeps the interpreter to itself. Never where the script
    has a handler of its own."""
    import faulthandler
    import signal

    number = signal.SIGRTMAX - 2  # few programs use any real-time signal, and those that do count from the ends
    if signal.getsignal(number) is signal.SIG_DFL and not _is_caught(number):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(number, file=file, all_threads=True)


def _is_caught(number: int) -> bool:
    """By C code too; by this, in the parent, too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True
