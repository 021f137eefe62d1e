"""`ganger token`: who may come over TCP, to a server that was started with --listen."""

import os
from pathlib import Path
from typing import Final

import click

from ganger.cli import completions
from ganger.cli.bulk import each_name
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import LASTING, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import Column, now_ms, show, show_json, show_json_array, show_table, when
from ganger.model.units import parse_duration_ms

NEVER: Final = "never"
_COLUMNS: Final = (Column("TOKEN"), Column("CREATED"), Column("EXPIRES"))


@click.group("token", invoke_without_command=True)
@output_option
@click.pass_context
def token_command(ctx: click.Context, output: str) -> None:
    """List, create and revoke tokens for requests over TCP.

    Without a command: lists them. The server keeps a hash of each, and nobody can see one again.
    """
    if ctx.invoked_subcommand is None:
        _show(output)


@token_command.command("ls")
@output_option
def ls_command(output: str) -> None:
    """List the tokens there are, by name."""
    _show(output)


@token_command.command("create")
@click.argument("name")
@click.option("--expires", type=LASTING, default="90d", show_default=True, help="How long it is good for: 12h.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Write it there, for you alone to read.")
@output_option
def create_command(name: str, expires: str, file: Path | None, output: str) -> None:
    """Create a token, and print it this once.

    \b
      ganger token create laptop
      ganger token create ci --expires 12h --file ci.token
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    place = None if file is None else _made(file)
    try:
        token = connected().create_token(name, parse_duration_ms(expires))
    except BaseException:
        if file is not None:
            file.unlink()
        raise
    if place is not None:
        with os.fdopen(place, "w") as written:
            written.write(f"{token}\n")
    if output == "json":
        show_json({"name": name, **({"token": token} if file is None else {"file": str(file)})})
    else:
        show(token if file is None else f"the token {name} is in {file}")


@token_command.command("revoke")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completions.tokens)
@output_option
def revoke_command(names: tuple[str, ...], output: str) -> int:
    """Make tokens good for nothing, at once."""
    return each_name(names, connected().revoke_token, "{} is revoked", output)


def _made(file: Path) -> int:
    """A new file that only its owner may read, open: made first, because a token cannot be shown twice."""
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Problem(f"{file}: {error.strerror}", next="name a file that is not there") from None


def _show(output: str) -> None:
    rows = connected().tokens()
    if output == "json":
        show_json_array(rows)
        return
    now = now_ms()
    cells = [
        (row["name"], when(row["created_ms"], now), "expired" if row["expired"] else _expires(row["expires_ms"], now))
        for row in rows
    ]
    show_table(_COLUMNS, cells, "no tokens")


def _expires(at_ms: int | None, now: int) -> str:
    return NEVER if at_ms is None else when(at_ms, now)
