"""`ganger whoami`: who one is to the server, how one reaches it, and what one may use."""

import os
import pwd
from typing import Any

import click

from ganger.cli.cluster.queue_command import COLUMNS, queue_cells
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import output_option
from ganger.cli.output.tables import show, show_json, show_table

Record = dict[str, Any]


@click.command("whoami")
@output_option
def whoami_command(output: str) -> None:
    """Show who you are to the server, how you reach it, and which queues you may use.

    A server belongs to one user, who needs no password: its socket lets in nobody else. Others, and other machines,
    come over TCP with a token: `ganger token`.
    """
    client = connected()
    address, server = client.address(), client.server()
    queues = client.queues()
    told = {
        "user": _user_name(),
        "home": server["home"],
        "socket": address["socket"],
        "url": address["url"],
        "authentication": "socket_owner",
        "queues": queues,
    }
    if output == "json":
        show_json(told)
        return
    no_url = "no TCP: ganger server start --listen HOST:PORT"
    fields = {
        "user": told["user"],
        "server": f"{address['socket']}, ganger {server['version']}",
        "also at": f"{address['url']} (with a token)" if address["url"] else no_url,
        "known by": "owning the socket: its mode lets in nobody else",
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
