"""`ganger exec`: a command next to a running rank."""

import sys
from collections.abc import Sequence
from typing import Final

import click

from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import job_argument
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import shell_quote

NO_FLAGS: Final = "-"
_READ_INPUT: Final = ("bash", "sh", "zsh", "fish", "dash", "python", "python3", "ipython")
"""Programs that, without arguments, end at once if they have no input."""


def flags_of(job: str, command: Sequence[str], *, interactive: bool, terminal: bool) -> str:
    """Return the launcher's flags for input and terminal. Problem: there is no terminal, or a shell without input."""
    if not interactive and len(command) == 1 and command[0].rpartition("/")[2] in _READ_INPUT:
        typed = f"ganger exec -it {shell_quote(job)} -- {shell_quote(command[0])}"
        raise Problem(f"{command[0]} reads its input, and without -i it has none", next=typed)
    if terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Problem("-t needs a terminal, and stdin or stdout is not one", next="leave -t out")
    return "i" * interactive + "t" * terminal or NO_FLAGS


@click.command("exec")
@job_argument
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Run next to this rank (default: 0).")
@click.option("--node", help="Run next to the first rank on this node.")
@click.option("-i", "--interactive", is_flag=True, help="Pass stdin to the command.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Allocate a terminal; with -i, for a shell.")
def exec_command(
    *, job: str, command: tuple[str, ...], rank: int | None, node: str | None, interactive: bool, terminal: bool
) -> int:
    """Run a command next to a rank, with its environment, secrets and directory.

    Exits with the command's exit code, or with 125 if it could not be run. Secret values of the job are masked in its
    output. The command is killed when the attempt ends. With GANGER_SERVER the server runs it, next to your own jobs,
    or with a token of scope admin next to any; it ends with this process and with the token.

    \b
      ganger exec bert-7f3 -- nvidia-smi
      ganger exec bert-7f3 --rank 3 -it -- bash
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    flags = flags_of(job, command, interactive=interactive, terminal=terminal)
    return connect().run_command(job, command, rank=rank, node=node, flags=flags)
