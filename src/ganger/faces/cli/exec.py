"""`ganger exec`: a command beside a rank that runs."""

import os
import sys
from typing import Final, NoReturn

import click

from ganger.faces.cli.options import job_argument
from ganger.faces.cli.problem import Problem
from ganger.faces.cli.run import connected

_NEITHER: Final = "-"


@click.command("exec")
@job_argument
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Beside this rank; without it: rank 0.")
@click.option("--node", help="Beside the first rank on this node.")
@click.option("-i", "--interactive", is_flag=True, help="Pass the input on to the command.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Give the command a terminal: -it for a shell.")
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
    if terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Problem("-t needs a terminal, and this is none", next="leave -t out")
    way = connected().entrance(job, rank=rank, node=node)
    flags = "i" * interactive + "t" * terminal or _NEITHER
    words = [*way["argv"], str(way["generation"]), str(way["rank"]), flags, *command]
    sys.stdout.flush()
    # In its place, so that nothing is between it and whoever ends it: a signal reaches it, SIGKILL too.
    os.execv(words[0], words)  # noqa: S606 - there is nothing for a shell to do
