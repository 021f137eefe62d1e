"""`ganger whoami`: the user's identity, the server's address, and the usable queues."""

import os
import pwd
from typing import Any

import click

from ganger.cli.cluster.queue_command import COLUMNS, queue_cells
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option
from ganger.cli.output.print_output import show, show_json, show_table

Record = dict[str, Any]


@click.command("whoami")
@output_option
def whoami_command(output: str) -> None:
    """Show your user, how you reach the server, and the queues you may use.

    A server belongs to one user, who needs no password: its socket admits no other user. Other users and other
    machines connect over TCP with a token; see `ganger token`.
    """
    client = connect()
    address, server = client.address(), client.server()
    queues = client.queues()
    identity = {
        "user": _user_name(),
        "home": server["home"],
        "socket": address["socket"],
        "url": address["url"],
        "authentication": "socket_owner",
        "queues": queues,
    }
    if output == "json":
        show_json(identity)
        return
    no_url = "no TCP: ganger server start --listen HOST:PORT"
    fields = {
        "user": identity["user"],
        "server": f"{address['socket']}, ganger {server['version']}",
        "also at": f"{address['url']} (with a token)" if address["url"] else no_url,
        "known by": "ownership of the socket, which admits no other user",
        "home": server["home"],
    }
    for name, value in fields.items():
        show(f"{name:8}  {value}")
    show("\nYou may submit to:")
    show_table(COLUMNS, [queue_cells(row) for row in queues], "no queue")


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
