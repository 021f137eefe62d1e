"""`ganger prune`: ended jobs that nobody needs any more, with all their files."""

from typing import Any, Final

import click

from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import DURATION, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import Column, ago, now_ms, quoted, say, show, show_json_array, show_table
from ganger.cli.times import STATES
from ganger.client import Client, ClientError
from ganger.model.job import ENDED, GangState
from ganger.model.units import parse_duration_ms

Record = dict[str, Any]

PAGE: Final = 1000
_COLUMNS: Final = (Column("JOB"), Column("STATE", state=True), Column("ENDED", right=True), Column("NOTE"))
_GONE: Final = ("no_such_job", "still_live")
"""Somebody else was faster."""


@click.command("prune")
@click.option("--older-than", type=DURATION, default="7d", help="Only what ended longer ago: 7d, 12h, 0s; without: 7d.")
@click.option("--state", "states", type=STATES, multiple=True, help="Only in these states: failed,stopped or F,CA.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@output_option
def prune_command(older_than: str, states: tuple[tuple[GangState, ...], ...], dry_run: bool, output: str) -> int:
    """Delete ended jobs: their records, logs and copies of code.

    What lives is never touched. With `code:` a job ran in a copy of its own: what it left there goes too.
    """
    wanted = tuple(dict.fromkeys(state for each in states for state in each)) or ENDED
    live = [state for state in wanted if state not in ENDED]
    if live:
        raise Problem(
            f"a job that is {live[0]} has not ended: only {', '.join(ENDED)} can be pruned", "ganger stop JOB"
        )
    now = now_ms()
    client = connected()
    rows = _ended_before(client, now - parse_duration_ms(older_than), wanted)
    if not dry_run:
        rows = [row for row in rows if _delete(client, row["id"])]
    if output == "json":
        show_json_array(rows)
        return 0
    if dry_run:
        show_table(_COLUMNS, [_cells(row, now) for row in rows], f"nothing ended longer than {older_than} ago")
        return 0
    for row in rows:
        show(f"deleted {quoted(row['id'])}")
    say(f"{len(rows)} job{'' if len(rows) == 1 else 's'} that ended longer than {older_than} ago")
    return 0


def _ended_before(client: Client, before_ms: int, states: tuple[GangState, ...]) -> list[Record]:
    """Rows of the listing, oldest first."""
    found: list[Record] = []
    cursor = None
    while True:
        page = client.jobs(limit=PAGE, cursor=cursor, state=",".join(states), until=before_ms)
        found += [row for row in page["items"] if row["ended_ms"] is not None and row["ended_ms"] <= before_ms]
        cursor = page["next"]
        if cursor is None:
            return found[::-1]


def _delete(client: Client, id: str) -> bool:
    """Whether it was there to be deleted."""
    try:
        client.delete(id)
    except ClientError as error:
        if error.code not in _GONE:
            raise
        return False
    return True


def _cells(row: Record, now: int) -> tuple[str, ...]:
    return row["id"], row["state"], ago(row["ended_ms"], now), row["sentence"]
