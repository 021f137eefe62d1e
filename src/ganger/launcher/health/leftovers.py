"""Processes that a generation left behind: found by the mark in their environment or by descent, and killed.

The mark is GANGER_TASK_DIR, the generation's own directory: nodes that share a machine differ in it. A process that has
cleared its environment is still found while the launcher lives, because orphans become the launcher's children. A
signal goes only to the process that was found, never to another one that has its pid by now.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from ganger.launcher.health.procfs import environment, is_running, read
from ganger.launcher.logs.log_records import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ganger.launcher.task_directory import TaskDirectory

MARK = "GANGER_TASK_DIR"
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.5

_spared: set[int] = set()


def mark(directory: str) -> bytes:
    """Return the environment variable that marks a process of the generation in `directory`."""
    return b"\0" + os.fsencode(f"{MARK}={directory}") + b"\0"


def spare(pid: int, *, spared: bool = True) -> None:
    """Exclude a child of the launcher, its reaper or zygote, from the left-over processes; or end that."""
    if spared:
        _spared.add(pid)
    else:
        _spared.discard(pid)


def find(directory: str, *, descend: bool = False) -> list[tuple[int, int]]:
    """Return (pid, start) of the generation's remaining processes; with `descend` also this process's descendants."""
    table = {pid: (parent, start) for pid, parent, _, start in _processes()}
    own = os.getpid()
    return [
        (pid, start)
        for pid, (_, start) in table.items()
        if pid != own and pid not in _spared and (_has_mark(pid, directory) or (descend and _descends(pid, own, table)))
    ]


def outside_sessions(directory: str, sessions: frozenset[int]) -> list[tuple[int, int]]:
    """Return the generation's processes outside these sessions."""
    return [
        (pid, start) for pid, _, session, start in _processes() if session not in sessions and _has_mark(pid, directory)
    ]


def send(processes: list[tuple[int, int]], number: int) -> None:
    """Send a signal to each process that still lives."""
    for pid, start in processes:
        with suppress(OSError):  # it may have ended, or become another user's
            if sys.version_info >= (3, 9):
                pidfd = os.pidfd_open(pid)
                try:
                    if is_running(pid, start):
                        signal.pidfd_send_signal(pidfd, number)
                finally:
                    os.close(pidfd)
            elif is_running(pid, start):
                os.kill(pid, number)


def record_cleared(task: TaskDirectory, generation: int) -> None:
    """Record that nothing of the generation is left, or log why that is impossible."""
    try:
        task.mark_cleared(generation)
    except OSError as error:
        note(f"cannot record that generation {generation} is cleared: {error.strerror}")


def clear(directory: str) -> None:
    """Kill the generation's processes until none is left; blocks until then."""
    pause_s = FIRST_PAUSE_S
    while True:
        processes = find(directory)
        if not processes:
            return
        send(processes, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def handlers(directory: str, sessions: frozenset[int], number: int) -> list[tuple[int, int]]:
    """Return the generation's processes, by mark or session, that have a handler for the signal."""
    return [
        (pid, start)
        for pid, _, session, start in _processes()
        if (session in sessions or _has_mark(pid, directory)) and has_handler(pid, number)
    ]


def _processes() -> Iterator[tuple[int, int, int, int]]:
    """Yield (pid, parent, session, start) of each live process; zombies are not live."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read(name, "stat").rpartition(b")")[2].split()
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[1]), int(fields[3]), int(fields[19])


def _has_mark(pid: int, directory: str) -> bool:
    return mark(directory) in environment(pid)


def _descends(pid: int, ancestor: int, table: dict[int, tuple[int, int]]) -> bool:
    while pid in table and pid != ancestor and pid not in _spared:
        pid = table[pid][0]
    return pid == ancestor


def has_handler(pid: int, number: int) -> bool:
    """Return True if the process has a handler for the signal."""
    for line in read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
