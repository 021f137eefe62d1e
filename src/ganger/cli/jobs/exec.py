"""`ganger exec`: a command beside a rank that runs."""

import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import click

from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import job_argument
from ganger.cli.output.error_output import Problem

NEITHER: Final = "-"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_OPTIONS: Final = (
    click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED),
    click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Beside this rank; without it: rank 0."),
    click.option("--node", help="Beside the first rank on this node."),
    click.option("-i", "--interactive", is_flag=True, help="Pass the input on to the command."),
    click.option("-t", "--tty", "terminal", is_flag=True, help="Give the command a terminal: -it for a shell."),
)


def visit_options(command: Decorated) -> Decorated:
    """What says beside which rank a command runs, and with which input."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def flags_of(*, interactive: bool, terminal: bool) -> str:
    """What the launcher is told of input and terminal. Problem: there is no terminal to give."""
    if terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Problem("-t needs a terminal, and this is none", next="leave -t out")
    return "i" * interactive + "t" * terminal or NEITHER


@click.command("exec")
@job_argument
@visit_options
def exec_command(
    *, job: str, command: tuple[str, ...], rank: int | None, node: str | None, interactive: bool, terminal: bool
) -> NoReturn:
    """Run a command beside a rank, with its variables, secrets and directory.

    Exits as the command does, with 125 when it could not be run. The values of the job's secrets are masked in what
    it prints. It ends with the attempt that it runs beside.

    \b
      ganger exec bert-7f3 -- nvidia-smi
      ganger exec bert-7f3 --rank 3 -it -- bash
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    flags = flags_of(interactive=interactive, terminal=terminal)
    way = connected().entrance(job, rank=rank, node=node)
    words = [*way["argv"], str(way["generation"]), str(way["rank"]), flags, *command]
    sys.stdout.flush()
    # In its place, so that nothing is between it and whoever ends it: a signal reaches it, SIGKILL too.
    os.execv(words[0], words)  # noqa: S606 - there is nothing for a shell to do
