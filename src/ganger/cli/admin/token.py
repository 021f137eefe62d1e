"""`ganger token`: tokens for TCP clients of a server that was started with --listen."""

import os
from pathlib import Path
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.bulk import for_each_name
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import POSITIVE_DURATION, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import Column, current_time_ms, format_time, show, show_json, show_rows
from ganger.model.units import parse_duration_ms

_COLUMNS: Final = (Column("TOKEN"), Column("SCOPE"), Column("CREATED"), Column("EXPIRES"))


@click.group("token", invoke_without_command=True)
@output_option
@click.pass_context
def token_command(ctx: click.Context, output: str) -> None:
    """List, create and revoke tokens for requests over TCP.

    A token that may submit is as good as a login: its jobs run as the server's user, and read what that user may read.

    Lists the tokens without a subcommand. The server stores only hashes, so a token is shown once, when it is created.
    """
    if ctx.invoked_subcommand is None:
        _show(output)


@token_command.command("ls")
@output_option
def ls_command(output: str) -> None:
    """List the tokens by name."""
    _show(output)


@token_command.command("create")
@click.argument("name")
@click.option("--expires", type=POSITIVE_DURATION, default="90d", show_default=True, help="Lifetime, such as 12h.")
@click.option(
    "--scope",
    type=click.Choice(("read", "submit", "admin")),
    default="submit",
    show_default=True,
    help="Changes that it allows: none, those of jobs and secrets, or those of queues, nodes and the policy too.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the token to this new file, readable only by you.",
)
@output_option
def create_command(name: str, expires: str, scope: str, file: Path | None, output: str) -> None:
    """Create a token and print it once.

    \b
      ganger token create laptop
      ganger token create ci --expires 12h --file ci.token
      ganger token create prometheus --scope read
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    descriptor = None if file is None else _create_private(file)
    try:
        token = connect().create_token(name, parse_duration_ms(expires), scope)
    except BaseException:
        if file is not None:
            file.unlink()
        raise
    if descriptor is not None:
        with os.fdopen(descriptor, "w") as token_file:
            token_file.write(f"{token}\n")
    if output == "json":
        show_json({"name": name, **({"token": token} if file is None else {"file": str(file)})})
    else:
        show(token if file is None else f"wrote token {name} to {file}")


@token_command.command("revoke")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completions.tokens)
@output_option
def revoke_command(names: tuple[str, ...], output: str) -> int:
    """Revoke tokens with immediate effect, also on responses in progress."""
    return for_each_name(names, connect().revoke_token, "revoked {}", output)


def _create_private(file: Path) -> int:
    """Create a private file and return its descriptor, before the token is made, which cannot be shown twice."""
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Problem(f"{file}: {error.strerror}", next="name a file that does not exist") from None


def _show(output: str) -> None:
    now_ms = current_time_ms()
    show_rows(_COLUMNS, connect().tokens(), lambda row: _cells(row, now_ms), "no tokens", output)


def _cells(row: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    expiry = "never" if row["expires_ms"] is None else format_time(row["expires_ms"], now_ms)
    expiry = "expired" if row["expired"] else expiry
    return row["name"], row["scope"], format_time(row["created_ms"], now_ms), expiry
