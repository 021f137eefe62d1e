"""Errors as users see them: what happened and why, then what to type next.

`problem_of` converts errors of click and of the client; `call` prints them and returns their exit code.
"""

import sys
from typing import Final

import click

from ganger.cli.exit_codes import USAGE

SHELL_NEXT_TO_A_RANK: Final = "ganger exec -it JOB -- bash"


OTHER_OPTIONS: Final = {
    **dict.fromkeys(("--gpus", "--gres", "--gpus-per-node", "--gpus-per-task", "-G"), "--gpu 8"),
    **dict.fromkeys(("--gpu-type", "--accelerators", "--constraint", "-C"), "--gpu H100:8"),
    **dict.fromkeys(("--num-nodes", "--nnodes", "-N"), "--nodes 2"),
    **dict.fromkeys(("--ntasks-per-node", "--nproc_per_node", "--tasks-per-node"), "--nproc-per-node 8"),
    **dict.fromkeys(("--ntasks", "-n"), "-j 2x8"),
    **dict.fromkeys(("--partition", "-p", "--account", "-A", "--cluster", "-q"), "--queue NAME"),
    **dict.fromkeys(("--cpus", "--cpus-per-task", "--ncpus", "-c"), "--cpu 4"),
    **dict.fromkeys(("--mem", "--mem-per-node"), "--memory 64Gi"),
    **dict.fromkeys(("--job-name", "-J"), "--name NAME"),
    **dict.fromkeys(("--qos", "--nice"), "--priority high"),
    **dict.fromkeys(("--dependency", "-d"), "--after JOB"),
    **dict.fromkeys(("--max-restarts", "--max_restarts", "--requeue", "--retry-until-up"), "--retry 3"),
    **dict.fromkeys(("--workdir", "-D", "--chdir"), "--code DIR"),
    **dict.fromkeys(("--export", "--envs"), "--env NAME=VALUE"),
    "--nominal-quota": "--gpus 8",
    "--borrowing-limit": "--borrow-gpus 8",
    "--lending-limit": "--lend-gpus 8",
    "--cohort": "--parent QUEUE",
    "-t": "--time 24h",
    "-w": "--nodelist n1,n2",
    "-u": "--user NAME",
}
"""Options of srun, sbatch, torchrun, sky and Kueue -> the option of ganger, with an example of its value."""

SAME_SUBCOMMANDS: Final = (
    ("set", "create", "apply", "add", "new", "update", "edit"),
    ("ls", "list", "show", "get", "status"),
    ("delete", "revoke", "rm", "remove", "del"),
)
"""Names that other tools, or other commands of ganger, give to one subcommand."""


class Problem(Exception):
    """An error of a command.

    detail: one or several lines: the first says what happened, the others why.
    next: what to type next.
    """

    def __init__(self, detail: str, next: str = "", exit_code: int = USAGE) -> None:
        super().__init__(detail)
        self.detail = detail
        self.next = next
        self.exit_code = exit_code

    def show(self) -> None:
        """Print the error to stderr."""
        from ganger.cli.output.print_output import one_command_a_line, printable, supports_colour, to_copy

        summary, *details = printable(to_copy(self.detail), sys.stderr).splitlines() or [""]
        coloured = supports_colour(sys.stderr)
        click.echo(click.style("error: ", fg="red", bold=True) + summary, err=True, color=coloured)
        for line in details:
            click.echo(f"  {line}", err=True)
        if self.next:
            for line in one_command_a_line(f"  next: {printable(to_copy(self.next), sys.stderr)}", sys.stderr):
                click.echo(line, err=True)


def problem_of(error: Exception) -> Problem | None:
    """Return the problem that `error` stands for, or None for a defect of ganger."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, click.NoSuchOption) and error.option_name == "--pty":
        return Problem("--pty opens a shell: a job has no terminal, open one next to a rank", SHELL_NEXT_TO_A_RANK)
    if isinstance(error, click.NoSuchOption) and (meant := _translated(error)):
        path = error.ctx.command_path if error.ctx else "ganger"
        return Problem(f"{path} has no option {error.option_name}: use {meant}", next=f"{path} {meant} ...")
    if isinstance(error, click.exceptions.NoSuchCommand) and (known := _known_subcommand(error)):
        return known
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "ganger"
        # click's word for the type of a number within bounds
        detail = error.format_message().replace("a valid integer range", "a whole number")
        return Problem(detail, next=f"{path} --help")
    if isinstance(error, click.ClickException):
        return Problem(error.format_message())
    from ganger.client import ClientError

    if isinstance(error, ClientError):
        return Problem(error.detail, error.next, error.exit_code)
    return None


def _known_subcommand(error: click.exceptions.NoSuchCommand) -> Problem | None:
    """Return the error that names the subcommand of a group that another name stands for; None without one."""
    group = error.ctx.command if error.ctx else None
    if error.ctx is None or error.ctx.parent is None or not isinstance(group, click.Group):
        return None
    names = next((names for names in SAME_SUBCOMMANDS if error.command_name in names), ())
    known = next((name for name in names if name in group.commands), None)
    path = error.ctx.command_path
    if known is not None:
        return Problem(f"{path} has no command {error.command_name}", f"{path} {known} ...")
    return Problem(f"{path} has no command {error.command_name}", path) if "ls" in names else None


def _translated(error: click.NoSuchOption) -> str:
    """Return the option of this command that an option of another tool stands for; empty if there is none."""
    meant = OTHER_OPTIONS.get(error.option_name, "")
    options = {name for parameter in error.ctx.command.params for name in parameter.opts} if error.ctx else set()
    return meant if meant.partition(" ")[0] in options else ""
