"""`ganger fit`: the largest job that could start now, or whether one job could."""

from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.jobs.submit_request import build_request
from ganger.cli.options import CPUS, GPUS, POSITIVE_DURATION, SIZE, output_option
from ganger.cli.output.messages import period_text, start_range_text
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    shell_quote,
    show,
    show_json,
    show_table,
)
from ganger.cli.output.top_view import fragmentation_lines
from ganger.model.units import (
    HOUR_MS,
    format_cpu,
    format_node_time,
    format_period,
    parse_bytes,
    parse_cpu_milli,
    parse_duration_ms,
)

Record = dict[str, Any]

_NONE: Final = "-"
_JOB_FLAGS: Final = ("queue", "gpu", "cpu", "memory", "time")


@click.command("fit")
@click.option(
    "-f", "--file", "path", metavar="FILE", help="Check whether this job could start now; flags override its values."
)
@click.option("--queue", shell_complete=completions.queues, help="Queue of the job.")
@click.option("--gpu", type=GPUS, help="GPUs per node, such as 8 or H100:8 (default: every number).")
@click.option("--cpu", type=CPUS, help="CPUs per node (default: one per GPU).")
@click.option("--memory", type=SIZE, help="Memory per node, such as 64Gi.")
@click.option("--time", type=POSITIVE_DURATION, help="Time limit of the job: a short job may be backfilled.")
@output_option
def fit_command(path: str | None, output: str, **flags: str | None) -> None:
    """Show the largest job that could start now, for each GPU type and topology level.

    The scheduler itself has tried every size, with your limits and those of your queue. With -f: show whether that job
    could start now and where, or else the pending reason and which changes would help.
    """
    if path is not None:
        _show_job(path, flags, output)
        return
    fit = connect().fit(_query(flags))
    if output == "json":
        show_json(fit)
    else:
        _show_sizes(fit)


def _query(flags: dict[str, str | None]) -> dict[str, str | int | None]:
    kind, _, count = (flags["gpu"] or "").rpartition(":")
    return {
        "queue": flags["queue"],
        "gpu_type": kind.partition(",")[0] or None,
        "gpus": int(count) if count else None,
        "cpu_milli": parse_cpu_milli(flags["cpu"]) if flags["cpu"] else None,
        "memory_bytes": parse_bytes(flags["memory"]) if flags["memory"] else None,
        "time_ms": parse_duration_ms(flags["time"]) if flags["time"] else None,
    }


def _show_sizes(fit: Record) -> None:
    """Show a row for each GPU type and count, and a column for each level with the largest number of nodes."""
    levels = ["", *fit["levels"]]
    forms: dict[tuple[str, int, int], dict[str, Record]] = {}
    for size in fit["items"]:
        forms.setdefault((size["gpu_type"], size["gpus"], size["cpu_milli"]), {})[size["level"]] = size
    columns = (
        *(Column("PER NODE"), Column("NODES", right=True), Column("GPUS", right=True)),
        *(Column(f"IN ONE {level.upper()}", right=True) for level in levels[1:]),
        Column("DOMAIN OR REASON"),
    )
    rows = []
    for (kind, gpus, cpu_milli), sizes in forms.items():
        largest = sizes[""]
        innermost = sizes[levels[-1]]
        share = f"{gpus} {kind or 'gpu'}" if gpus else f"{format_cpu(cpu_milli)} cpu"
        total = str(largest["nodes"] * gpus) if gpus else _NONE
        counts = [str(sizes[level]["nodes"]) for level in levels[1:]]
        reason = largest["reason"]["sentence"] if largest["reason"] else _NONE
        rows.append((share, str(largest["nodes"]), total, *counts, innermost["domain"] or reason))
    show_table(columns, rows, "no nodes: ganger doctor")
    available_gpus = fit["available_gpus"]
    quota = "has no GPU limit" if available_gpus is None else f"may use {count(available_gpus, 'more GPU')}"
    show(f"\nqueue {fit['queue']} {quota}; user {fit['user']}")
    for row in fit["node_time"]:
        left_ms = max(0, row["limit_ms"] - row["used_ms"] - row["running_ms"])
        limit = f"{format_node_time(row['limit_ms'])} in {format_period(row['per_ms'])} in queue {row['queue']}"
        used, running, left = (f"{ms / HOUR_MS:g}" for ms in (row["used_ms"], row["running_ms"], left_ms))
        show(f"{fit['user']} may use {limit}: {used} used, {running} for running jobs, {left} left")
    for line in fragmentation_lines(fit["fragmentation"]):
        show(line)
    best = max(fit["items"], key=lambda size: (size["nodes"] > 0, size["nodes"] * size["gpus"]), default=None)
    if best is not None and best["nodes"]:
        show(f"largest: ganger run {best['flags']} -- ...")
    elif best is not None and best["reason"]:
        show(f"nothing could start now: {best['reason']['sentence']}")


def _show_job(path: str, flags: dict[str, str | None], output: str) -> None:
    plan = connect().dry_run(build_request(_submit_parameters(path, flags), ()))
    if output == "json":
        show_json(plan)
        return
    name = plan["spec"]["name"]
    if plan["starts_now"]:
        show(f"{name} fits: {plan['shape']} would start now on {', '.join(plan['nodes'])}")
        return
    show(f"{name} does not fit now: {plan['reason']['sentence'] if plan['reason'] else 'it would be pending'}")
    if plan["forecast"] is not None:
        show(f"  expected start: {start_range_text(plan['forecast'], current_time_ms())}")
    elif text := period_text(plan["reason"], current_time_ms()):
        show(f"  {text}")
    for change in plan["changes"]:
        show(f"  try: {change['flags']}   {change['description']}")
    if plan["smallest_tried"]:
        show(f"  {plan['smallest_tried']}")
    show(f"  submit it to the queue: ganger submit -f {shell_quote(path)}")


def _submit_parameters(path: str, flags: dict[str, str | None]) -> dict[str, Any]:
    """Return the parameters of `ganger submit`, unset but for the file and the flags."""
    from ganger.cli.jobs.run_submit_wait import submit_command

    unset = {
        option.name: () if option.multiple else None for option in submit_command.params if hasattr(option, "multiple")
    }
    return unset | {"path": path} | {name: flags[name] for name in _JOB_FLAGS}
