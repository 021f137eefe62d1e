"""`ganger whoami`: the user's identity, the server's address, and the usable queues."""

import click

from ganger.cli.cluster.queue_command import COLUMNS, queue_cells
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option
from ganger.cli.output.print_output import show, show_json, show_table


@click.command("whoami")
@output_option
def whoami_command(output: str) -> None:
    """Show your user, how you reach the server, and the queues you may use.

    A server belongs to one user, who needs no password: its socket admits no other user. Other users and other
    machines connect over TCP with a token; see `ganger token`.
    """
    client = connect()
    identity = client.identity() | {"queues": client.queues()}
    if output == "json":
        show_json(identity)
        return
    if client.context is not None:
        fields = {
            "user": identity["user"],
            "cluster": f"context {identity['context']}, namespace {identity['namespace']}",
            "known by": "the credentials of the kubeconfig",
        }
    else:
        no_url = "no TCP: ganger server start --listen HOST:PORT"
        fields = {
            "user": identity["user"],
            "server": f"{identity['socket']}, ganger {client.server()['version']}",
            "also at": f"{identity['url']} (with a token)" if identity["url"] else no_url,
            "known by": "ownership of the socket, which admits no other user",
            "home": identity["home"],
        }
    for name, value in fields.items():
        show(f"{name:8}  {value}")
    show("\nYou may submit to:")
    show_table(COLUMNS, [queue_cells(row) for row in identity["queues"]], "no queue")
