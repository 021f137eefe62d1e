"""The reaper: a second process that outlives a killed launcher, and kills what it left behind.

Ranks die with their launcher, but not what they started: a shell line's program, their worker processes. The reaper
holds the launcher's lock until all of it is gone, so a free lock means that nothing runs here.
"""

from __future__ import annotations

import ctypes
import os
import signal

from ganger.launcher.health import leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.task_directory import TaskDirectory

NAME = b"ganger-launcher-guard"


def start_reaper(task: TaskDirectory, lock: int) -> None:
    """Fork the reaper; must be called before the launcher opens any file that must close with it."""
    alive, keep_open = os.pipe()
    if reaper := os.fork():
        leftovers.spare(reaper)
        os.close(alive)  # `keep_open` stays open as long as the launcher lives
        return
    try:
        os.close(keep_open)
        _wait_and_clear(task, alive, lock)
    finally:
        os._exit(0)


def clear_leftovers(task: TaskDirectory) -> list[int]:
    """Kill what dead launchers left here; return the generations that this cleared."""
    generations = task.uncleared()
    for generation in generations:
        leftovers.clear(task.generation(generation))
        leftovers.record_cleared(task, generation)
    return generations


def _wait_and_clear(task: TaskDirectory, alive: int, lock: int) -> None:
    os.setsid()  # a signal to the launcher's group must not kill the reaper
    _rename()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.read(alive, 1)  # returns when the launcher is gone
    clear_leftovers(task)
    os.close(lock)


def _rename() -> None:
    """Change the command line, so that a search for launchers does not find the reaper (proc(5): arg_start)."""
    with open("/proc/self/stat", "rb") as file:
        start, end = (int(field) for field in file.read().rpartition(b")")[2].split()[45:47])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, NAME, min(len(NAME), end - start))
