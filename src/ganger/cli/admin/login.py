"""`ganger login` and `ganger logout`: the servers on other machines that GANGER_SERVER may name."""

import os
import sys

import click

from ganger import settings
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import current_time_ms, format_time, say, shell_quote, show
from ganger.client.remote.logins import MAX_TOKEN_BYTES, Login, read_logins, server_url, write_logins
from ganger.client.remote.remote_client import RemoteClient
from ganger.client.remote.remote_server import certificate_at, parse_fingerprint


@click.command("login")
@click.argument("url", metavar="https://HOST:PORT")
@click.option("--fingerprint", metavar="SHA256", help="The certificate's, from `ganger server status` there.")
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="Certificates of the CA that vouches for the server, in place of a fingerprint.",
)
def login_command(url: str, fingerprint: str | None, ca_file: str | None) -> None:
    """Log in to a server on another machine.

    The token (ganger token create NAME, there) is asked for, or read from the standard input. Token and fingerprint are
    kept in a private file of yours; GANGER_SERVER=URL then makes commands use that server.

    \b
      ganger login https://gpu1.example.org:7878
      ganger login https://gpu1.example.org:7878 --fingerprint 3f9a... < token
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if fingerprint is not None and ca_file is not None:
        raise click.UsageError("--fingerprint and --ca-file exclude each other")
    url = server_url(url)
    pin = None if ca_file is not None else _pin(url, fingerprint)
    login = Login(url, _read_token(), pin, ca_file)
    caller = RemoteClient(login).identity()
    file = settings.logins_file(os.environ)
    write_logins(file, read_logins(file) | {url: login})
    expiry = "" if caller["expires_ms"] is None else f", until {format_time(caller['expires_ms'], current_time_ms())}"
    show(f"logged in to {url} as {caller['user']} (scope {caller['scope']}{expiry})")
    show(f"next: export {settings.SERVER}={shell_quote(url)}")


@click.command("logout")
@click.argument("url", metavar="[URL]", required=False)
def logout_command(url: str | None) -> None:
    """Forget the login of a server: the one given, else that of GANGER_SERVER.

    The token stays valid until it expires or is revoked on the server's machine.
    """
    url = url or settings.server(os.environ)
    file = settings.logins_file(os.environ)
    logins = read_logins(file)
    if url is None:
        raise Problem(f"which server? there are logins for: {', '.join(logins) or 'none'}", "ganger logout URL")
    url = server_url(url)
    if url not in logins:
        raise Problem(f"there is no login for {url}", f"ganger login {url}")
    write_logins(file, {other: login for other, login in logins.items() if other != url})
    show(f"logged out of {url}; to revoke the token, there: ganger token ls")


def _pin(url: str, expected: str | None) -> str | None:
    """Return the fingerprint to pin: the expected one, or the server's present one if the user confirms it."""
    if expected is not None:
        return parse_fingerprint(expected)
    actual = certificate_at(url)
    if not actual:
        return None  # no TLS: it is this machine
    if not sys.stdin.isatty():
        why = f"{url} has a certificate that is not confirmed, with this SHA-256:\n{actual}"
        raise Problem(why, "compare it with `ganger server status` there, then: --fingerprint SHA256")
    say(f"{url} has a certificate with this SHA-256:\n  {actual}")
    click.confirm("Is this what `ganger server status` shows there?", abort=True, err=True)
    return actual


def _read_token() -> str:
    if sys.stdin.isatty():
        token: str = click.prompt("token", hide_input=True, err=True)
    else:
        token = sys.stdin.readline(MAX_TOKEN_BYTES)
    token = token.strip()
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise Problem("the standard input has no token", "ganger login https://HOST:PORT < FILE")
    return token
