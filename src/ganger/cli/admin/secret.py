"""`ganger secret`: values that jobs may have and nobody may see."""

import sys
from typing import Final

import click

from ganger.cli import completions
from ganger.cli.bulk import each_name
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import Column, now_ms, show, show_json, show_json_array, show_table, when

_MOST_READ: Final = (64 << 10) + 2
"""More than a value may have, with the end of a line."""
_COLUMNS: Final = (Column("SECRET"), Column("SET"))


@click.group("secret", invoke_without_command=True)
@output_option
@click.pass_context
def secret_command(ctx: click.Context, output: str) -> None:
    """List, set and remove secrets: variables whose values are never shown.

    Without a command: lists them. A job has those that its `secrets:` or --secret names.
    """
    if ctx.invoked_subcommand is None:
        _show(output)


@secret_command.command("ls")
@output_option
def ls_command(output: str) -> None:
    """List the secrets that are kept; their values are shown nowhere."""
    _show(output)


@secret_command.command("set")
@click.argument("name", shell_complete=completions.secrets)
@output_option
def set_command(name: str, output: str) -> None:
    """Keep a secret. The value is asked for, or read from stdin.

    \b
      ganger secret set HF_TOKEN
      ganger secret set HF_TOKEN < token.txt
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    if sys.stdin.isatty():
        value = click.prompt(f"value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read(_MOST_READ).removesuffix("\n")
    if not value:
        raise Problem(f"the value of {name} is empty", next=f"printf %s VALUE | ganger secret set {name}")
    row = connected().set_secret(name, value)
    if output == "json":
        show_json(row)
    else:
        show(f"{name} is set")


@secret_command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completions.secrets)
@output_option
def delete_command(names: tuple[str, ...], output: str) -> int:
    """Forget secrets. Jobs that have them already keep them until they are deleted."""
    return each_name(names, connected().delete_secret, "{} is forgotten", output)


def _show(output: str) -> None:
    rows = connected().secrets()
    if output == "json":
        show_json_array(rows)
    else:
        cells = [(row["name"], when(row["set_ms"], now_ms())) for row in rows]
        show_table(_COLUMNS, cells, "no secrets")
