"""`ganger queue`: the queues, and what each may use."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from ganger.cli import completions
from ganger.cli.bulk import each_name
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import Checked, lasting_ms, output_option
from ganger.cli.output.queue_tree import in_tree, indented
from ganger.cli.output.tables import Column, quoted, show, show_json, show_json_array, show_table
from ganger.client import Client, ClientError
from ganger.model.queue import MAX_FIGURE, MAX_WEIGHT
from ganger.model.units import (
    HOUR_MS,
    format_bytes,
    format_cpu,
    format_duration,
    parse_bytes,
    parse_cpu_milli,
)

Record = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])

COLUMNS: Final = (
    Column("QUEUE"),
    Column("WEIGHT", right=True, spare=True),
    Column("GPUS"),
    Column("CPUS", spare=True),
    Column("MEMORY", spare=True),
    Column("FAIR GPUS", right=True),
    Column("QUOTA LEFT", right=True),
    Column("BORROWS", right=True, spare=True),
    Column("LENDS", right=True, spare=True),
    Column("RUNNING", right=True),
    Column("PENDING", right=True),
    Column("EACH USER"),
)


def _or_none(parse: Any) -> Any:
    """`parse`, but `none` takes the figure away."""
    return lambda text: None if text == "none" else parse(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _node_hours_ms(text: str) -> int:
    try:
        hours = float(text)
    except ValueError:
        hours = -1
    if not 0 <= hours * HOUR_MS <= MAX_FIGURE:
        raise ValueError(f"{text!r} is not a number of node-hours: write 128 for 16 nodes for 8 hours")
    return int(hours * HOUR_MS)


def _gpus(text: str) -> int | dict[str, int | None] | None:
    """8, or {h100: 8}."""
    kind, colon, count = text.rpartition(":")
    if colon and not kind:
        raise ValueError(f"{text!r} names no type: write 8, or H100:8 for GPUs of one type")
    return {kind.lower(): _or_none(_count)(count)} if kind else _or_none(_count)(count)


def _weight(text: str) -> int:
    if not 1 <= _count(text) <= MAX_WEIGHT:
        raise ValueError(f"{text!r} is no weight: write a number from 1 to {MAX_WEIGHT}")
    return _count(text)


_FIGURES: Final = {
    "gpus": ("nominal", "gpus", _gpus),
    "cpu": ("nominal", "cpu_milli", _or_none(parse_cpu_milli)),
    "memory": ("nominal", "memory_bytes", _or_none(parse_bytes)),
    "borrow_gpus": ("borrowing", "gpus", _gpus),
    "borrow_cpu": ("borrowing", "cpu_milli", _or_none(parse_cpu_milli)),
    "borrow_memory": ("borrowing", "memory_bytes", _or_none(parse_bytes)),
    "lend_gpus": ("lending", "gpus", _gpus),
    "lend_cpu": ("lending", "cpu_milli", _or_none(parse_cpu_milli)),
    "lend_memory": ("lending", "memory_bytes", _or_none(parse_bytes)),
    "max_gpus_per_user": ("user_limits", "gpus", _or_none(_count)),
    "max_jobs_per_user": ("user_limits", "jobs", _or_none(_count)),
    "max_pending_per_user": ("user_limits", "pending", _or_none(_count)),
    "max_time": ("user_limits", "time_ms", _or_none(lasting_ms)),
    "max_queue_time": ("user_limits", "queue_time_ms", _or_none(lasting_ms)),
    "max_node_hours": ("user_limits", "node_ms", _or_none(_node_hours_ms)),
}
"""Flag -> (part of the queue, figure in it, how its text is read)."""


def _figure(flag: str, metavar: str, help: str) -> Callable[[Command], Command]:
    name = flag.removeprefix("--").replace("-", "_")
    parse = _FIGURES[name][2]
    return click.option(flag, metavar=metavar, type=Checked(metavar, parse), multiple=parse is _gpus, help=help)


@click.group("queue", invoke_without_command=True)
@output_option
@click.pass_context
def queue_command(ctx: click.Context, output: str) -> None:
    """List, set and delete queues: quota, lending, limits of each user.

    Without a command: lists them. Queues are a tree under `root`; a job that names none waits in `default`. QUOTA LEFT
    is how many more GPUs a queue may use by the quotas, its own and what others lend it; `ganger fit` shows which GPUs
    are free.
    """
    if ctx.invoked_subcommand is None:
        rows = connected().queues()
        if output == "json":
            show_json_array(rows)
        else:
            show_table(COLUMNS, [queue_cells(row, depth) for depth, row in in_tree(rows)], "no queues")


@queue_command.command("set")
@click.argument("name", shell_complete=completions.queues)
@click.option("--parent", metavar="QUEUE", shell_complete=completions.queues, help="The queue above it; root without.")
@click.option("--weight", metavar="N", type=Checked("N", _weight), help="Its part beside its siblings; 1 without.")
@_figure("--gpus", "[TYPE:]N", "GPUs it is guaranteed; of one type, as often as there are types.")
@_figure("--cpu", "N", "CPUs it is guaranteed.")
@_figure("--memory", "SIZE", "Memory it is guaranteed.")
@_figure("--borrow-gpus", "[TYPE:]N", "GPUs it may use beyond its quota while others leave them.")
@_figure("--borrow-cpu", "N", "CPUs, likewise.")
@_figure("--borrow-memory", "SIZE", "Memory, likewise.")
@_figure("--lend-gpus", "[TYPE:]N", "GPUs of its quota that others may use while it leaves them.")
@_figure("--lend-cpu", "N", "CPUs, likewise.")
@_figure("--lend-memory", "SIZE", "Memory, likewise.")
@_figure("--max-gpus-per-user", "N", "GPUs one user may hold at a time.")
@_figure("--max-jobs-per-user", "N", "Jobs one user may have on nodes at a time.")
@_figure("--max-pending-per-user", "N", "Jobs one user may have waiting at a time.")
@_figure("--max-time", "DURATION", "The longest time limit of one job.")
@_figure("--max-queue-time", "DURATION", "The longest a job may wait; then it ends.")
@_figure("--max-node-hours", "N", "Nodes times time limit, over a user's live jobs.")
@click.option(
    "--default-time",
    metavar="DURATION",
    type=Checked("DURATION", _or_none(lasting_ms)),
    help="The time limit of a job that names none; without, as in the queue above.",
)
@output_option
def set_command(
    name: str,
    parent: str | None,
    weight: str | None,
    default_time: str | None,
    output: str,
    **figures: str | tuple[str, ...] | None,
) -> None:
    """Make a queue, or change one.

    What is not named stays as it is; `none` takes a figure away.

    A quota (--gpus, --cpu, --memory) is a guarantee to a queue and all below it, not a ceiling. A queue may also borrow
    what others lend and leave idle: GPUs up to --borrow-gpus or, without it, all of them. So `--gpus 0 --borrow-gpus 0`
    is no GPU at all. What nobody is guaranteed, and what is left idle, goes by --weight under a fair order.
    """
    client = connected()
    queue = _present(client, name)
    above = {} if parent is None else {"parent": parent}
    heavier = {} if weight is None else {"weight": _weight(weight)}
    timed = {} if default_time is None else {"default_time_ms": _or_none(lasting_ms)(default_time)}
    row = client.set_queue(name, changed(queue | above | heavier | timed, figures))
    if output == "json":
        show_json(row)
    else:
        show(f"set {quoted(name)}, below {quoted(row['parent'])}" if row["parent"] else f"set {quoted(name)}")
        show_table(COLUMNS, [queue_cells(row)], "")


@queue_command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completions.queues)
@output_option
def delete_command(names: tuple[str, ...], output: str) -> int:
    """Delete empty queues."""
    return each_name(names, connected().delete_queue, "deleted {}", output)


def changed(queue: Record, figures: Mapping[str, str | tuple[str, ...] | None]) -> Record:
    """The queue with the figures that were given, as the server takes it."""
    parts = {part: dict(queue.get(part, {})) for part in ("nominal", "borrowing", "lending", "user_limits")}
    for flag, given in figures.items():
        part, figure, parse = _FIGURES[flag]
        for text in (given,) if isinstance(given, str) else given or ():
            value = parse(text)
            if isinstance(value, dict):
                types = {**parts[part].get("gpu_types", {}), **value}
                parts[part]["gpu_types"] = {kind: count for kind, count in types.items() if count is not None}
            else:
                parts[part][figure] = value
    kept = {name: queue[name] for name in ("parent", "weight", "default_time_ms") if queue.get(name) is not None}
    return {**parts, **kept}


def _present(client: Client, name: str) -> Record:
    """The queue as it is; empty when there is none of that name."""
    try:
        return client.queue(name)
    except ClientError as error:
        if error.exit_code != 3:
            raise
        return {}


def queue_cells(row: Record, depth: int = 0) -> tuple[str, ...]:
    """A row of COLUMNS, of a queue with so many above it."""
    used, nominal = row["used"], row["nominal"]
    return (
        indented(depth, row["name"]),
        str(row["weight"]),
        f"{used['gpus']}/{_gpus_text(nominal)}",
        _of(used["cpu_milli"], nominal["cpu_milli"], format_cpu),
        _of(used["memory_bytes"], nominal["memory_bytes"], format_bytes),
        str(row["fair_gpus"]),
        _figure_text(row["available"]["gpus"], str),
        _gpus_text(row["borrowing"]),
        _gpus_text(row["lending"]),
        str(row["running"]),
        str(row["pending"]),
        _limits(row["user_limits"], row["default_time_ms"]),
    )


def _of(used: int, nominal: int | None, text: Any) -> str:
    """What is used of what is guaranteed; nothing where nothing is either."""
    return f"{text(used)}/{_figure_text(nominal, text)}" if used or nominal is not None else "-"


def _figure_text(value: int | None, text: Any) -> str:
    return "-" if value is None else str(text(value))


def _gpus_text(amount: Record) -> str:
    """`8`, `8 h100:4`, `h100:4`, `-`."""
    types = [f"{kind}:{count}" for kind, count in sorted(amount["gpu_types"].items())]
    return " ".join([*([] if amount["gpus"] is None and types else [_figure_text(amount["gpus"], str)]), *types])


def _limits(limits: Record, default_time_ms: int | None) -> str:
    parts = []
    if limits["gpus"] is not None:
        parts.append(f"{limits['gpus']} GPU" + ("" if limits["gpus"] == 1 else "s"))
    if limits["jobs"] is not None:
        parts.append(f"{limits['jobs']} job" + ("" if limits["jobs"] == 1 else "s"))
    if limits["pending"] is not None:
        parts.append(f"{limits['pending']} waiting")
    if limits["time_ms"] is not None:
        parts.append(f"{format_duration(limits['time_ms'])} a job")
    if limits["queue_time_ms"] is not None:
        parts.append(f"waits {format_duration(limits['queue_time_ms'])}")
    if limits["node_ms"] is not None:
        parts.append(f"{limits['node_ms'] / HOUR_MS:g} node-hours")
    if default_time_ms is not None:
        parts.append(f"{format_duration(default_time_ms)} where a job names none")
    return ", ".join(parts) or "-"
