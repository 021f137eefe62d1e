"""The messages that a simulation process prints before its result, and a bar that shows the progress of its runs."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ganger.cli.output.print_output import supports_colour
from ganger.cli.sim.simulation_process import Record, parse_result, start_simulation

ShowMessage = Callable[[Record], None]
_MESSAGES: Final = (b'{"done"', b'{"probe"')
"""Beginnings of the lines that are messages."""


def run_with_progress(*arguments: str) -> Record:
    """Run simulations, show their progress on a terminal, and return the result."""
    with _progress_bar() as show_progress:
        return run_with_messages(show_progress, *arguments)


def run_with_messages(show_message: ShowMessage, *arguments: str) -> Record:
    """Run a simulation process, show each of its messages when it comes, and return the result in the last line."""
    with start_simulation(*arguments) as process:
        last_line = b""
        for line in process.stdout or ():
            if line.startswith(_MESSAGES):
                show_message(json.loads(line))
            last_line = line
        return parse_result(last_line)


@contextmanager
def _progress_bar() -> Iterator[ShowMessage]:
    """Show a bar with the time that is left if stderr is a terminal.

    A message has `done`, from 0 to 1, and how many of the `runs` have `ended`.
    """
    if not supports_colour(sys.stderr):
        yield lambda _progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=1.0)

        def show_progress(progress: Record) -> None:
            description = f"{progress['ended']} of {progress['runs']} runs"
            bar.update(task, completed=progress["done"], description=description)

        yield show_progress
