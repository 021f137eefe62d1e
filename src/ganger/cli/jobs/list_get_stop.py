"""`ganger ls`, `get`, `stop` and `delete`: jobs in a list, one in full, and their end."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import click

from ganger.cli import completions
from ganger.cli.bulk import each
from ganger.cli.jobs.run_submit_wait import connected, program
from ganger.cli.options import ended_jobs_argument, job_argument, live_jobs_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.job_detail_text import job_lines
from ganger.cli.output.tables import Column, ago, now_ms, quoted, say, show, show_json, show_json_array, show_table
from ganger.cli.times import STATES, span_options
from ganger.client import Client
from ganger.model.job import GangState
from ganger.model.units import format_duration

Record = dict[str, Any]
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PAGE: Final = 1000
"""Jobs asked for at a time when all are listed."""
SHOWN: Final = 100
"""Elements of an array that are listed without --all."""

_COLUMNS: Final = (
    Column("JOB"),
    Column("STATE", state=True),
    Column("SIZE"),
    Column("QUEUE"),
    Column("SUBMITTED", right=True),
    Column("RAN", right=True),
    Column("NOTE"),
)


class Elements(Protocol):
    """Who tells of the elements of arrays."""

    def elements(self, id: str, /, *, limit: int, cursor: str | None, state: str | None) -> Record:
        """A page of them."""


_LISTING: Final = (
    click.argument("array", metavar="[ARRAY]", required=False, shell_complete=completions.jobs),
    click.option(
        "--all", "all_", is_flag=True, help="Every job there ever was, not only live ones and the last ended."
    ),
    click.option("--state", "states", type=STATES, multiple=True, help="Only in these states: running,failed or R,F."),
    click.option("--user", help="Only jobs of this user."),
    click.option("--queue", shell_complete=completions.queues, help="Only jobs of this queue."),
    click.option(
        "--label", "labels", multiple=True, metavar="K=V", help="Only jobs with this label; K!=V: without it."
    ),
    span_options("jobs that were there"),
    output_option,
)


def listing_options(command: Decorated) -> Decorated:
    """What says which jobs are listed."""
    for option in reversed(_LISTING):
        command = option(command)
    return command


@click.command("ls")
@listing_options
def ls_command(
    *,
    array: str | None,
    all_: bool,
    states: tuple[tuple[GangState, ...], ...],
    labels: tuple[str, ...],
    output: str,
    **filters: Any,
) -> None:
    """List jobs: what is live, and what ended last; or the elements of an array.

    Newest first; elements by their index. The note says why a job waits, where it runs or how it ended. With a filter:
    all that fit, however old. An array is one job here: `ganger ls ARRAY` shows what it is made of.
    """
    client = connected()
    wanted = wanted_of(states, labels, filters)
    filtered = any(value is not None for value in wanted.values())
    if array is not None:
        rows = elements_of(client, array, wanted, everything=all_)
    else:
        rows = every_job(client, wanted) if all_ or filtered else iter(client.jobs()["items"])
    if output == "json":
        show_json_array(rows)
        return
    now = now_ms()
    if wanted["state"] and len([value for value in wanted.values() if value is not None]) == 1:
        what = f"no job is {wanted['state'].replace(',', ' or ')}"
    else:
        what = "no job fits" if filtered else "no jobs yet: ganger run -- python train.py"
    show_table(_COLUMNS, [_cells(row, now) for row in rows], what)


@click.command("get")
@job_argument
@output_option
def get_command(job: str, output: str) -> None:
    """Show everything about a job.

    Its spec, its attempts, where its time went, its newest checkpoint and what to type next.
    """
    found = connected().job(job)
    if output == "json":
        show_json(found)
        return
    for line in job_lines(found, now_ms()):
        show(line)


@click.command("stop")
@live_jobs_argument
@output_option
def stop_command(jobs: tuple[str, ...], output: str) -> int:
    """Stop jobs: each may save its work first.

    Returns as soon as the stop is decided; `ganger wait JOB` waits until it is over.
    """
    return each(jobs, connected().stop, lambda row: show(f"stopping {quoted(row['id'])}"), output)


@click.command("delete")
@ended_jobs_argument
@output_option
def delete_command(jobs: tuple[str, ...], output: str) -> int:
    """Take ended jobs, with their logs, out of the listings.

    A job that still lives is refused: stop it first.
    """
    client = connected()

    def delete(job: str) -> Record:
        row: Record = client.job(job)["row"]
        client.delete(row["id"])
        return {"row": row}

    return each(jobs, delete, lambda row: show(f"deleted {quoted(row['id'])}"), output)


def wanted_of(states: tuple[tuple[GangState, ...], ...], labels: tuple[str, ...], filters: Record) -> Record:
    """What is asked for of a listing, from its options."""
    return filters | {
        "state": ",".join(dict.fromkeys(state for each in states for state in each)) or None,
        "labels": ",".join(labels) or None,
    }


def elements_of(client: Elements, array: str, wanted: Record, *, everything: bool) -> Iterator[Record]:
    """The elements of an array: the first page, or all that are wanted."""
    other = [name for name, value in wanted.items() if value is not None and name != "state"]
    if other:
        flag = f"--{other[0].removesuffix('s')}"
        raise Problem(f"{flag} goes with a list of jobs: of an array's elements, --state and --all", next="ganger ls")
    cursor = None
    while True:
        page = client.elements(array, limit=PAGE if everything else SHOWN, cursor=cursor, state=wanted["state"])
        yield from page["items"]
        cursor = page["next"]
        if cursor is not None and not everything:
            say(f"and more: {program()} ls {quoted(array)} --all")
        if cursor is None or not everything:
            return


def every_job(client: Client, wanted: Record) -> Iterator[Record]:
    """Every job that is wanted, a page at a time."""
    cursor = None
    while True:
        page = client.jobs(all=True, limit=PAGE, cursor=cursor, **wanted)
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return


def _cells(row: Record, now: int) -> tuple[str, ...]:
    started_ms, ended_ms = row["started_ms"], row["ended_ms"]
    ran = format_duration((ended_ms or now) - started_ms) if started_ms is not None else "-"
    note = row["sentence"] or (f"on {', '.join(row['nodes'])}" if row["nodes"] else "")
    return row["id"], row["state"], row["shape"], row["queue"], ago(row["submitted_ms"], now), ran, note
