"""How a launcher's process is known, and a signal told. Used by `link`, `facts` and backends."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """One process, for as long as it lives: its number, and when it began in ticks since the machine did."""

    pid: int
    start_ticks: int


def signal_words(number: int) -> str:
    """A signal as a person knows it: `signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
