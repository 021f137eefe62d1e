"""The progress of runs in processes of their own, as JSON on lines of its own: `done`, from 0 to 1, `ended` and `runs`.

The answer of a simulation process is its last line; the command line shows the lines before as progress.
"""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ganger.simulation.compare.process_pool import RunFailure, RunProgress, RunResult, Work, run_in_processes
from ganger.simulation.json_output import Record


def run_with_progress(work: Work, inputs: Sequence[Any], keep: Callable[[int, Any], None]) -> dict[int, str]:
    """Do `work` on each input and print the progress; return the reasons of the runs that failed, by index.

    keep: receives index and result of each run when it has ended
    """
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    fractions, ended, failures = [0.0] * len(inputs), 0, dict[int, str]()
    for message in run_in_processes(work, inputs):
        match message:
            case RunProgress(index, fraction):
                fractions[index] = fraction
            case RunResult(index, result):
                fractions[index], ended = 1, ended + 1
                keep(index, result)
            case RunFailure(index, reason):
                fractions[index], ended, failures[index] = 1, ended + 1, reason
        print_json({"done": sum(fractions) / len(fractions), "ended": ended, "runs": len(inputs)})
    return dict(sorted(failures.items()))


def print_json(record: Record) -> None:
    """Print a record on a line of its own, at once."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _exit_on_sigterm(_signal: int, _frame: object) -> NoReturn:
    """Leave the loop over the messages, which ends all processes."""
    raise SystemExit(128 + signal.SIGTERM)
