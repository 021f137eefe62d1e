"""`ganger node`: nodes, their free capacity, and whether they accept new jobs."""

import time
from collections.abc import Iterable
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.cluster.node_repair import health_command, history_command, repair_command, retire_command
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import DURATION, POSITIVE_DURATION, output_option
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    format_clock,
    say,
    shell_quote,
    show,
    show_json_array,
    show_rows,
    show_table,
)
from ganger.cli.times import FUTURE_TIME
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

_POLL_S: Final = 0.25
_MAX_AHEAD_MS: Final = 3650 * DAY_MS

nodes_argument = click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=completions.nodes)
reason_option = click.option("--reason", default="", help="Reason, recorded in the event log.")


@click.group("node", invoke_without_command=True)
@output_option
@click.pass_context
def node_command(ctx: click.Context, output: str) -> None:
    """List, cordon, uncordon, drain and repair nodes, and plan their maintenance.

    Lists the nodes in topology order without a subcommand.
    """
    if ctx.invoked_subcommand is None:
        _show(connect().nodes(), output)


node_command.add_command(health_command)
node_command.add_command(history_command)
node_command.add_command(repair_command)
node_command.add_command(retire_command)


@node_command.command("ls")
@output_option
def ls_command(output: str) -> None:
    """List the nodes in topology order."""
    _show(connect().nodes(), output)


@node_command.command("cordon")
@nodes_argument
@reason_option
@output_option
def cordon_command(names: tuple[str, ...], reason: str, output: str) -> None:
    """Cordon nodes: running jobs continue, new jobs are not placed there."""
    client = connect()
    _show_changed([client.cordon(name, cordoned=True, reason=reason) for name in names], output)


@node_command.command("uncordon")
@nodes_argument
@output_option
def uncordon_command(names: tuple[str, ...], output: str) -> None:
    """Uncordon nodes: new jobs may be placed there again."""
    client = connect()
    _show_changed([client.cordon(name, cordoned=False) for name in names], output)


@node_command.command("drain")
@nodes_argument
@reason_option
@click.option("--wait", is_flag=True, help="Wait until no job is left on the nodes, and show which ones remain.")
@output_option
def drain_command(names: tuple[str, ...], reason: str, wait: bool, output: str) -> None:
    """Cordon nodes and requeue the jobs that run there.

    Each of these jobs stops as a whole, with its grace period to save a checkpoint. It becomes pending again, keeps its
    place in the queue and loses no retry. Undo with `ganger node uncordon`.
    """
    client = connect()
    rows = [client.drain(name, reason=reason) for name in names]
    if wait:
        rows = _wait_drained(client, names)
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        show(f"{shell_quote(row['name'])} is {row['state']} and {_remaining(row) or 'empty'}")


@node_command.command("fail")
@nodes_argument
@output_option
def fail_command(names: tuple[str, ...], output: str) -> None:
    """Make nodes fail with everything that runs on them, to test recovery.

    Meant for virtual nodes: the processes there are killed. `ganger node return` brings the nodes back, empty.
    """
    client = connect()
    _show_changed([client.fail_node(name) for name in names], output)


@node_command.command("return")
@nodes_argument
@output_option
def return_command(names: tuple[str, ...], output: str) -> None:
    """Return nodes to service: those held for their health after a test, those that `ganger node fail` made fail.

    Nodes that a user cordoned stay cordoned.
    """
    client = connect()
    _show_changed([client.return_node(name) for name in names], output)


@node_command.command("preempt")
@nodes_argument
@click.option("--in", "notice", type=DURATION, default="30s", show_default=True, help="Time until the nodes are gone.")
@output_option
def preempt_command(names: tuple[str, ...], notice: str, output: str) -> None:
    """Preempt nodes after a notice, as a spot provider does, to test recovery.

    Jobs there are notified and may save a checkpoint within the notice, for no longer than their `checkpoint.grace`.
    They are requeued, start elsewhere and lose no retry. Undo with `ganger node return` and `uncordon`.
    """
    client, notice_ms = connect(), parse_duration_ms(notice)
    rows = [client.preempt_node(name, notice_ms) for name in names]
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        show(
            f"{shell_quote(row['name'])} is preempted in {format_duration(notice_ms)} and {_remaining(row) or 'empty'}"
        )


@node_command.command("maintain")
@click.argument("names", metavar="NODE...", nargs=-1, shell_complete=completions.nodes)
@click.option(
    "--from", "begin_ms", type=FUTURE_TIME, help="Start, such as 22:00, 2h (from now), 2026-11-21T22:00, now."
)
@click.option("--for", "duration", type=POSITIVE_DURATION, help="Duration, such as 90m, 1d.")
@click.option("--until", "until_ms", type=FUTURE_TIME, help="End, instead of a duration.")
@click.option("--note", default="", help="Note, shown to all users.")
@click.option("--clear", "cleared", metavar="ID", help="Cancel this maintenance window, or end it early.")
@output_option
def maintain_command(names: tuple[str, ...], cleared: str | None, output: str, **options: Any) -> None:
    """Plan a maintenance window in which nodes are unavailable.

    A job starts there only if its time limit ends before the window starts; a job without a time limit is placed
    elsewhere. Jobs that still run when it starts stop with their grace period and are requeued; they lose no retry.
    """
    if cleared is not None:
        _check_only_clear(names, options)
        connect().clear_maintenance(cleared)
        show_json_array([]) if output == "json" else show(f"cleared maintenance {shell_quote(cleared)}")
        return
    row = connect().maintain(list(names), *_span(names, options), note=options["note"])
    if output == "json":
        show_json_array([row])
        return
    now_ms = current_time_ms()
    span = f"from {format_clock(row['from_ms'], now_ms)} until {format_clock(row['until_ms'], now_ms)}"
    show(f"maintenance {row['id']} of {', '.join(row['nodes'])}: {span}")


@node_command.command("maintenance")
@output_option
def maintenance_command(output: str) -> None:
    """List current and planned maintenance windows."""
    now_ms = current_time_ms()
    columns = [Column(title) for title in ("ID", "FROM", "UNTIL", "NODES", "BY", "NOTE")]

    def cells(row: Record) -> tuple[str, ...]:
        span = format_clock(row["from_ms"], now_ms), format_clock(row["until_ms"], now_ms)
        return row["id"], *span, ", ".join(row["nodes"]), row["by"], row["note"] or "-"

    show_rows(columns, connect().maintenance(), cells, "no maintenance: ganger node maintain --help", output)


def _check_only_clear(names: tuple[str, ...], options: Record) -> None:
    if names or any(options.values()):
        raise click.UsageError("--clear takes the id of a maintenance window and no other option")


def _span(names: tuple[str, ...], options: Record) -> tuple[int, int]:
    """Return the start and the end of the window in Unix ms."""
    if not names:
        raise click.UsageError("name the nodes: ganger node maintain NODE... --from TIME --for DURATION")
    if options["begin_ms"] is None or (options["duration"] is None) is (options["until_ms"] is None):
        raise click.UsageError("give --from TIME, and either --for DURATION or --until TIME")
    begin_ms: int = options["begin_ms"]
    until_ms: int = (
        options["until_ms"] if options["duration"] is None else begin_ms + parse_duration_ms(options["duration"])
    )
    if max(begin_ms, until_ms) > current_time_ms() + _MAX_AHEAD_MS:
        raise click.UsageError(f"a maintenance window must end within {format_duration(_MAX_AHEAD_MS)}")
    return begin_ms, until_ms


def _wait_drained(client: Client, names: tuple[str, ...]) -> list[Record]:
    """Wait until no job is left on the nodes, and return their rows."""
    shown = None
    while True:
        rows = [row for row in client.nodes() if row["name"] in names]
        remaining = "; ".join(f"{row['name']} {_remaining(row)}" for row in rows if row["gangs"])
        if not remaining:
            return rows
        if remaining != shown:
            say(remaining)
        shown = remaining
        time.sleep(_POLL_S)


def _remaining(row: Record) -> str:
    """Return the jobs that still run on a node, as the end of a sentence; empty if there are none."""
    return f"still runs {', '.join(dict.fromkeys(row['gangs']))}" if row["gangs"] else ""


def _show(rows: list[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    levels = tuple(rows[0]["domains"]) if rows else ()
    has_pools = any(row["pool"] for row in rows)
    columns = (
        Column("NODE"),
        *(Column(level.upper().replace("_", " ")) for level in levels),
        *(column for column in _COLUMNS if has_pools or column != _POOL),
    )
    cells = [_cells(row, [row["pool"] or "-"] * has_pools) for row in rows]
    show_table(columns, cells, "no nodes: ganger doctor")
    for row in rows:
        if row["unready"]:
            show(f"{shell_quote(row['name'])}: {row['unready']}")
    total = sum(row["gpus"] for row in rows)
    if total:
        used = total - sum(row["gpus_free"] for row in rows)
        foreign_gpus = sum(row["gpus_foreign"] for row in rows)
        foreign_text = f", {foreign_gpus} of them by foreign pods" if foreign_gpus else ""
        show(f"\n{used} of {total} GPUs used ({100 * used // total}%){foreign_text}")


def _show_changed(rows: Iterable[Record], output: str) -> None:
    if output == "json":
        show_json_array(rows)
        return
    for row in rows:
        remaining = f"; it {_remaining(row)}" if row["gangs"] and row["state"] != "ready" else ""
        show(f"{shell_quote(row['name'])} is {row['state']}{remaining}")


def _state(row: Record) -> str:
    return f"{row['state']} ({', '.join(row['maintenance'])})" if row["maintenance"] else str(row["state"])


def _cells(row: Record, pool: list[str]) -> tuple[str, ...]:
    cpu = row["cpu_milli"]
    memory = row["memory_bytes"]
    foreign = [f"foreign pods ({count(row['gpus_foreign'], 'GPU')})"] * bool(row["gpus_foreign"])
    return (
        row["name"],
        *(domain or "-" for domain in row["domains"].values()),
        _state(row),
        row["gpu_type"] or "-",
        f"{row['gpus'] - row['gpus_free']}/{row['gpus']}",
        f"{format_cpu(cpu - row['cpu_free_milli'])}/{format_cpu(cpu)}",
        f"{format_bytes(memory - row['memory_free_bytes'])}/{format_bytes(memory)}",
        *pool,
        ", ".join((*row["gangs"], *foreign)) or "-",
    )
