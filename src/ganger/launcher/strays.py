"""Processes that a generation left behind: found by the mark in their environment, or by their session; killed.

The mark is GANGER_TASK_DIR, the generation's own directory: nodes that share a machine differ in it. A process that
has cleaned its environment away is still found while it is in the session of a rank and descends from the launcher.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "GANGER_TASK_DIR"
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.5


def strays(directory: str, sessions: frozenset[int] = frozenset()) -> list[int]:
    """Pids of what is left of the generation in `directory`; `sessions` are its ranks', all of them waited for."""
    table = {pid: (parent, session) for pid, parent, session in _processes()}
    own = os.getpid()
    return [
        pid
        for pid, (_, session) in table.items()
        if pid != own
        and (_has_mark(pid, directory) or (session in sessions and session not in table and _descends(pid, own, table)))
    ]


def apart(directory: str, sessions: frozenset[int]) -> list[int]:
    """Pids of what is of the generation but in none of these sessions."""
    return [pid for pid, _, session in _processes() if session not in sessions and _has_mark(pid, directory)]


def send(pids: list[int], number: int) -> None:
    """A signal to each that still lives."""
    for pid in pids:
        with suppress(OSError):  # it may have ended by itself, or have become another user's
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


def catchers(directory: str, sessions: frozenset[int], number: int) -> list[int]:
    """Pids of the generation, by its mark or in `sessions`, that have a handler for the signal."""
    return [
        pid
        for pid, _, session in _processes()
        if (session in sessions or _has_mark(pid, directory)) and _catches(pid, number)
    ]


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, session) of what lives; a zombie does not."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[1]), int(fields[3])


def _has_mark(pid: int, directory: str) -> bool:
    environment = b"\0" + _read(f"/proc/{pid}/environ") + b"\0"
    return b"\0" + os.fsencode(f"{MARK}={directory}") + b"\0" in environment


def _descends(pid: int, ancestor: int, table: dict[int, tuple[int, int]]) -> bool:
    while pid in table and pid != ancestor:
        pid = table[pid][0]
    return pid == ancestor


def _catches(pid: int, number: int) -> bool:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _read(path: str) -> bytes:
    """Empty when the process is gone or not ours."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
