"""`ganger node health`, `history`, `repair` and `retire`: faults of nodes, and what is done about them."""

from typing import Any

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    format_age,
    format_time,
    shell_quote,
    show,
    show_json,
    show_json_array,
    show_rows,
)
from ganger.client import Client
from ganger.model.node_health.health_record import LADDER

Record = dict[str, Any]

_HEALTHY = "no node has had a fault"
_PAGE = 1_000


@click.command("health")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=completions.nodes)
@click.option("--reset-breaker", is_flag=True, help="Allow faulty nodes to be cordoned automatically again.")
@output_option
def health_command(names: tuple[str, ...], reset_breaker: bool, output: str) -> None:
    """Show the health of nodes: their faults, and what is done about them.

    Lists the nodes that something has happened to; all others are healthy. The section `node_health` of the policy has
    the rules.
    """
    client = connect()
    overview = client.reset_breaker() if reset_breaker else client.node_health()
    rows = [row for row in overview["nodes"] if not names or row["node"] in names]
    if output == "json":
        show_json({"nodes": rows, "notes": overview["notes"]})
        return
    now_ms = current_time_ms()
    columns = [Column("NODE"), Column("HEALTH", state=True), Column("SINCE"), Column("SCORE", right=True)]
    columns += [Column("FAULTS", right=True), Column("PERFORMANCE", right=True), Column("REASON")]

    def cells(row: Record) -> tuple[str, ...]:
        age = format_age(row["since_ms"], now_ms)
        performance = "-" if row["performance"] is None else f"{row['performance']:.0%}"
        figures = f"{row['points']:.1f}", str(len(row["faults"])), performance
        return row["node"], row["state"], age, *figures, row["sentence"] or "-"

    show_rows(columns, rows, cells, _HEALTHY, output)
    for row in rows if names else ():
        _show_faults(row, now_ms)
    for note in overview["notes"]:
        show(note)


@click.command("history")
@click.argument("name", metavar="NODE", shell_complete=completions.nodes)
@output_option
def history_command(name: str, output: str) -> None:
    """Show what happened to a node: faults, cordons, repairs, tests."""
    rows = _events(connect(), name)
    columns = [Column("TIME"), Column("EVENT")]
    now_ms = current_time_ms()

    def cells(row: Record) -> tuple[str, ...]:
        return format_time(row["at_ms"], now_ms), row["sentence"]

    show_rows(columns, rows, cells, f"nothing happened to a node {name}: ganger node", output)


@click.command("repair")
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=completions.nodes)
@click.option("--step", type=click.Choice([step.value for step in LADDER]), help="First repair step.")
@click.option("--reason", default="", help="Reason, recorded in the event log.")
@output_option
def repair_command(names: tuple[str, ...], step: str | None, reason: str, output: str) -> None:
    """Take nodes out of service and repair them by the hooks of the policy.

    The budget and the breaker do not apply. A node without a hook stays cordoned until `ganger node return`.
    """
    client = connect()
    _show_health([client.repair_node(name, step=step, reason=reason) for name in names], output)


@click.command("retire")
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=completions.nodes)
@click.option("--reason", default="", help="Reason, recorded in the event log.")
@output_option
def retire_command(names: tuple[str, ...], reason: str, output: str) -> None:
    """Take nodes out of service for good; `ganger node return` tests and returns them all the same."""
    client = connect()
    _show_health([client.retire_node(name, reason=reason) for name in names], output)


def _events(client: Client, name: str) -> list[Record]:
    """Return all events about a node, oldest first."""
    rows: list[Record] = []
    after = 0
    while True:
        page = client.events(after=after, gang=f"node/{name}", limit=_PAGE)
        rows += page["items"]
        if len(page["items"]) < _PAGE:
            return rows
        after = page["items"][-1]["seq"]


def _show_faults(row: Record, now_ms: int) -> None:
    for fault in row["faults"]:
        repeated = f", reported {count(fault['count'], 'time')}" if fault["count"] > 1 else ""
        device = f" {fault['device']}" if fault["device"] else ""
        age = format_age(fault["last_ms"], now_ms)
        show(f"{row['node']}{device}: {fault['sentence']} ({fault['check']} {fault['code']}, {age} ago{repeated})")


def _show_health(rows: list[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        show(f"{shell_quote(row['node'])} is {row['state']}: {row['sentence']}")
