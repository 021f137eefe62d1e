"""What the kernel tells of a process under /proc: proc(5). Read by `strays`, `vitals` and whoever must know a process
again that it has met before.
"""

from __future__ import annotations


def read(pid: int | str, name: str) -> bytes:
    """A file of the process; empty when the process is gone or not ours."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def environment(pid: int) -> bytes:
    """The variables it was started with, each between zero bytes."""
    return b"\0" + read(pid, "environ") + b"\0"


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; with the pid it names a process for ever. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])  # field 22; the name in brackets may hold anything


def is_running(pid: int, ticks: int) -> bool:
    """Whether that very process still lives."""
    try:
        return start_ticks(pid) == ticks
    except OSError:
        return False
