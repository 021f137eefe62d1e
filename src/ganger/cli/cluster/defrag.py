"""`ganger defrag`: move running jobs so that a larger job fits."""

from collections.abc import Iterator
from typing import Any

import click

from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import POSITIVE_DURATION, output_option
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import shell_quote, show, show_json
from ganger.model.units import format_duration, parse_duration_ms

Record = dict[str, Any]


@click.command("defrag")
@click.argument("action", type=click.Choice(["apply"]), required=False)
@click.option("--dry-run", is_flag=True, help="Show the moves and move nothing (default).")
@click.option("--level", help="Topology level in one domain of which a larger job is to fit (default: the lowest).")
@click.option("--budget", type=POSITIVE_DURATION, help="GPU time that the moves may waste, such as 2h (default: any).")
@output_option
def defrag_command(action: str | None, dry_run: bool, level: str | None, budget: str | None, output: str) -> None:
    """Show which running jobs could be moved so that a larger job fits, and move them.

    That is the first pending job that free nodes are too scattered for, or else the largest job of whole nodes in one
    domain of the level. Only jobs with `movable: true` are moved, all of them at once, each to free nodes. They get the
    notice of their checkpoint section, lose no retry and do not queue again. `ganger defrag apply` moves them.
    """
    if action and dry_run:
        raise click.UsageError("either `ganger defrag --dry-run` or `ganger defrag apply`")
    budget_ms = parse_duration_ms(budget) if budget else None
    plan = connect().defrag(level, budget_ms, applies=action is not None)
    if output == "json":
        show_json(plan)
        return
    for line in plan_lines(plan):
        show(line)
    if plan["moves"] and not action:
        show("nothing has been moved; to move them: ganger defrag apply")


def plan_lines(plan: Record) -> Iterator[str]:
    """Yield a plan as sentences: what fits before and after, what moves where, and what that wastes."""
    place = f"one {plan['level']}" if plan["level"] else "the cluster"
    for row, after in zip(plan["largest"], plan["nodes_after"], strict=True):
        change = f"{row['nodes']} -> {after}" if after != row["nodes"] else f"{after}"
        kind = row["gpu_type"] or "GPUs"
        yield f"largest gang that fits in {place}: {change} nodes with {row['gpus']} {kind}"
    if not plan["moves"]:
        yield "no job could be moved so that a larger one fits"
        return
    if plan["job"]:
        yield f"makes room for {shell_quote(plan['job'])}"
    for move in plan["moves"]:
        notice = f"{format_duration(move['notice_ms'])} notice" if move["notice_ms"] else "no notice"
        nodes = f"from {', '.join(move['leaves'])} to {', '.join(move['gets'])}"
        yield f"moves {shell_quote(move['job'])} {nodes} ({format_duration(move['unsaved_ms'])} unsaved, {notice})"
    cheapest = "; no other moves waste less" if plan["is_cheapest"] else ""
    yield f"{count(len(plan['moves']), 'move')}, at most {format_duration(plan['gpu_ms'])} of GPU time wasted{cheapest}"
