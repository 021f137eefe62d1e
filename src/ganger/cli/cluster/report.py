"""`ganger report`: how the time of all jobs and of their allocated GPUs was spent."""

from collections.abc import Iterator
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, current_time_ms, format_clock, show, show_json, show_table
from ganger.cli.times import TIME
from ganger.model.units import format_duration
from ganger.model.views.service_views import PARTS

Record = dict[str, Any]

_COUNTED: Final = ("failures", "restarts")
_COSTS: Final = ("detect", "recovery", "lost", "unobserved")


@click.command("report")
@click.option(
    "--since",
    type=TIME,
    help="Only jobs that were live at or after this time, such as 7d (ago), 2026-11-21, 12:00, now-2days.",
)
@click.option("--user", help="Only jobs of this user.")
@click.option("--queue", shell_complete=completions.queues, help="Only jobs of this queue.")
@output_option
def report_command(since: int | None, user: str | None, queue: str | None, output: str) -> None:
    """Report how the time of all jobs was spent and what failures cost.

    Includes live and ended jobs, each from its submission on, and counts elements of arrays as jobs; deleted jobs are
    not included. The parts add up to the total. GPU time is the time of allocated GPUs, without pending time. Goodput
    is the share of it that was spent on steps that were not lost.
    """
    report = connect().report(since=since, user=user, queue=queue)
    if output == "json":
        show_json(report)
        return
    show(_heading(report))
    if not report["jobs"]:
        return
    has_gpus = report["gpu_time"]["held_ms"] > 0
    columns = [Column("PART"), *_number_columns("TIME", "SHARE", *(("GPU TIME", "SHARE") if has_gpus else ()))]
    show()
    show_table(columns, list(_part_rows(report, has_gpus=has_gpus)), "")
    if report["goodput"] is not None:
        show(f"\ngoodput: {report['goodput']:.1%} of the {'GPU' if has_gpus else 'node'} time allocated")
    if report["time"]["losses"]:
        show()
        columns = [Column("CAUSE"), *_number_columns(*_COUNTED, *_COSTS, *(("GPU TIME",) if has_gpus else ()))]
        show_table(columns, list(_cause_rows(report, has_gpus=has_gpus)), "")


def _number_columns(*titles: str) -> list[Column]:
    return [Column(title.upper(), right=True) for title in titles]


def _heading(report: Record) -> str:
    """Return `12 jobs since 09:50:38: 1 running, 9 succeeded, 2 failed`."""
    user = f" of {report['user']}" if report["user"] else ""
    queue = f" in queue {report['queue']}" if report["queue"] else ""
    since = f" since {format_clock(report['since_ms'], current_time_ms())}" if report["since_ms"] is not None else ""
    states = ", ".join(f"{number} {state}" for state, number in report["jobs"].items())
    return count(sum(report["jobs"].values()), "job") + user + queue + since + (f": {states}" if states else "")


def _part_rows(report: Record, *, has_gpus: bool) -> Iterator[list[str]]:
    for part in (*PARTS, "total"):
        row = [part]
        for measure in ("time", "gpu_time") if has_gpus else ("time",):
            amount, whole = report[measure][f"{part}_ms"], report[measure]["total_ms"]
            row += [format_duration(amount), f"{amount / whole:.1%}" if whole else "-"]
        yield row


def _cause_rows(report: Record, *, has_gpus: bool) -> Iterator[list[str]]:
    names = (*_COUNTED, *(f"{part}_ms" for part in _COSTS))
    gpu_ms_by_cause = {
        loss["cause"]: sum(loss[f"{part}_ms"] for part in _COSTS) for loss in report["gpu_time"]["losses"]
    }
    rows = [(loss["cause"], *(loss[name] for name in names)) for loss in report["time"]["losses"]]
    rows.sort(key=lambda row: -sum(row[3:]))
    for cause, *amounts in (*rows, ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))):
        gpu_ms = sum(gpu_ms_by_cause.values()) if cause == "all" else gpu_ms_by_cause.get(cause, 0)
        costs = [format_duration(amount) for amount in amounts[2:]]
        yield [cause, *map(str, amounts[:2]), *costs, *([format_duration(gpu_ms)] if has_gpus else [])]
