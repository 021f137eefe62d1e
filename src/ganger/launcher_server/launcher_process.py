"""Identity of a launcher's process, and description of a signal."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """One process for as long as it lives: its pid, and its start in clock ticks since boot."""

    pid: int
    start_ticks: int


def describe_signal(number: int) -> str:
    """Return number and name of a signal: `signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
