"""`ganger node`: the nodes, what is free on them, and which take new gangs."""

from collections.abc import Iterable
from typing import Any, Final

import click

from ganger.faces.cli.options import output_option
from ganger.faces.cli.render import Column, quoted, show, show_json_array, show_table
from ganger.faces.cli.run import connected
from ganger.model.units import format_bytes, format_cpu

Record = dict[str, Any]

_COLUMNS: Final = (
    Column("NODE"),
    Column("RACK"),
    Column("STATE", state=True),
    Column("GPU"),
    Column("GPUS USED", right=True),
    Column("CPUS USED", right=True),
    Column("MEMORY USED", right=True),
    Column("JOBS"),
)

nodes_argument = click.argument("names", metavar="NODE...", nargs=-1, required=True)


@click.group("node", invoke_without_command=True)
@output_option
@click.pass_context
def node_command(ctx: click.Context, output: str) -> None:
    """List nodes, and take them out of service or back.

    Without a command: lists them, in topology order.
    """
    if ctx.invoked_subcommand is None:
        _show(connected().nodes(), output)


@node_command.command("cordon")
@nodes_argument
@click.option("--why", default="", help="The reason, for the event log.")
@output_option
def cordon_command(names: tuple[str, ...], why: str, output: str) -> None:
    """Take nodes out of service: what runs there goes on, nothing new starts."""
    client = connected()
    _show_changed([client.cordon(name, cordoned=True, why=why) for name in names], output)


@node_command.command("uncordon")
@nodes_argument
@output_option
def uncordon_command(names: tuple[str, ...], output: str) -> None:
    """Put nodes back into service."""
    client = connected()
    _show_changed([client.cordon(name, cordoned=False) for name in names], output)


def _show(rows: list[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    show_table(_COLUMNS, [_cells(row) for row in rows], "no nodes: ganger doctor")
    total = sum(row["gpus"] for row in rows)
    if total:
        used = total - sum(row["gpus_free"] for row in rows)
        show(f"\n{used} of {total} GPUs used ({100 * used // total}%)")


def _show_changed(rows: Iterable[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        goes_on = f"; it still runs {', '.join(row['gangs'])}" if row["gangs"] and row["state"] != "ready" else ""
        show(f"{quoted(row['name'])} is {row['state']}{goes_on}")


def _cells(row: Record) -> tuple[str, ...]:
    cpu = row["cpu_milli"]
    memory = row["memory_bytes"]
    return (
        row["name"],
        row["rack"] or "-",
        row["state"],
        row["gpu_type"] or "-",
        f"{row['gpus'] - row['gpus_free']}/{row['gpus']}",
        f"{format_cpu(cpu - row['cpu_free_milli'])}/{format_cpu(cpu)}",
        f"{format_bytes(memory - row['memory_free_bytes'])}/{format_bytes(memory)}",
        ", ".join(row["gangs"]) or "-",
    )
