"""`ganger policy`: the scheduling policy document, its versions, and the effect of changes."""

import sys
from typing import Any, Final

import click

from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import output_option, read_text_file
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    format_time,
    say,
    show,
    show_json,
    show_rows,
    show_table,
)
from ganger.model.units import HOUR_MS

Record = dict[str, Any]

SHOWN: Final = 10
"""Jobs of each list that are named before the rest is counted."""
_CHANGES: Final = (Column("KEY"), Column("NOW", folds=True), Column("THEN", folds=True))
_VERSIONS: Final = (
    Column("VERSION", right=True),
    Column("APPLIED"),
    Column("USER"),
    Column("NOTE"),
    Column("CHANGES", folds=True),
)
_POSITIONS: Final = (Column("JOB"), Column("QUEUE"), Column("POSITION NOW", right=True), Column("THEN", right=True))
_IDLE: Final = (
    Column("JOB"),
    Column("USER"),
    Column("QUEUE"),
    Column("IDLE AT"),
    Column("GPU-HOURS", right=True),
    Column("LATER"),
)

file_argument = click.argument("file", type=click.Path(), required=False)
version_option = click.option(
    "--version", "version", type=click.IntRange(0), metavar="N", help="Use an earlier version instead of a file."
)


@click.group("policy", invoke_without_command=True)
@click.option("--version", "version", type=click.IntRange(0), metavar="N", help="Show an earlier version.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Output format."
)
@click.pass_context
def policy_command(ctx: click.Context, version: int | None, output: str) -> None:
    """Show the policy document, preview changes to it, and apply them.

    One document holds the order, weights, half-life, thresholds, reservations, pools, topology levels and queues; keys
    that it omits have their defaults. Every change is a new version, also `ganger queue set`. Prints the document in
    force without a subcommand, as a file to edit.

    \b
      ganger policy > policy.yaml
      ganger policy diff policy.yaml
      ganger policy apply policy.yaml --note "more for research"
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if ctx.invoked_subcommand is not None:
        return
    policy = connect().policy(version)
    if output == "json":
        show_json(policy)
        return
    show(f"# version {policy['version']}{_provenance(policy)}")
    show(policy["text"].rstrip())
    _say_warnings(policy["warnings"])


@policy_command.command("diff")
@file_argument
@version_option
@click.option(
    "--against", type=click.IntRange(0), metavar="N", help="Compare with version N instead of the version in force."
)
@output_option
def diff_command(file: str | None, version: int | None, against: int | None, output: str) -> None:
    """Show what a document would change, and which live jobs it would strand.

    FILE is a policy document, - for stdin. Exits with 0 whether or not it finds changes.
    """
    diff = connect().diff_policy(_proposal(file, version) | {"against": against})
    if output == "json":
        show_json(diff)
        return
    _show_changes(diff)
    _show_stranded(diff["stranded"])
    _say_warnings(diff["warnings"])


@policy_command.command("dry-run")
@file_argument
@version_option
@output_option
def dry_run_command(file: str | None, version: int | None, output: str) -> None:
    """Show what the next scheduling cycle would do differently under a document.

    Lists the jobs that would start instead of staying pending, those that would stay pending instead of starting, and
    those whose position in the queue would change. The cycle is planned on a copy: nothing changes.

    Rules for idle jobs that are new or changed are tried on the recorded work of the GPUs in the last week: lists the
    jobs that they would have suspended or stopped, and the GPU-hours that these held without work after that.
    """
    trial = connect().try_policy(_proposal(file, version))
    if output == "json":
        show_json(trial)
        return
    _show_changes(trial)
    _show_stranded(trial["stranded"])
    _say_warnings(trial["warnings"])
    _show_idle(trial["idle"])
    show(f"would start: {_names(trial['starts'])}")
    show(f"would stay pending: {_names(trial['stays_pending'])}")
    if not trial["moved"]:
        show("no pending job changes its position")
        return
    show(f"{count(trial['moved'], 'pending job')} would change position:")
    show_table(
        _POSITIONS,
        [(job["job"], job["queue"], str(job["before"]), str(job["after"])) for job in trial["positions"]],
        "",
    )


@policy_command.command("apply")
@file_argument
@version_option
@click.option("--force", is_flag=True, help="Apply it even if it strands live jobs; running jobs continue.")
@click.option("--note", default="", help="Note for the history.")
@click.option(
    "--if-version",
    type=click.IntRange(0),
    metavar="N",
    help="Apply only if version N is in force, so that no other change is lost.",
)
@output_option
def apply_command(
    *, file: str | None, version: int | None, force: bool, note: str, if_version: int | None, output: str
) -> None:
    """Apply a document from the next scheduling cycle on.

    FILE is a policy document, - for stdin; --version N rolls back to an earlier one. It applies as a whole or, if it
    has an error, not at all. A document that would strand live jobs is rejected and the jobs are listed; with --force
    running jobs continue, and jobs of a deleted queue move to its nearest remaining ancestor. With --context the
    document becomes the cluster's Queues and SchedulingPolicy, with your own permissions.
    """
    client = connect()
    proposal = _proposal(file, version) | {"force": force, "note": note, "if_version": if_version}
    if client.context is not None:
        _show_written(client.apply_policy(proposal), output)
        return
    before = client.policy()["version"]
    applied = client.apply_policy(proposal)
    if output == "json":
        show_json(applied)
        return
    if applied["version"] == before:
        show(f"no changes: version {before} has the same content")
    else:
        show(f"version {applied['version']} is in force")
        _show_changes(client.diff_policy({"version": applied["version"], "against": applied["version"] - 1}))
    _say_warnings(applied["warnings"])


@policy_command.command("history")
@output_option
def history_command(output: str) -> None:
    """List the versions, newest first: when each was applied, its author, note and changes."""
    now_ms = current_time_ms()

    def cells(row: Record) -> tuple[str, ...]:
        changes = "not kept" if row["changes"] is None else "; ".join(map(_change, row["changes"])) or "-"
        time = format_time(row["at_ms"], now_ms)
        return str(row["version"]), time, row["by"] or "-", row["note"] or row["summary"], changes

    show_rows(_VERSIONS, connect().policy_versions(), cells, "the policy has not been changed yet", output)


def _proposal(file: str | None, version: int | None) -> Record:
    """Return the request for a file or for an earlier version."""
    if (file is None) == (version is None):
        raise Problem("give either a FILE (- for stdin) or --version N", "ganger policy history")
    if file is None:
        return {"version": version}
    name = "stdin" if file == "-" else file
    stream = sys.stdin.buffer if file == "-" else None
    return {"text": read_text_file(name, "policy", "ganger policy > policy.yaml", stream), "filename": name}


def _provenance(policy: Record) -> str:
    """Return who applied a version, when and why."""
    if policy["at_ms"] is None:
        return ": the defaults"
    note = f": {policy['note']}" if policy["note"] else ""
    return f", by {policy['by'] or 'an unknown user'}, {format_time(policy['at_ms'], current_time_ms())}{note}"


def _show_changes(diff: Record) -> None:
    changes = diff["changes"]
    rows = [(change["path"], _value(change["before"]), _value(change["after"])) for change in changes]
    show_table(_CHANGES, rows, f"no changes: version {diff['against']} has the same content")


def _show_stranded(jobs: list[Record]) -> None:
    if jobs:
        say(f"this would strand {count(len(jobs), 'live job')} and requires --force:", fg="yellow")
    for job in jobs[:SHOWN]:
        say(f"  {job['job']} ({job['state']}): {job['reason']}")
    if len(jobs) > SHOWN:
        say(f"  and {len(jobs) - SHOWN} more")


def _say_warnings(warnings: list[Record]) -> None:
    for warning in warnings:
        say(f"warning: {warning['sentence']}; the document is valid nevertheless", fg="yellow")


def _show_idle(idle: Record | None) -> None:
    """Show which jobs new rules for idle jobs would have ended."""
    if idle is None:
        return
    for queue in idle["queues"]:
        show(queue["sentence"])
    if idle["jobs"]:
        show_table(_IDLE, [_idle_cells(job) for job in idle["jobs"][:SHOWN]], "")
    if len(idle["jobs"]) > SHOWN:
        show(f"and {len(idle['jobs']) - SHOWN} more: -o json shows them")
    for note in idle["notes"]:
        show(note)


def _idle_cells(job: Record) -> tuple[str, ...]:
    hours = f"{job['gpu_ms'] / HOUR_MS:,.2f}"
    later = "had work again" if job["is_active_again"] else "-"
    return job["job"], job["user"], job["queue"], format_time(job["at_ms"], current_time_ms()), hours, later


def _change(change: Record) -> str:
    return f"{change['path']}: {_value(change['before'])} -> {_value(change['after'])}"


def _value(value: Any) -> str:
    """Return `-` for an absent value and `set` for a mapping."""
    return "-" if value is None else "set" if value == "" else str(value)


def _names(jobs: list[str]) -> str:
    rest = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return f"{', '.join(jobs[:SHOWN])}{rest}" if jobs else "none"


def _show_written(result: Record, output: str) -> None:
    """Show which objects of a Kubernetes cluster were written."""
    if output == "json":
        show_json(result)
        return
    if not result["written"] and not result["deleted"]:
        show("no changes: the objects have the same content")
        return
    for kind in ("written", "deleted"):
        for title in result[kind]:
            show(f"{kind}: {title}")
    show("applied")
