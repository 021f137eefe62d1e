"""`ganger whoami`: the user's identity, the server's address, and the usable queues."""

from typing import Any

import click

from ganger.cli.cluster.queue_command import COLUMNS, queue_cells
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option
from ganger.cli.output.print_output import current_time_ms, format_time, show, show_json, show_table
from ganger.client import ClientError

Record = dict[str, Any]


@click.command("whoami")
@output_option
def whoami_command(output: str) -> None:
    """Show your user, how you reach the server, and the queues you may use.

    A server belongs to one user, who needs no password: its socket admits no other user. Other users and other
    machines connect over TCP with a token (`ganger token`, `ganger login`), which is as good as a login of that user
    if it may submit.
    """
    client = connect()
    identity, missing = client.identity() | {"queues": []}, None
    try:
        identity["queues"] = client.queues()
    except ClientError as error:
        if client.context is None:
            raise
        missing = error  # another user's right: all jobs of a cluster count in its queues
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
        fields = {
            "user": identity["user"],
            "server": f"{identity['socket'] or identity['url']}, ganger {client.server()['version']}",
            **_access(identity),
            "home": identity["home"],
        }
    for name, value in fields.items():
        show(f"{name:8}  {value}")
    if missing is not None:
        show(f"queues    not available: {missing.detail.splitlines()[0]}: {missing.next}")
        return
    show("\nQueues, which this token may only read:" if identity.get("scope") == "read" else "\nYou may submit to:")
    show_table(COLUMNS, [queue_cells(row) for row in identity["queues"]], "no queue")


def _access(caller: Record) -> dict[str, str]:
    """Return how the caller is known, and how others may be."""
    if caller["authentication"] == "socket_owner":
        no_url = "no TCP: ganger server start --listen HOST:PORT"
        url = caller["url"]
        others = f"{url} (with a token, which is as good as your login if it may submit)" if url else no_url
        return {"known by": "ownership of the socket, which admits no other user", "also at": others}
    expiry = "" if caller["expires_ms"] is None else f", until {format_time(caller['expires_ms'], current_time_ms())}"
    may_submit = "" if caller["scope"] == "read" else ": as good as a login of the server's user"
    return {"known by": f"a token of scope {caller['scope']}{expiry}{may_submit}"}
