"""`ganger incidents`: failures of jobs and faults of nodes, joined where one explains the other."""

from typing import Any

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import POSITIVE_DURATION, output_option
from ganger.cli.output.print_output import Column, current_time_ms, format_time, show, show_rows
from ganger.model.units import HOUR_MS, parse_duration_ms

Record = dict[str, Any]


@click.command("incidents")
@click.argument("job", required=False, shell_complete=completions.jobs)
@click.option("--for", "span", type=POSITIVE_DURATION, default="7d", show_default=True, help="Time up to now.")
@output_option
def incidents_command(job: str | None, span: str, output: str) -> None:
    """Show failures of jobs and faults of nodes, joined, with what follows.

    An incident is one failure with both of its halves: the rank that failed first, and what was found on its node at
    that time. Of a job, each is shown with its evidence, what was done, and what to do.
    """
    rows = connect().incidents(span_ms=parse_duration_ms(span), job=job)
    now_ms = current_time_ms()
    columns = [Column("ID"), Column("TIME"), Column("JOB"), Column("NODE"), Column("CAUSE"), Column("SENTENCE")]

    def cells(row: Record) -> tuple[str, ...]:
        name = f"{row['job']} attempt {row['generation']}" if row["job"] else ", ".join(row["jobs"]) or "-"
        nodes = ", ".join(row["nodes"][:2]) + (f" and {len(row['nodes']) - 2} more" if len(row["nodes"]) > 2 else "")
        cause = row["failure_class"] or "unknown"
        return row["id"], format_time(row["at_ms"], now_ms), name, nodes or "-", cause, row["sentence"]

    show_rows(columns, rows, cells, "there was no incident", output)
    for row in rows if job is not None and output == "table" else ():
        _show_details(row)


def _show_details(row: Record) -> None:
    rank = "" if row["rank"] is None else f", rank {row['rank']} first"
    show(f"\n{row['id']}: {row['title'] or row['failure_class'] or 'unknown'} ({row['confidence']} confidence{rank})")
    for line in row["evidence"]:
        show(f"  evidence: {line}")
    if row["lost_gpu_ms"]:
        show(f"  lost: {row['lost_gpu_ms'] / HOUR_MS:.2f} GPU-hours")
    for sentence in row["done"]:
        show(f"  done: {sentence}")
    if row["remedy"]:
        show(f"  to do: {row['remedy']}")
