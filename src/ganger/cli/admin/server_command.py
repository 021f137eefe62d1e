"""`ganger server`: the one server of this user, which otherwise starts by itself with the first command."""

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from ganger import settings
from ganger.cli.exit_codes import NOT_FOUND, REFUSED, UNREACHABLE
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import now_ms, quoted, say, show, show_json, show_json_array, when
from ganger.client import Client, ClientError
from ganger.settings import Home, HomeError

Record = dict[str, Any]

_MOST_BYTES: Final = 16 << 20


@click.group("server")
def server_command() -> None:
    """Start, stop and look at the server; it also starts by itself.

    It belongs to one state directory: $GANGER_HOME, else ~/.local/state/ganger.
    """


@server_command.command("start")
@click.option(
    "--topology",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Virtual nodes to show instead of this machine; kept in the state directory for later starts.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Answer there too, to whoever shows a token (ganger token create NAME), until it is stopped.",
)
@output_option
def start_command(topology: Path | None, listen: str | None, output: str) -> None:
    """Start the server, unless it runs."""
    home = settings.home(os.environ)
    if listen is not None and _runs(home):
        again = f"ganger server stop && ganger server start --listen {quoted(listen)}"
        raise Problem("the server runs already, and opens its doors only when it starts", again, REFUSED)
    client = Client(home).connect(listen=listen) if topology is None else _start_with(home, topology, listen)
    _show(client.server(), output)


@server_command.command("stop")
@output_option
def stop_command(output: str) -> None:
    """Stop the server; jobs run on, and the next command finds them again."""
    said = _stopped(Client(settings.home(os.environ)))
    if output == "json":
        show_json({"stopped": said})
    else:
        show(said)


@server_command.command("restart")
@output_option
def restart_command(output: str) -> None:
    """Let the server run itself anew with this version; jobs run on."""
    home = settings.home(os.environ)
    if not _runs(home):
        _show(Client(home).connect().server(), output)
        return
    _show(Client(home).connect(start=False).restart(), output)


@server_command.command("status")
@output_option
def status_command(output: str) -> None:
    """Show the server: where it is, how it is, what it has to do."""
    _show(Client(settings.home(os.environ)).connect(start=False).server(), output)


@server_command.command("logs")
@click.option("--tail", type=click.IntRange(min=1), default=100, metavar="N", help="Only the last N lines (100).")
@output_option
def logs_command(tail: int, output: str) -> None:
    """Show what the server wrote."""
    path = settings.home(os.environ).server_log
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        raise Problem(f"no server wrote to {path} yet", next="ganger server start", exit_code=NOT_FOUND) from None
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}", next="ganger doctor") from None
    if output == "json":
        show_json_array(lines[-tail:])
        return
    for line in lines[-tail:]:
        show(line)


def _stopped(client: Client) -> str:
    """Stop the server, by a signal if it does not answer; a sentence about it."""
    try:
        client.connect(start=False)
    except ClientError as error:
        if not client.lives():
            return f"no server runs for {client.home.path}"
        say(error.detail)
        return f"the server was ended by a signal to pid {client.end()}; jobs run on"
    client.shutdown()
    return "the server is stopped; jobs run on"


def _runs(home: Home) -> bool:
    """Whether a server answers. ClientError when one lives that does not."""
    client = Client(home)
    try:
        client.connect(start=False)
    except ClientError:
        if client.lives():
            raise
        return False
    return True


def _start_with(home: Home, topology: Path, listen: str | None) -> Client:
    """Start on virtual nodes. A topology that the server refuses does not stay behind."""
    if _runs(home):
        again = f"ganger server stop && ganger server start --topology {quoted(str(topology))}"
        raise Problem("the server runs already, and reads its topology only when it starts", again, REFUSED)
    try:
        settings.make_private(home.path)
        before = home.topology.read_bytes() if home.topology.exists() else None
        _replace(home.topology, _read(topology))
    except HomeError as error:
        raise Problem(str(error), error.next, UNREACHABLE) from None
    except OSError as error:
        raise Problem(f"cannot copy {topology} to {home.topology}: {error.strerror}") from None
    try:
        return Client(home).connect(listen=listen)
    except ClientError as error:
        if before is None:
            home.topology.unlink(missing_ok=True)
        else:
            _replace(home.topology, before)
        # The copy is gone: what there is to correct is the caller's file.
        told = error.detail.replace(str(home.topology), str(topology))
        raise ClientError(error.code, told, error.next, error.exit_code) from None


def _read(path: Path) -> bytes:
    """A topology, no further than one can be long: a device never ends."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise Problem(f"{path} is longer than {_MOST_BYTES >> 20} MiB: is it a topology at all?", "name another file")
    return content


def _replace(path: Path, content: bytes) -> None:
    """Write it whole or not at all, for this user's eyes only."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


def _show(server: Record, output: str) -> None:
    if output == "json":
        show_json(server)
        return
    fields = {
        "version": server["version"],
        "health": server["health"],
        "pid": server["pid"],
        "home": server["home"],
        "policy": server["policy"],
        "started": when(server["started_ms"], now_ms()),
        "events": server["seq"],
        "nodes": server["nodes"],
        "jobs": f"{server['running']} running, {server['pending']} pending",
    }
    for name, value in fields.items():
        show(f"{name:8}  {value}")
