"""`ganger ls`, `get`, `stop` and `delete`."""

from collections.abc import Iterator
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.bulk import for_each
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import (
    ended_jobs_argument,
    job_argument,
    live_jobs_argument,
    output_option,
)
from ganger.cli.output.error_output import Problem
from ganger.cli.output.job_detail_text import job_lines
from ganger.cli.output.job_usage import show_usage
from ganger.cli.output.metric_text import main_metric_text
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    format_age,
    format_clock,
    say,
    shell_quote,
    show,
    show_json,
    show_prose,
    show_rows,
)
from ganger.cli.times import STATES, time_range_options
from ganger.client import Client
from ganger.model.job import GangState
from ganger.model.units import format_duration

Record = dict[str, Any]

PAGE: Final = 1000
"""Jobs fetched per request when all are listed."""
SHOWN: Final = 100
"""Elements of an array that are listed without --all."""

_USER: Final = 4
"""Index of the column of the user, which a listing of one user's server does not have."""
_COLUMNS: Final = (
    Column("JOB"),
    Column("STATE", state=True),
    Column("SIZE"),
    Column("QUEUE"),
    Column("USER"),
    Column("SUBMITTED", right=True),
    Column("RAN", right=True),
    Column("NOTE", cut=True),
)
_METRIC: Final = Column("METRIC")
"""The column that -o wide adds before the last one."""


@click.command("ls")
@click.argument("array", metavar="[ARRAY]", required=False, shell_complete=completions.jobs)
@click.option("--all", "all_", is_flag=True, help="All jobs, not only live and recently ended ones.")
@click.option(
    "--state",
    "states",
    type=STATES,
    multiple=True,
    help="Only jobs in these states, such as running,failed or R,F.",
)
@click.option("-n", "--name", help="Only jobs of this name.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--queue", shell_complete=completions.queues, help="Only jobs of this queue.")
@click.option(
    "--label", "labels", multiple=True, metavar="K=V", help="Only jobs with this label; K!=V: only jobs without it."
)
@time_range_options("jobs that were live")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    help="Output format: table, wide with the last value of a metric, or JSON only.",
)
def ls_command(
    *,
    array: str | None,
    all_: bool,
    states: tuple[tuple[GangState, ...], ...],
    labels: tuple[str, ...],
    output: str,
    **filters: Any,
) -> None:
    """List pending, running and recently ended jobs, or the elements of an array.

    Jobs are sorted newest first, elements by index. NOTE is the pending reason, the nodes, or how the job ended. A
    filter selects from all jobs, however old. With -o wide METRIC is the last loss that the job reported, or else its
    first metric; `ganger metrics JOB` has all. An array is listed as one job: `ganger ls ARRAY` lists its elements.
    """
    client = connect()
    query = filters | {
        "state": ",".join(dict.fromkeys(state for option in states for state in option)) or None,
        "labels": ",".join(labels) or None,
    }
    filters_given = sum(value is not None for value in query.values())
    if array is not None:
        rows = array_elements(client, array, query, everything=all_)
    else:
        rows = every_job(client, query) if all_ or filters_given else iter(client.jobs()["items"])
    now_ms = current_time_ms()
    if query["state"] and filters_given == 1:
        empty = f"no {query['state'].replace(',', ' or ')} jobs"
    else:
        empty = "no matching jobs" if filters_given else "no jobs yet: ganger run -- python train.py"
    shown = [index for index in range(len(_COLUMNS)) if index != _USER or client.context is not None]
    columns = [_COLUMNS[index] for index in shown]
    if output == "wide":
        columns.insert(-1, _METRIC)

    def cells(row: Record) -> tuple[str, ...]:
        all_cells = _cells(row, now_ms)
        kept = [all_cells[index] for index in shown]
        if output == "wide":
            kept.insert(-1, main_metric_text(row["metrics"]))
        return tuple(kept)

    show_rows(columns, rows, cells, empty, output)


@click.command("get")
@job_argument
@click.option("--usage", is_flag=True, help="How busy the devices of each rank are, and were in the last hour.")
@output_option
def get_command(job: str, usage: bool, output: str) -> None:
    """Show a job in detail.

    Shows its spec, attempts, time breakdown, newest checkpoint and the next command to type.
    """
    client = connect()
    if usage:
        show_usage(client, job, output)
        return
    detail = client.job(job)
    if output == "json":
        show_json(detail)
        return
    for line in job_lines(detail, current_time_ms()):
        show_prose(line)


@click.command("stop")
@live_jobs_argument
@click.option("--now", is_flag=True, help="Without a grace period, or without the rest of one that has begun.")
@output_option
def stop_command(jobs: tuple[str, ...], now: bool, output: str) -> int:
    """Stop jobs, after a grace period in which each may save a checkpoint.

    A job ends as soon as it has saved. Returns as soon as the stop is requested; `ganger wait JOB` waits until the job
    has ended.
    """
    client = connect()
    stopping: dict[str, int | None] = {}
    """Jobs that were being stopped before, with the end of their grace period."""

    def stop(job: str) -> Record:
        before = client.job(job)
        if before["row"]["state"] != GangState.STOPPING or now:
            return client.stop(before["row"]["id"], now=now)
        stopping[before["row"]["id"]] = before["notice_until_ms"]
        return before

    def report(row: Record) -> None:
        name = shell_quote(row["id"])
        if row["id"] not in stopping:
            show(f"stopping {name}{' now' if now else ''}")
            return
        until_ms, now_ms = stopping[row["id"]], current_time_ms()
        until = f", until {format_clock(until_ms, now_ms)} at the latest" if until_ms and until_ms > now_ms else ""
        show(f"{row['id']} is stopping already{until}; to end it at once: ganger stop {name} --now")

    return for_each(jobs, stop, report, output)


@click.command("delete")
@ended_jobs_argument
@click.option("--checkpoints", is_flag=True, help="Also jobs that have checkpoints in their copies of the code.")
@output_option
def delete_command(jobs: tuple[str, ...], checkpoints: bool, output: str) -> int:
    """Delete ended jobs, their logs, their run directories and their copies of code.

    A live job is refused: stop it first. So is one that ran in its own copy of the code and saved checkpoints there,
    without --checkpoints: they are deleted with the copy. Checkpoints elsewhere stay.
    """
    client = connect()

    def delete(job: str) -> Record:
        row: Record = client.job(job)["row"]
        client.delete(row["id"], checkpoints=checkpoints)
        return {"row": row}

    return for_each(jobs, delete, lambda row: show(f"deleted {shell_quote(row['id'])}"), output)


def array_elements(client: Client, array: str, query: Record, *, everything: bool) -> Iterator[Record]:
    """Yield the elements of an array: the first page, or all."""
    unsupported = [name for name, value in query.items() if value is not None and name != "state"]
    if unsupported:
        flag = f"--{unsupported[0].removesuffix('s')}"
        raise Problem(f"{flag} selects jobs; elements of an array only have --state and --all", next="ganger ls")
    cursor = None
    while True:
        page = client.elements(array, limit=PAGE if everything else SHOWN, cursor=cursor, state=query["state"])
        yield from page["items"]
        cursor = page["next"]
        if cursor is not None and not everything:
            say(f"more elements: ganger ls {shell_quote(array)} --all")
        if cursor is None or not everything:
            return


def every_job(client: Client, query: Record) -> Iterator[Record]:
    """Yield every job that matches, fetched in pages."""
    cursor = None
    while True:
        page = client.jobs(all=True, limit=PAGE, cursor=cursor, **query)
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return


def _cells(row: Record, now_ms: int) -> tuple[str, ...]:
    started_ms, ended_ms = row["started_ms"], row["ended_ms"]
    # The time since the first start, which for a suspended job goes on without it.
    is_known = started_ms is not None and row["state"] != "suspended"
    ran = format_duration((ended_ms or now_ms) - started_ms) if is_known else "-"
    note = row["sentence"] or (f"on {', '.join(row['nodes'])}" if row["nodes"] else "")
    age = format_age(row["submitted_ms"], now_ms)
    return row["id"], row["state"], row["shape"], row["queue"], row["user"], age, ran, note
