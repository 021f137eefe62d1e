"""`ganger server`: the one server of this user, which otherwise starts with the first command."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from ganger import settings
from ganger.cli.exit_codes import NOT_FOUND, REFUSED, UNREACHABLE
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import (
    current_time_ms,
    format_time,
    say,
    shell_quote,
    show,
    show_json,
    show_json_array,
)
from ganger.client import Client, ClientError
from ganger.errors import DISK_FULL
from ganger.settings import Home, HomeError

Record = dict[str, Any]

_MAX_TOPOLOGY_BYTES: Final = 16 << 20


_THIS_MACHINE: Final = "none"
"""The topology of a server that was given none; a file of that name is `./none`."""


class _TopologyPath(click.Path):
    """A file that exists, or `_THIS_MACHINE`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == _THIS_MACHINE else super().convert(value, param, ctx)


@click.group("server")
def server_command() -> None:
    """Start, stop and inspect the server, which otherwise starts on demand.

    It serves one state directory: $GANGER_HOME, by default ~/.local/state/ganger.
    """


@server_command.command("start")
@click.option(
    "--topology",
    type=_TopologyPath(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of virtual nodes to use instead of this machine; kept in the state directory for later starts, until "
    "--topology none.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Listen there too, for clients with a token (ganger token create NAME), until it is stopped; over TLS beyond "
    "this machine.",
)
@click.option("--insecure", is_flag=True, help="With --listen: no TLS beyond this machine either.")
@output_option
def start_command(topology: Path | str | None, listen: str | None, insecure: bool, output: str) -> None:
    """Start the server if it is not running."""
    if insecure and listen is None:
        raise click.UsageError("--insecure requires --listen")
    home = settings.home(os.environ)
    arguments = ([] if listen is None else ["--listen", listen]) + (["--insecure"] if insecure else [])
    if listen is not None and _is_running(home):
        command = f"ganger server stop && ganger server start --listen {shell_quote(listen)}"
        raise Problem("the server is already running, and opens its listeners only when it starts", command, REFUSED)
    client = Client(home).connect(arguments=arguments) if topology is None else _start_with(home, topology, arguments)
    _show(client.server(), output)


@server_command.command("stop")
@output_option
def stop_command(output: str) -> None:
    """Stop the server. Jobs keep running; the next start finds them again."""
    message = _stop(Client(settings.home(os.environ)))
    if output == "json":
        show_json({"stopped": message})
    else:
        show(message)


@server_command.command("restart")
@output_option
def restart_command(output: str) -> None:
    """Restart the server with the installed version. Jobs keep running."""
    home = settings.home(os.environ)
    if not _is_running(home):
        _show(Client(home).connect().server(), output)
        return
    _show(Client(home).connect(start=False).restart(), output)


@server_command.command("status")
@output_option
def status_command(output: str) -> None:
    """Show the server's address, health, nodes and jobs."""
    _show(Client(settings.home(os.environ)).connect(start=False).server(), output)


@server_command.command("logs")
@click.option(
    "--tail", type=click.IntRange(min=1), default=100, metavar="N", help="Only the last N lines (default: 100)."
)
@output_option
def logs_command(tail: int, output: str) -> None:
    """Show the server's log."""
    path = settings.home(os.environ).server_log
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        raise Problem(f"no server has written to {path} yet", next="ganger server start", exit_code=NOT_FOUND) from None
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}", next="ganger doctor") from None
    if output == "json":
        show_json_array(lines[-tail:])
        return
    for line in lines[-tail:]:
        show(line)


def _stop(client: Client) -> str:
    """Stop the server, with a signal if it does not answer, and return a message about it."""
    try:
        client.connect(start=False)
    except ClientError as error:
        if not client.lives():
            return f"no server is running for {client.home.path}"
        say(error.detail)
        return f"stopped the server with a signal to pid {client.end()}; jobs keep running"
    client.shutdown()
    return "stopped the server; jobs keep running"


def _is_running(home: Home) -> bool:
    """Detect a running server. ClientError when one is alive but does not answer."""
    client = Client(home)
    try:
        client.connect(start=False)
    except ClientError:
        if client.lives():
            raise
        return False
    return True


def _start_with(home: Home, topology: Path | str, arguments: list[str]) -> Client:
    """Start the server on virtual nodes, or on this machine again; restore the previous topology if it refuses that."""
    if _is_running(home):
        command = f"ganger server stop && ganger server start --topology {shell_quote(str(topology))}"
        raise Problem("the server is already running, and reads its topology only when it starts", command, REFUSED)
    try:
        settings.make_private(home.path)
        before = home.topology.read_bytes() if home.topology.exists() else None
        _replace(home.topology, _read(topology) if isinstance(topology, Path) else None)
    except HomeError as error:
        raise Problem(str(error), error.next, UNREACHABLE) from None
    except OSError as error:
        remedy = f"free some space on that disk: df -h {home.path}" if error.errno in DISK_FULL else "ganger doctor"
        message = f"cannot copy {topology} to {home.topology}: {error.strerror}"
        raise Problem(message, remedy, UNREACHABLE) from None
    try:
        return Client(home).connect(arguments=arguments)
    except ClientError as error:
        _replace(home.topology, before)
        # The copy is gone: the user must correct the original file.
        detail = error.detail.replace(str(home.topology), str(topology))
        raise ClientError(error.code, detail, error.next, error.exit_code) from None


def _read(path: Path) -> bytes:
    """Return the content of a topology file, read no further than its largest size, since a device never ends."""
    with path.open("rb") as file:
        content = file.read(_MAX_TOPOLOGY_BYTES + 1)
    if len(content) > _MAX_TOPOLOGY_BYTES:
        raise Problem(
            f"{path} is longer than {_MAX_TOPOLOGY_BYTES >> 20} MiB, too long for a topology", "name another file"
        )
    return content


def _replace(path: Path, content: bytes | None) -> None:
    """Write a private file atomically; remove it if it is to have no content."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


def _tcp_address(home: Home) -> dict[str, str | None]:
    """Return the URL at which the running server listens in addition to its socket, and its certificate's hash."""
    try:
        record = json.loads(home.server_file.read_text())
        return {name: record[name] for name in ("url", "fingerprint")}
    except (OSError, ValueError, KeyError, TypeError):
        return {"url": None, "fingerprint": None}


def _show(server: Record, output: str) -> None:
    home = settings.home(os.environ)
    server = server | _tcp_address(home)
    if output == "json":
        show_json(server)
        return
    fields = {
        "version": server["version"],
        "health": server["health"],
        "pid": server["pid"],
        "home": server["home"],
        "socket": home.socket("server"),
        "address": server["url"] or "none over TCP",
        **({"fingerprint": server["fingerprint"]} if server["fingerprint"] else {}),
        "policy": server["policy"],
        "started": format_time(server["started_ms"], current_time_ms()),
        "events": server["seq"],
        "nodes": server["nodes"],
        "jobs": f"{server['running']} running, {server['pending']} pending",
    }
    width = max(map(len, fields))
    for name, value in fields.items():
        show(f"{name:{width}}  {value}")
