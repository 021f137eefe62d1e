"""`ganger prune`: deletion of old ended jobs with all their files."""

from typing import Any, Final

import click

from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import DURATION, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, current_time_ms, format_age, say, shell_quote, show, show_rows
from ganger.cli.times import STATES
from ganger.client import Client, ClientError
from ganger.model.job import ENDED, GangState
from ganger.model.units import parse_duration_ms

Record = dict[str, Any]

PAGE: Final = 1000
MAX_NAMED: Final = 5
_COLUMNS: Final = (Column("JOB"), Column("STATE", state=True), Column("ENDED", right=True), Column("NOTE", cut=True))
_ALREADY_GONE: Final = ("no_such_job", "still_live")
"""Errors of a job that was deleted or retried meanwhile."""


@click.command("prune")
@click.option(
    "--older-than",
    type=DURATION,
    default="7d",
    help="Only jobs that ended longer ago, such as 7d, 12h, 0s (default: 7d).",
)
@click.option(
    "--state", "states", type=STATES, multiple=True, help="Only jobs in these states, such as failed,stopped or F,CA."
)
@click.option("--checkpoints", is_flag=True, help="Also jobs that have checkpoints in their copies of the code.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted without deleting it.")
@output_option
def prune_command(
    older_than: str, states: tuple[tuple[GangState, ...], ...], checkpoints: bool, dry_run: bool, output: str
) -> int:
    """Delete old ended jobs with their records, logs, run directories and copies of code.

    Live jobs are never deleted. A job with `code:` ran in its own copy of the code: files that it wrote there are
    deleted too. One that has checkpoints there is kept, unless --checkpoints is given.
    """
    selected = tuple(dict.fromkeys(state for option in states for state in option)) or ENDED
    live = [state for state in selected if state not in ENDED]
    if live:
        raise Problem(f"a {live[0]} job has not ended: only {', '.join(ENDED)} jobs can be pruned", "ganger stop JOB")
    now_ms = current_time_ms()
    client = connect()
    rows = _ended_before(client, now_ms - parse_duration_ms(older_than), selected)
    kept: list[str] = []
    if dry_run and not checkpoints:
        kept = [row["id"] for row in rows if client.job(row["id"])["checkpoints_in_copy"]]
    elif not dry_run:
        rows = [row for row in rows if _delete(client, row["id"], kept, checkpoints=checkpoints)]
    rows = [row for row in rows if row["id"] not in kept]
    if dry_run or output == "json":
        empty = f"no job ended longer than {older_than} ago"
        show_rows(_COLUMNS, rows, lambda row: _cells(row, now_ms), empty, output)
        _tell_kept(kept)
        return 0
    for row in rows:
        show(f"deleted {shell_quote(row['id'])}")
    say(f"{count(len(rows), 'job')} that ended longer than {older_than} ago")
    _tell_kept(kept)
    return 0


def _tell_kept(jobs: list[str]) -> None:
    if jobs:
        names = ", ".join(map(shell_quote, jobs[:MAX_NAMED])) + (", ..." if len(jobs) > MAX_NAMED else "")
        say(f"{count(len(jobs), 'job')} kept, for checkpoints in the copy of the code: {names}; next: --checkpoints")


def _ended_before(client: Client, before_ms: int, states: tuple[GangState, ...]) -> list[Record]:
    """Return the rows of jobs that ended before a time, oldest first."""
    rows: list[Record] = []
    cursor = None
    while True:
        page = client.jobs(limit=PAGE, cursor=cursor, state=",".join(states), until=before_ms)
        rows += [row for row in page["items"] if row["ended_ms"] is not None and row["ended_ms"] <= before_ms]
        cursor = page["next"]
        if cursor is None:
            return rows[::-1]


def _delete(client: Client, id: str, kept: list[str], *, checkpoints: bool) -> bool:
    """Delete a job and return True; False if it is already gone, or goes to those that are `kept`."""
    try:
        client.delete(id, checkpoints=checkpoints)
    except ClientError as error:
        if error.code == "has_checkpoints":
            kept.append(id)
        elif error.code not in _ALREADY_GONE:
            raise
        return False
    return True


def _cells(row: Record, now_ms: int) -> tuple[str, ...]:
    return row["id"], row["state"], format_age(row["ended_ms"], now_ms), row["sentence"]
