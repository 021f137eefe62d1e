"""Process information from the kernel under /proc: proc(5)."""

from __future__ import annotations


def read(pid: int | str, name: str) -> bytes:
    """Return a file of the process; empty if the process has ended or is not ours."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def environment(pid: int) -> bytes:
    """Return the variables the process was started with, each between zero bytes."""
    return b"\0" + read(pid, "environ") + b"\0"


def start_ticks(pid: int) -> int:
    """Return the start time in clock ticks since boot, which with the pid is unique for good; raise OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])  # field 22; the name in brackets may hold anything


def is_running(pid: int, ticks: int) -> bool:
    """Return True if that very process still lives."""
    try:
        return start_ticks(pid) == ticks
    except OSError:
        return False
