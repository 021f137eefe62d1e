"""`ganger queue`: queues with their quota, borrowing, lending and usage."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import click

from ganger.cli import completions
from ganger.cli.bulk import for_each_name
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import CheckedText, output_option, parse_positive_duration_ms, parse_priority
from ganger.cli.output.messages import idle_text
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    shell_quote,
    show,
    show_json,
    show_json_array,
    show_table,
)
from ganger.cli.output.queue_tree import indent_name, tree_rows
from ganger.client import Client, ClientError
from ganger.model.queue import MAX_FIGURE, MAX_WEIGHT, is_period
from ganger.model.units import (
    EPHEMERAL_STORAGE,
    HOUR_MS,
    format_bytes,
    format_cpu,
    format_duration,
    format_extended,
    format_node_time,
    format_period,
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
    Column("OTHERS", spare=True),
    Column("FAIR SHARE", right=True),
    Column("QUOTA LEFT", right=True),
    Column("BORROWING LIMIT", right=True, spare=True),
    Column("LENDING LIMIT", right=True, spare=True),
    Column("RUNNING", right=True),
    Column("PENDING", right=True),
    Column("USER LIMITS"),
)


def _or_none(parse: Any) -> Any:
    """Return a parser that maps `none` to None and calls `parse` otherwise."""
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


def _node_hours_used(text: str) -> dict[str, int]:
    """Parse `128/30d`: node-hours in a period."""
    hours, _, period = text.partition("/")
    try:
        used = {"limit_ms": _node_hours_ms(hours), "per_ms": parse_positive_duration_ms(period)}
    except ValueError:
        used = {"per_ms": 0}
    if not is_period(used["per_ms"]):
        raise ValueError(
            f"{text!r} is not a number of node-hours in a period: write 128/30d; a period is whole hours up to 8d, or "
            "whole days up to 366d"
        )
    return used


def _gpus(text: str) -> int | dict[str, int | None] | None:
    """Parse `8`, or `H100:8` as {h100: 8}."""
    kind, colon, count = text.rpartition(":")
    if colon and not kind:
        raise ValueError(f"{text!r} has no GPU type: write 8, or H100:8 for GPUs of one type")
    return {kind.lower(): _or_none(_count)(count)} if kind else _or_none(_count)(count)


def _extended(text: str) -> dict[str, int | None]:
    """Parse `rdma/hca:8`, or `ephemeral-storage:2Ti`."""
    name, _, number = text.rpartition(":")
    if name == EPHEMERAL_STORAGE:
        return {name: _or_none(parse_bytes)(number)}
    if not all(name.partition("/")):
        raise ValueError(f"{text!r} is not an amount of a resource: write its name and a number, rdma/hca:8")
    return {name: _or_none(_count)(number)}


def _weight(text: str) -> int:
    if not 1 <= _count(text) <= MAX_WEIGHT:
        raise ValueError(f"{text!r} is not a weight: write a number from 1 to {MAX_WEIGHT}")
    return _count(text)


_FIGURES: Final = {
    "gpus": ("nominal", "gpus", _gpus),
    "cpu": ("nominal", "cpu_milli", _or_none(parse_cpu_milli)),
    "memory": ("nominal", "memory_bytes", _or_none(parse_bytes)),
    "extended": ("nominal", "extended", _extended),
    "borrow_gpus": ("borrowing", "gpus", _gpus),
    "borrow_cpu": ("borrowing", "cpu_milli", _or_none(parse_cpu_milli)),
    "borrow_memory": ("borrowing", "memory_bytes", _or_none(parse_bytes)),
    "borrow_extended": ("borrowing", "extended", _extended),
    "lend_gpus": ("lending", "gpus", _gpus),
    "lend_cpu": ("lending", "cpu_milli", _or_none(parse_cpu_milli)),
    "lend_memory": ("lending", "memory_bytes", _or_none(parse_bytes)),
    "lend_extended": ("lending", "extended", _extended),
    "max_gpus_per_user": ("user_limits", "gpus", _or_none(_count)),
    "max_jobs_per_user": ("user_limits", "jobs", _or_none(_count)),
    "max_pending_per_user": ("user_limits", "pending", _or_none(_count)),
    "max_time": ("user_limits", "time_ms", _or_none(parse_positive_duration_ms)),
    "max_queue_time": ("user_limits", "queue_time_ms", _or_none(parse_positive_duration_ms)),
    "max_node_hours": ("user_limits", "node_ms", _or_none(_node_hours_ms)),
    "max_priority": ("user_limits", "priority", _or_none(parse_priority)),
    "max_node_hours_used": ("user_limits", "node_time_used", _or_none(_node_hours_used)),
}
"""Flag -> (part of the queue, figure in it, parser)."""
_NAMED: Final = {_gpus: "gpu_types", _extended: "extended"}
"""Parsers of amounts by name, and the figures that they are in."""


def _figure(flag: str, metavar: str, help: str) -> Callable[[Command], Command]:
    name = flag.removeprefix("--").replace("-", "_")
    parse = _FIGURES[name][2]
    return click.option(flag, metavar=metavar, type=CheckedText(metavar, parse), multiple=parse in _NAMED, help=help)


@click.group("queue", invoke_without_command=True)
@output_option
@click.pass_context
def queue_command(ctx: click.Context, output: str) -> None:
    """List, set and delete queues: quota, borrowing, lending, per-user limits.

    Lists the queues without a subcommand. Queues form a tree below `root`; the queue of a job that names none is
    `default`. QUOTA LEFT is the number of GPUs that a queue may still use from its own quota and what other queues
    lend it; `ganger fit` shows which GPUs are free. GPUS, CPUS, MEMORY and OTHERS are use and quota, FAIR SHARE the
    GPUs in service that its weight entitles it to, BORROWING LIMIT and LENDING LIMIT those beyond the quota and lent at
    most, USER LIMITS those of each user.
    """
    if ctx.invoked_subcommand is None:
        _show(output)


@queue_command.command("ls")
@output_option
def ls_command(output: str) -> None:
    """List the queues as a tree."""
    _show(output)


def _show(output: str) -> None:
    rows = connect().queues()
    if output == "json":
        show_json_array(rows)
    else:
        show_table(COLUMNS, [queue_cells(row, depth) for depth, row in tree_rows(rows)], "no queues")
        for row in rows:
            for job in row["idle"]:
                show(f"{job['job']} in queue {row['name']}: {idle_text(job, current_time_ms())}")


@queue_command.command("set")
@click.argument("name", shell_complete=completions.queues)
@click.option("--parent", metavar="QUEUE", shell_complete=completions.queues, help="Parent queue (default: root).")
@click.option(
    "--weight", metavar="N", type=CheckedText("N", _weight), help="Weight relative to its siblings (default: 1)."
)
@_figure("--gpus", "[TYPE:]N", "Guaranteed GPUs; repeat it for several GPU types.")
@_figure("--cpu", "N", "Guaranteed CPUs.")
@_figure("--memory", "SIZE", "Guaranteed memory.")
@_figure("--extended", "NAME:N", "Guaranteed amount of another resource of nodes, such as rdma/hca:8; may be repeated.")
@_figure("--borrow-gpus", "[TYPE:]N", "GPUs it may borrow beyond its quota while others leave them idle.")
@_figure("--borrow-cpu", "N", "CPUs it may borrow.")
@_figure("--borrow-memory", "SIZE", "Memory it may borrow.")
@_figure("--borrow-extended", "NAME:N", "Amount of another resource that it may borrow.")
@_figure("--lend-gpus", "[TYPE:]N", "GPUs of its quota that others may borrow while it leaves them idle.")
@_figure("--lend-cpu", "N", "CPUs that others may borrow.")
@_figure("--lend-memory", "SIZE", "Memory that others may borrow.")
@_figure("--lend-extended", "NAME:N", "Amount of another resource that others may borrow.")
@_figure("--max-gpus-per-user", "N", "GPUs that one user may have allocated at a time.")
@_figure("--max-jobs-per-user", "N", "Jobs that one user may have running at a time.")
@_figure("--max-pending-per-user", "N", "Jobs that one user may have pending at a time.")
@_figure("--max-time", "DURATION", "Maximum time limit of a job.")
@_figure("--max-queue-time", "DURATION", "Maximum time that a job may be pending; then it ends.")
@_figure("--max-node-hours", "N", "Maximum sum of nodes times time limit over a user's live jobs.")
@_figure("--max-priority", "PRIORITY", "Highest priority that a user may ask for; an administrator may ask for any.")
@_figure(
    "--max-node-hours-used",
    "N/PERIOD",
    "Maximum node-hours that a user's jobs use in a sliding period, such as 128/30d.",
)
@click.option(
    "--default-time",
    metavar="DURATION",
    type=CheckedText("DURATION", _or_none(parse_positive_duration_ms)),
    help="Time limit of jobs that name none (default: inherited from the parent).",
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
    """Create or change a queue.

    Values that are not given stay unchanged; `none` removes a value.

    A quota (--gpus, --cpu, --memory) is a guarantee to a queue and its descendants, not a limit. A queue may also
    borrow what other queues lend and leave idle: GPUs up to --borrow-gpus or, without it, all of them. Hence
    `--gpus 0 --borrow-gpus 0` allows no GPU at all. Unguaranteed and idle capacity is divided by --weight under a
    fair-share order.
    """
    client = connect()
    queue = _current(client, name)
    parent_change = {} if parent is None else {"parent": parent}
    weight_change = {} if weight is None else {"weight": _weight(weight)}
    time_change = (
        {} if default_time is None else {"default_time_ms": _or_none(parse_positive_duration_ms)(default_time)}
    )
    row = client.set_queue(name, with_figures(queue | parent_change | weight_change | time_change, figures))
    if output == "json":
        show_json(row)
    else:
        show(
            f"set {shell_quote(name)}, child of {shell_quote(row['parent'])}"
            if row["parent"]
            else f"set {shell_quote(name)}"
        )
        show_table(COLUMNS, [queue_cells(row)], "")


@queue_command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completions.queues)
@output_option
def delete_command(names: tuple[str, ...], output: str) -> int:
    """Delete empty queues."""
    return for_each_name(names, connect().delete_queue, "deleted {}", output)


def with_figures(queue: Record, figures: Mapping[str, str | tuple[str, ...] | None]) -> Record:
    """Return the queue with the given figures set, as the server takes it."""
    parts = {part: dict(queue.get(part, {})) for part in ("nominal", "borrowing", "lending", "user_limits")}
    for flag, texts in figures.items():
        part, figure, parse = _FIGURES[flag]
        for text in (texts,) if isinstance(texts, str) else texts or ():
            value = parse(text)
            if parse in _NAMED and isinstance(value, dict):
                amounts = {**parts[part].get(_NAMED[parse], {}), **value}
                parts[part][_NAMED[parse]] = {kind: count for kind, count in amounts.items() if count is not None}
            else:
                parts[part][figure] = value
    scalars = {name: queue[name] for name in ("parent", "weight", "default_time_ms") if queue.get(name) is not None}
    return {**parts, **scalars}


def _current(client: Client, name: str) -> Record:
    """Return the queue as it is, or an empty record if it does not exist."""
    try:
        return client.queue(name)
    except ClientError as error:
        if error.exit_code != 3:
            raise
        return {}


def queue_cells(row: Record, depth: int = 0) -> tuple[str, ...]:
    """Return a row of COLUMNS for a queue at a depth of the tree."""
    used, nominal = row["used"], row["nominal"]
    return (
        indent_name(depth, row["name"]),
        str(row["weight"]),
        f"{used['gpus']}/{_gpus_text(nominal)}",
        _used_of(used["cpu_milli"], nominal["cpu_milli"], format_cpu),
        _used_of(used["memory_bytes"], nominal["memory_bytes"], format_bytes),
        _others_text(used, nominal["extended"]),
        str(row["fair_gpus"]),
        _figure_text(row["available"]["gpus"], str),
        _gpus_text(row["borrowing"]),
        _gpus_text(row["lending"]),
        str(row["running"]),
        str(row["pending"]),
        _limits(row["user_limits"], row["default_time_ms"]),
    )


def _used_of(used: int, nominal: int | None, format: Any) -> str:
    """Return `used/nominal`, or `-` if both are empty."""
    return f"{format(used)}/{_figure_text(nominal, format)}" if used or nominal is not None else "-"


def _others_text(used: Record, nominal: Mapping[str, int]) -> str:
    """Return `rdma/hca 2/8` for each other resource that the queue has a quota of, or `-`."""
    texts = (
        f"{name} {_used_of(used.get(f'extended.{name}', 0), amount, partial(format_extended, name))}"
        for name, amount in sorted(nominal.items())
    )
    return ", ".join(texts) or "-"


def _figure_text(value: int | None, format: Any) -> str:
    return "-" if value is None else str(format(value))


def _gpus_text(amount: Record) -> str:
    """Return `8`, `8 h100:4`, `h100:4` or `-`."""
    types = [f"{kind}:{count}" for kind, count in sorted(amount["gpu_types"].items())]
    return " ".join([*([] if amount["gpus"] is None and types else [_figure_text(amount["gpus"], str)]), *types])


def _limits(limits: Record, default_time_ms: int | None) -> str:
    formats: dict[str, Callable[[Any], str]] = {
        "gpus": lambda gpus: count(gpus, "GPU"),
        "jobs": lambda jobs: count(jobs, "job"),
        "pending": lambda pending: f"{pending} pending",
        "time_ms": lambda ms: f"{format_duration(ms)} per job",
        "queue_time_ms": lambda ms: f"{format_duration(ms)} pending",
        "priority": lambda priority: f"priority up to {priority}",
        "node_ms": format_node_time,
        "node_time_used": lambda used: f"{format_node_time(used['limit_ms'])} in {format_period(used['per_ms'])}",
    }
    texts = [text(limits[name]) for name, text in formats.items() if limits[name] is not None]
    if default_time_ms is not None:
        texts.append(f"{format_duration(default_time_ms)} by default")
    return ", ".join(texts) or "-"
