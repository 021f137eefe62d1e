"""Processes that a generation left behind: found by the mark in their environment, or by their descent; killed.

The mark is GANGER_TASK_DIR, the generation's own directory: nodes that share a machine differ in it. A process that
has cleaned its environment away is still found while the launcher lives: what has lost its parent becomes the
launcher's child. A signal goes to the process that was found, and never to another that has its number by now.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from ganger.launcher.health.procfs import environment, is_running, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "GANGER_TASK_DIR"
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.5

_spared: set[int] = set()


def mark(directory: str) -> bytes:
    """Among the variables of a process that is of the generation in `directory`."""
    return b"\0" + os.fsencode(f"{MARK}={directory}") + b"\0"


def spare(pid: int) -> None:
    """A child of the launcher that is no stray: its guard."""
    _spared.add(pid)


def strays(directory: str, *, descend: bool = False) -> list[tuple[int, int]]:
    """What is left of the generation in `directory`, each as pid and start; with `descend`, when all its ranks
    have been waited for, also what descends from this process."""
    table = {pid: (parent, start) for pid, parent, _, start in _processes()}
    own = os.getpid()
    return [
        (pid, start)
        for pid, (_, start) in table.items()
        if pid != own and pid not in _spared and (_has_mark(pid, directory) or (descend and _descends(pid, own, table)))
    ]


def apart(directory: str, sessions: frozenset[int]) -> list[tuple[int, int]]:
    """What is of the generation but in none of these sessions."""
    return [
        (pid, start) for pid, _, session, start in _processes() if session not in sessions and _has_mark(pid, directory)
    ]


def send(found: list[tuple[int, int]], number: int) -> None:
    """A signal to each that still lives."""
    for pid, start in found:
        with suppress(OSError):  # it may have ended by itself, or have become another user's
            if sys.version_info >= (3, 9):
                pidfd = os.pidfd_open(pid)
                try:
                    if is_running(pid, start):
                        signal.pidfd_send_signal(pidfd, number)
                finally:
                    os.close(pidfd)
            elif is_running(pid, start):
                os.kill(pid, number)


def clear(directory: str) -> None:
    """Kill until nothing is left; blocks as long as that takes."""
    pause_s = FIRST_PAUSE_S
    while True:
        found = strays(directory)
        if not found:
            return
        send(found, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def catchers(directory: str, sessions: frozenset[int], number: int) -> list[tuple[int, int]]:
    """What is of the generation, by its mark or in `sessions`, and has a handler for the signal."""
    return [
        (pid, start)
        for pid, _, session, start in _processes()
        if (session in sessions or _has_mark(pid, directory)) and catches(pid, number)
    ]


def _processes() -> Iterator[tuple[int, int, int, int]]:
    """(pid, parent, session, start) of what lives; a zombie does not."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read(name, "stat").rpartition(b")")[2].split()
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[1]), int(fields[3]), int(fields[19])


def _has_mark(pid: int, directory: str) -> bool:
    return mark(directory) in environment(pid)


def _descends(pid: int, ancestor: int, table: dict[int, tuple[int, int]]) -> bool:
    while pid in table and pid != ancestor:
        pid = table[pid][0]
    return pid == ancestor


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    for line in read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
