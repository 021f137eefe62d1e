"""`ganger node`: the nodes, what is free on them, and which take new gangs."""

import time
from collections.abc import Iterable
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import DURATION, LASTING, output_option
from ganger.cli.output.tables import Column, clock, now_ms, quoted, say, show, show_json_array, show_table
from ganger.cli.times import AHEAD
from ganger.client import Client
from ganger.model.units import DAY_MS, format_bytes, format_cpu, format_duration, parse_duration_ms

Record = dict[str, Any]

_POOL: Final = Column("POOL", spare=True)
_COLUMNS: Final = (
    Column("STATE", state=True),
    Column("GPU"),
    Column("GPUS USED", right=True),
    Column("CPUS USED", right=True, spare=True),
    Column("MEMORY USED", right=True, spare=True),
    _POOL,
    Column("JOBS"),
)

_LOOK_EVERY_S: Final = 0.25
_FURTHEST_MS: Final = 3650 * DAY_MS

nodes_argument = click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=completions.nodes)
why_option = click.option("--reason", "--why", "why", default="", help="The reason, for the event log.")


@click.group("node", invoke_without_command=True)
@output_option
@click.pass_context
def node_command(ctx: click.Context, output: str) -> None:
    """List nodes, take them out of service or back, and empty them.

    Without a command: lists them, in topology order.
    """
    if ctx.invoked_subcommand is None:
        _show(connected().nodes(), output)


@node_command.command("cordon")
@nodes_argument
@why_option
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


@node_command.command("drain")
@nodes_argument
@why_option
@click.option("--wait", is_flag=True, help="Return only when nothing is left there, and say what is meanwhile.")
@output_option
def drain_command(names: tuple[str, ...], why: str, wait: bool, output: str) -> None:
    """Take nodes out of service and let what runs there start elsewhere.

    Jobs there are stopped whole, each with the time it asks for to save its work; it costs them no attempt. They wait
    for their turn again and keep their place. `ganger node uncordon` puts the nodes back.
    """
    client = connected()
    rows = [client.drain(name, why=why) for name in names]
    if wait:
        rows = _drained(client, names)
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        show(f"{quoted(row['name'])} is {row['state']} and {_left(row) or 'empty'}")


@node_command.command("fail")
@nodes_argument
@output_option
def fail_command(names: tuple[str, ...], output: str) -> None:
    """Make nodes fail, with all that runs on them, to see what becomes of it.

    For virtual nodes, and for trying: whatever runs there is killed. `ganger node return` brings them back, empty.
    """
    client = connected()
    _show_changed([client.fail_node(name) for name in names], output)


@node_command.command("return")
@nodes_argument
@output_option
def return_command(names: tuple[str, ...], output: str) -> None:
    """Bring nodes back that were made to fail. Those that are out of service stay so."""
    client = connected()
    _show_changed([client.return_node(name) for name in names], output)


@node_command.command("preempt")
@nodes_argument
@click.option("--in", "notice", type=DURATION, default="30s", show_default=True, help="When they are gone.")
@output_option
def preempt_command(names: tuple[str, ...], notice: str, output: str) -> None:
    """Take nodes away after a notice, as the owner of a spot machine does, to see what becomes of it.

    What runs there is told and has that long to save its work, but no longer than its `checkpoint.grace`; it costs no
    attempt, and it starts again elsewhere. `ganger node return` and `uncordon` bring the nodes back.
    """
    client, notice_ms = connected(), parse_duration_ms(notice)
    rows = [client.preempt_node(name, notice_ms) for name in names]
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        show(f"{quoted(row['name'])} is gone in {format_duration(notice_ms)} and {_left(row) or 'empty'}")


@node_command.command("maintain")
@click.argument("names", metavar="NODE...", nargs=-1, shell_complete=completions.nodes)
@click.option("--from", "begin_ms", type=AHEAD, help="When it begins: 22:00, 2h (from now), 2026-11-21T22:00, now.")
@click.option("--for", "lasts", type=LASTING, help="How long it lasts: 90m, 1d.")
@click.option("--until", "until_ms", type=AHEAD, help="When it ends, instead.")
@click.option("--note", default="", help="What it is for, for all to read.")
@click.option("--clear", "cleared", metavar="ID", help="Call one off, or end it before its time.")
@output_option
def maintain_command(names: tuple[str, ...], cleared: str | None, output: str, **said: Any) -> None:
    """Say that nodes are not there from a moment until another.

    A job starts there only if its time limit ends before that begins; one without a limit goes elsewhere. What still
    runs there at the beginning is stopped with the time it asks for to save its work, costs no attempt, and starts
    again elsewhere, or there when the maintenance is over.
    """
    if cleared is not None:
        _only_clears(names, said)
        connected().clear_maintenance(cleared)
        show_json_array([]) if output == "json" else show(f"maintenance {quoted(cleared)} is over")
        return
    row = connected().maintain(list(names), *_span(names, said), note=said["note"])
    if output == "json":
        show_json_array([row])
        return
    show(f"maintenance {row['id']} of {', '.join(row['nodes'])}: {_when(row)}")


@node_command.command("maintenance")
@output_option
def maintenance_command(output: str) -> None:
    """List maintenance that is under way or planned."""
    rows = connected().maintenance()
    if output == "json":
        show_json_array(rows)
        return
    now = now_ms()
    columns = (Column("ID"), Column("FROM"), Column("UNTIL"), Column("NODES"), Column("BY"), Column("NOTE"))
    cells = [
        (
            row["id"],
            clock(row["from_ms"], now),
            clock(row["until_ms"], now),
            ", ".join(row["nodes"]),
            row["by"],
            row["note"] or "-",
        )
        for row in rows
    ]
    show_table(columns, cells, "no maintenance: ganger node maintain --help")


def _only_clears(names: tuple[str, ...], said: Record) -> None:
    if names or any(said.values()):
        raise click.UsageError("--clear takes the id of a maintenance, and nothing else")


def _span(names: tuple[str, ...], said: Record) -> tuple[int, int]:
    """When it begins and ends."""
    if not names:
        raise click.UsageError("name the nodes: ganger node maintain NODE... --from TIME --for DURATION")
    if said["begin_ms"] is None or (said["lasts"] is None) is (said["until_ms"] is None):
        raise click.UsageError("say when: --from TIME, and either --for DURATION or --until TIME")
    begin_ms: int = said["begin_ms"]
    until_ms: int = said["until_ms"] if said["lasts"] is None else begin_ms + parse_duration_ms(said["lasts"])
    if max(begin_ms, until_ms) > now_ms() + _FURTHEST_MS:
        raise click.UsageError(f"it may end at most {format_duration(_FURTHEST_MS)} from now")
    return begin_ms, until_ms


def _when(row: Record) -> str:
    now = now_ms()
    return f"from {clock(row['from_ms'], now)} until {clock(row['until_ms'], now)}"


def _drained(client: Client, names: tuple[str, ...]) -> list[Record]:
    """The nodes, once nothing is left on them."""
    said = None
    while True:
        rows = [row for row in client.nodes() if row["name"] in names]
        left = "; ".join(f"{row['name']} {_left(row)}" for row in rows if row["gangs"])
        if not left:
            return rows
        if left != said:
            say(left)
        said = left
        time.sleep(_LOOK_EVERY_S)


def _left(row: Record) -> str:
    """What has not left the node yet: nothing to say of one that is empty."""
    return f"still runs {', '.join(dict.fromkeys(row['gangs']))}" if row["gangs"] else ""


def _show(rows: list[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    levels = tuple(rows[0]["domains"]) if rows else ()
    has_pools = any(row["pool"] for row in rows)
    columns = (Column("NODE"), *map(_of_level, levels), *(each for each in _COLUMNS if has_pools or each != _POOL))
    cells = [_cells(row, [row["pool"] or "-"] * has_pools) for row in rows]
    show_table(columns, cells, "no nodes: ganger doctor")
    for row in rows:
        if row["unready"]:
            show(f"{quoted(row['name'])}: {row['unready']}")
    total = sum(row["gpus"] for row in rows)
    if total:
        used = total - sum(row["gpus_free"] for row in rows)
        foreign = sum(row["gpus_foreign"] for row in rows)
        by_others = f", {foreign} of them by others" if foreign else ""
        show(f"\n{used} of {total} GPUs used ({100 * used // total}%){by_others}")


def _of_level(level: str) -> Column:
    return Column(level.upper().replace("_", " "))


def _show_changed(rows: Iterable[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        goes_on = f"; it still runs {', '.join(row['gangs'])}" if row["gangs"] and row["state"] != "ready" else ""
        show(f"{quoted(row['name'])} is {row['state']}{goes_on}")


def _state(row: Record) -> str:
    return f"{row['state']} ({', '.join(row['maintenance'])})" if row["maintenance"] else str(row["state"])


def _others(row: Record) -> list[str]:
    many = row["gpus_foreign"]
    return [f"others ({many} GPU{'s' * (many > 1)})"] if many else []


def _cells(row: Record, pool: list[str]) -> tuple[str, ...]:
    cpu = row["cpu_milli"]
    memory = row["memory_bytes"]
    return (
        row["name"],
        *(domain or "-" for domain in row["domains"].values()),
        _state(row),
        row["gpu_type"] or "-",
        f"{row['gpus'] - row['gpus_free']}/{row['gpus']}",
        f"{format_cpu(cpu - row['cpu_free_milli'])}/{format_cpu(cpu)}",
        f"{format_bytes(memory - row['memory_free_bytes'])}/{format_bytes(memory)}",
        *pool,
        ", ".join((*row["gangs"], *_others(row))) or "-",
    )
