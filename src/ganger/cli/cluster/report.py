"""`ganger report`: where the time of all jobs went, and that of the GPUs they held."""

from collections.abc import Iterator
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import output_option
from ganger.cli.output.messages import count
from ganger.cli.output.tables import Column, clock, now_ms, show, show_json, show_table
from ganger.cli.times import TIME
from ganger.model.units import format_duration
from ganger.model.views.service_views import PARTS

Record = dict[str, Any]

_COUNTED: Final = ("failures", "restarts")
_COSTS: Final = ("detect", "recovery", "lost")


@click.command("report")
@click.option("--since", type=TIME, help="Not those that ended before: 7d (ago), 2026-11-21, 12:00, now-2days.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--queue", shell_complete=completions.queues, help="Only jobs of this queue.")
@output_option
def report_command(since: int | None, user: str | None, queue: str | None, output: str) -> None:
    """Show where the time of all jobs went, and what failures cost.

    Counts jobs that live and jobs that have ended, each with its whole life, and elements of arrays as jobs. Deleted
    ones are not in it. The parts add up to the whole. GPU time is that of GPUs while a job held them: no waiting is in
    it. Goodput is the share of it in which steps were done that were kept.
    """
    told = connected().report(since=since, user=user, queue=queue)
    if output == "json":
        show_json(told)
        return
    show(_heading(told))
    if not told["jobs"]:
        return
    has_gpus = told["gpu_time"]["held_ms"] > 0
    columns = [Column("PART"), *_numbers("TIME", "SHARE", *(("GPU TIME", "SHARE") if has_gpus else ()))]
    show()
    show_table(columns, list(_part_rows(told, has_gpus=has_gpus)), "")
    if told["goodput"] is not None:
        show(f"\ngoodput: {told['goodput']:.1%} of the {'GPU time' if has_gpus else 'time that nodes were'} held")
    if told["time"]["losses"]:
        show()
        columns = [Column("CAUSE"), *_numbers(*_COUNTED, *_COSTS, *(("GPU TIME",) if has_gpus else ()))]
        show_table(columns, list(_cause_rows(told, has_gpus=has_gpus)), "")


def _numbers(*titles: str) -> list[Column]:
    return [Column(title.upper(), right=True) for title in titles]


def _heading(told: Record) -> str:
    """`12 jobs since 09:50:38: 1 running, 9 succeeded, 2 failed`."""
    of = f" of {told['user']}" if told["user"] else ""
    there = f" in queue {told['queue']}" if told["queue"] else ""
    since = f" since {clock(told['since_ms'], now_ms())}" if told["since_ms"] is not None else ""
    states = ", ".join(f"{number} {state}" for state, number in told["jobs"].items())
    return count(sum(told["jobs"].values()), "job") + of + there + since + (f": {states}" if states else "")


def _part_rows(told: Record, *, has_gpus: bool) -> Iterator[list[str]]:
    for part in (*PARTS, "total"):
        row = [part]
        for which in ("time", "gpu_time") if has_gpus else ("time",):
            amount, whole = told[which][f"{part}_ms"], told[which]["total_ms"]
            row += [format_duration(amount), f"{amount / whole:.1%}" if whole else "-"]
        yield row


def _cause_rows(told: Record, *, has_gpus: bool) -> Iterator[list[str]]:
    names = (*_COUNTED, *(f"{part}_ms" for part in _COSTS))
    of_gpus = {loss["cause"]: sum(loss[f"{part}_ms"] for part in _COSTS) for loss in told["gpu_time"]["losses"]}
    rows = [(loss["cause"], *(loss[name] for name in names)) for loss in told["time"]["losses"]]
    rows.sort(key=lambda row: -sum(row[3:]))
    for cause, *amounts in (*rows, ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))):
        gpu_ms = sum(of_gpus.values()) if cause == "all" else of_gpus.get(cause, 0)
        costs = [format_duration(amount) for amount in amounts[2:]]
        yield [cause, *map(str, amounts[:2]), *costs, *([format_duration(gpu_ms)] if has_gpus else [])]
