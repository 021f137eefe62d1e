"""The process that simulates for `ganger sim`: `python -m ganger.simulation`, whose last line is the result as JSON."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ganger.cli.exit_codes import UNREACHABLE
from ganger.cli.output.error_output import Problem

Record = dict[str, Any]


def run_simulation(*arguments: str) -> Record:
    """Run a simulation and return its result. Problem: the error that it reports."""
    with start_simulation(*arguments) as process:
        return parse_result(process.communicate()[0])


@contextmanager
def start_simulation(*arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a simulation; terminate it and its child processes if the caller leaves the context with an exception.

    Ctrl-C reaches every process of a terminal, but only this one handles it: the new process inherits a signal mask
    that blocks it. Until the mask is restored here, a handler records the signal: if it was ignored instead, it would
    be lost when another thread receives it.
    """
    interrupts: list[int] = []
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    old_handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with subprocess.Popen(command_line(*arguments), stdout=subprocess.PIPE) as process:
            try:
                signal.signal(signal.SIGINT, old_handler)
                signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
                if interrupts:
                    raise KeyboardInterrupt
                yield process
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, old_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def command_line(*arguments: str) -> list[str]:
    """Return the command line of the process."""
    return [sys.executable, "-P", "-m", "ganger.simulation", *arguments]


def parse_result(line: bytes) -> Record:
    """Return the result that the process printed. Problem: the error in it, or that there is none."""
    try:
        result: Record = json.loads(line)
    except ValueError:
        raise Problem("the simulation failed: its output is above", "", UNREACHABLE) from None
    if "error" in result:
        raise Problem(result["error"], result["next"])
    return result
