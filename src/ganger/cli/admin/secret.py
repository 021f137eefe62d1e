"""`ganger secret`: values that jobs can use and no user can read."""

import sys
from typing import Final

import click

from ganger.cli import completions
from ganger.cli.bulk import for_each_name
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import Column, current_time_ms, format_time, show, show_json, show_rows

_MAX_READ: Final = (64 << 10) + 2
"""More than a value may have, with the end of the line."""
_COLUMNS: Final = (Column("SECRET"), Column("SET"))


@click.group("secret", invoke_without_command=True)
@output_option
@click.pass_context
def secret_command(ctx: click.Context, output: str) -> None:
    """List, set and delete secrets: variables whose values are never shown.

    Lists the secrets without a subcommand. A job gets those that its `secrets:` or --secret names.
    """
    if ctx.invoked_subcommand is None:
        _show(output)


@secret_command.command("ls")
@output_option
def ls_command(output: str) -> None:
    """List the names of the secrets; their values are never shown."""
    _show(output)


@secret_command.command("set")
@click.argument("name", shell_complete=completions.secrets)
@output_option
def set_command(name: str, output: str) -> None:
    """Set a secret. The value is read from the terminal or from stdin.

    \b
      ganger secret set HF_TOKEN
      ganger secret set HF_TOKEN < token.txt
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if sys.stdin.isatty():
        value = click.prompt(f"value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read(_MAX_READ).removesuffix("\n")
    if not value:
        raise Problem(f"the value of {name} is empty", next=f"printf %s VALUE | ganger secret set {name}")
    row = connect().set_secret(name, value)
    if output == "json":
        show_json(row)
    else:
        show(f"set {name}")


@secret_command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completions.secrets)
@output_option
def delete_command(names: tuple[str, ...], output: str) -> int:
    """Delete secrets. Jobs that already have them keep them until they are deleted."""
    return for_each_name(names, connect().delete_secret, "deleted {}", output)


def _show(output: str) -> None:
    now_ms = current_time_ms()
    rows = connect().secrets()
    show_rows(_COLUMNS, rows, lambda row: (row["name"], format_time(row["set_ms"], now_ms)), "no secrets", output)
