"""A second process that outlives a launcher that was killed, and clears away what it left. Started by `main`.

Ranks die with their launcher by themselves, but not what they started: a shell line's program, a worker of theirs.
The guard holds the launcher's lock until all that is gone, so a free lock means that nothing runs here.
"""

from __future__ import annotations

import ctypes
import os
import signal

from ganger.launcher.health import leftovers
from ganger.launcher.logs.log_records import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.task_directory import TaskDirectory

NAME = b"ganger-launcher-guard"


def start_guard(task: TaskDirectory, lock: int) -> None:
    """Must be called before the launcher has anything open that must end with it."""
    alive, keep_open = os.pipe()
    if guard := os.fork():
        leftovers.spare(guard)
        os.close(alive)  # and `keep_open` stays open for as long as the launcher lives
        return
    try:
        os.close(keep_open)
        _guard(task, alive, lock)
    finally:
        os._exit(0)


def clear_left_over(task: TaskDirectory) -> list[int]:
    """Kill what dead launchers left here; gives the generations that were not cleared until now."""
    found = task.uncleared()
    for generation in found:
        leftovers.clear(task.generation(generation))
        try:
            task.mark_cleared(generation)
        except OSError as error:
            note(f"generation {generation} is cleared, which cannot be written down: {error.strerror}")
    return found


def _guard(task: TaskDirectory, alive: int, lock: int) -> None:
    os.setsid()  # what kills the launcher's group must not kill its guard
    _rename()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.read(alive, 1)  # returns when the launcher is gone
    clear_left_over(task)
    os.close(lock)


def _rename() -> None:
    """Who looks for launchers by their command line must not take this for one (proc(5): arg_start, arg_end)."""
    with open("/proc/self/stat", "rb") as file:
        start, end = (int(field) for field in file.read().rpartition(b")")[2].split()[45:47])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, NAME, min(len(NAME), end - start))
