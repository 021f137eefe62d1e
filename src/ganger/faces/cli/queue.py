"""`ganger queue`: the queues, and what each may use."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from ganger.faces.cli import candidates
from ganger.faces.cli.options import Checked, output_option
from ganger.faces.cli.render import Column, quoted, show, show_json, show_json_array, show_table
from ganger.faces.cli.run import connected
from ganger.faces.cli.several import each_name
from ganger.faces.client import Client, ClientError
from ganger.model.units import (
    HOUR_MS,
    format_bytes,
    format_cpu,
    format_duration,
    parse_bytes,
    parse_cpu_milli,
    parse_duration_ms,
)

Record = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])

COLUMNS: Final = (
    Column("QUEUE"),
    Column("PARENT"),
    Column("GPUS"),
    Column("CPUS"),
    Column("MEMORY"),
    Column("FREE GPUS", right=True),
    Column("BORROWS", right=True),
    Column("LENDS", right=True),
    Column("RUNNING", right=True),
    Column("PENDING", right=True),
    Column("EACH USER"),
)


def _or_none(parse: Any) -> Any:
    """`parse`, but `none` takes the figure away."""
    return lambda text: None if text == "none" else parse(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _node_hours_ms(text: str) -> int:
    try:
        hours = float(text)
    except ValueError:
        hours = -1
    if not 0 <= hours < float("inf"):
        raise ValueError(f"{text!r} is not a number of node-hours: write 128 for 16 nodes for 8 hours")
    return int(hours * HOUR_MS)


_FIGURES: Final = {
    "gpus": ("nominal", "gpus", _or_none(_count)),
    "cpu": ("nominal", "cpu_milli", _or_none(parse_cpu_milli)),
    "memory": ("nominal", "memory_bytes", _or_none(parse_bytes)),
    "borrow_gpus": ("borrowing", "gpus", _or_none(_count)),
    "lend_gpus": ("lending", "gpus", _or_none(_count)),
    "max_gpus_per_user": ("user_limits", "gpus", _or_none(_count)),
    "max_time": ("user_limits", "time_ms", _or_none(parse_duration_ms)),
    "max_node_hours": ("user_limits", "node_ms", _or_none(_node_hours_ms)),
}
"""Flag -> (part of the queue, figure in it, how its text is read)."""


def _figure(flag: str, metavar: str, help: str) -> Callable[[Command], Command]:
    name = flag.removeprefix("--").replace("-", "_")
    return click.option(flag, metavar=metavar, type=Checked(metavar, _FIGURES[name][2]), help=help)


@click.group("queue", invoke_without_command=True)
@output_option
@click.pass_context
def queue_command(ctx: click.Context, output: str) -> None:
    """List, set and delete queues: quota, lending, limits of each user.

    Without a command: lists them. Queues are a tree under `root`; a job that names none waits in `default`.
    """
    if ctx.invoked_subcommand is None:
        rows = connected().queues()
        if output == "json":
            show_json_array(rows)
        else:
            show_table(COLUMNS, [queue_cells(row) for row in rows], "no queues")


@queue_command.command("set")
@click.argument("name", shell_complete=candidates.queues)
@click.option("--parent", metavar="QUEUE", shell_complete=candidates.queues, help="The queue above it; root without.")
@_figure("--gpus", "N", "Its own quota of GPUs.")
@_figure("--cpu", "N", "Its own quota of CPUs.")
@_figure("--memory", "SIZE", "Its own quota of memory.")
@_figure("--borrow-gpus", "N", "GPUs it may use beyond its quota while others leave them.")
@_figure("--lend-gpus", "N", "GPUs of its quota that others may use while it leaves them.")
@_figure("--max-gpus-per-user", "N", "GPUs one user may hold at a time.")
@_figure("--max-time", "DURATION", "The longest time limit of one job.")
@_figure("--max-node-hours", "N", "Nodes times time limit, over a user's live jobs.")
@output_option
def set_command(name: str, parent: str | None, output: str, **figures: str | None) -> None:
    """Make a queue, or change one.

    What is not named stays as it is; `none` takes a figure away.

    A quota (--gpus, --cpu, --memory) is a guarantee, not a ceiling. A queue may also borrow what others lend and leave
    idle: GPUs up to --borrow-gpus or, without it, all of them. So `--gpus 0 --borrow-gpus 0` is no GPU at all.
    """
    client = connected()
    row = client.set_queue(name, changed(_present(client, name), parent, figures))
    if output == "json":
        show_json(row)
    else:
        show(f"set {quoted(name)}")
        show_table(COLUMNS, [queue_cells(row)], "")


@queue_command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=candidates.queues)
@output_option
def delete_command(names: tuple[str, ...], output: str) -> int:
    """Delete empty queues."""
    return each_name(names, connected().delete_queue, "deleted {}", output)


def changed(queue: Record, parent: str | None, figures: Mapping[str, str | None]) -> Record:
    """The queue with the figures that were given, as the server takes it."""
    parts = {part: dict(queue.get(part, {})) for part in ("nominal", "borrowing", "lending", "user_limits")}
    for flag, text in figures.items():
        if text is not None:
            part, figure, parse = _FIGURES[flag]
            parts[part][figure] = parse(text)
    above = parent if parent is not None else queue.get("parent")
    return {**parts, **({"parent": above} if above is not None else {})}


def _present(client: Client, name: str) -> Record:
    """The queue as it is; empty when there is none of that name."""
    try:
        return client.queue(name)
    except ClientError as error:
        if error.exit_code != 3:
            raise
        return {}


def queue_cells(row: Record) -> tuple[str, ...]:
    """A row of COLUMNS."""
    used, nominal = row["used"], row["nominal"]
    return (
        row["name"],
        row["parent"] or "-",
        f"{used['gpus']}/{_figure_text(nominal['gpus'], str)}",
        f"{format_cpu(used['cpu_milli'])}/{_figure_text(nominal['cpu_milli'], format_cpu)}",
        f"{format_bytes(used['memory_bytes'])}/{_figure_text(nominal['memory_bytes'], format_bytes)}",
        _figure_text(row["available"]["gpus"], str),
        _figure_text(row["borrowing"]["gpus"], str),
        _figure_text(row["lending"]["gpus"], str),
        str(row["running"]),
        str(row["pending"]),
        _limits(row["user_limits"]),
    )


def _figure_text(value: int | None, text: Any) -> str:
    return "-" if value is None else str(text(value))


def _limits(limits: Record) -> str:
    parts = []
    if limits["gpus"] is not None:
        parts.append(f"{limits['gpus']} GPU" + ("" if limits["gpus"] == 1 else "s"))
    if limits["time_ms"] is not None:
        parts.append(f"{format_duration(limits['time_ms'])} a job")
    if limits["node_ms"] is not None:
        parts.append(f"{limits['node_ms'] / HOUR_MS:g} node-hours")
    return ", ".join(parts) or "-"
