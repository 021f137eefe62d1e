"""`ganger policy`: the document that says how the cluster is given out, its versions, and what another would change."""

import sys
from typing import Any, Final

import click

from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import output_option, read_given
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import Column, now_ms, say, show, show_json, show_json_array, show_table, when
from ganger.client.kubernetes.controller_client import ControllerClient

Record = dict[str, Any]

SHOWN: Final = 10
"""Jobs of a kind that are named before the rest is counted."""
_CHANGES: Final = (Column("KEY"), Column("NOW", folds=True), Column("THEN", folds=True))
_VERSIONS: Final = (
    Column("VERSION", right=True),
    Column("WHEN"),
    Column("BY"),
    Column("WHAT"),
    Column("CHANGES", folds=True),
)
_PLACES: Final = (Column("JOB"), Column("QUEUE"), Column("PLACE NOW", right=True), Column("THEN", right=True))

file_argument = click.argument("file", type=click.Path(), required=False)
version_option = click.option(
    "--version", "version", type=click.IntRange(0), metavar="N", help="An earlier version instead of a file."
)


@click.group("policy", invoke_without_command=True)
@click.option("--version", "version", type=click.IntRange(0), metavar="N", help="An earlier version.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Form of the answer."
)
@click.pass_context
def policy_command(ctx: click.Context, version: int | None, output: str) -> None:
    """Show the policy document, change it, and see what a change would do.

    One document holds the order, weights, half-life, thresholds, reservations, pools, levels of the network and queues;
    what it leaves out is as it is without it. Every change is a new version, `ganger queue set` too. Without a command:
    the document in force, as a file to edit.

    \b
      ganger policy > policy.yaml
      ganger policy diff policy.yaml
      ganger policy apply policy.yaml --note "more for research"
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    if ctx.invoked_subcommand is not None:
        return
    found = connected().policy(version)
    if output == "json":
        show_json(found)
        return
    show(f"# version {found['version']}{_made(found)}")
    show(found["text"].rstrip())
    _say_warnings(found["warnings"])


@policy_command.command("diff")
@file_argument
@version_option
@click.option(
    "--against", type=click.IntRange(0), metavar="N", help="Compare with version N, not with what is in force."
)
@output_option
def diff_command(file: str | None, version: int | None, against: int | None, output: str) -> None:
    """Show what a document would change, and which live jobs it would strand.

    FILE is a policy document, - for stdin. It is a report: the exit code is 0 either way.
    """
    found = connected().diff_policy(_proposal(file, version) | {"against": against})
    if output == "json":
        show_json(found)
        return
    _show_changes(found)
    _show_stranded(found["stranded"])
    _say_warnings(found["warnings"])


@policy_command.command("dry-run")
@file_argument
@version_option
@output_option
def dry_run_command(file: str | None, version: int | None, output: str) -> None:
    """Say what the next round would do differently under a document.

    Which jobs would start that now would wait, which the other way round, and whose place in their queue would change.
    The next round itself is planned, on a copy: nothing changes.
    """
    found = connected().try_policy(_proposal(file, version))
    if output == "json":
        show_json(found)
        return
    _show_changes(found)
    _show_stranded(found["stranded"])
    _say_warnings(found["warnings"])
    show(f"would start now: {_named(found['starts'])}")
    show(f"would wait, and not start: {_named(found['waits'])}")
    if not found["moved"]:
        show("every waiting job keeps its place")
        return
    show(f"{found['moved']} waiting jobs have another place:")
    show_table(
        _PLACES, [(each["job"], each["queue"], str(each["before"]), str(each["after"])) for each in found["places"]], ""
    )


@policy_command.command("apply")
@file_argument
@version_option
@click.option("--force", is_flag=True, help="Though it strands live jobs: what runs goes on.")
@click.option("--note", default="", help="Why, for the history.")
@click.option(
    "--if-version", type=click.IntRange(0), metavar="N", help="Only if version N is in force: nobody changed it since."
)
@output_option
def apply_command(
    *, file: str | None, version: int | None, force: bool, note: str, if_version: int | None, output: str
) -> None:
    """Put a document in force, from the next round on.

    FILE is a policy document, - for stdin; --version N goes back to an earlier one. All of it applies at once, or, when
    something is wrong with it, nothing. One that would strand live jobs is refused with their names; with --force these
    stay: what runs goes on, and jobs of a queue that is gone go to the nearest queue above it that is left. With
    --context the document becomes the cluster's Queues and SchedulingPolicy, by your own rights.
    """
    client = connected()
    proposal = _proposal(file, version)
    if isinstance(client, ControllerClient):
        _apply_objects(client, proposal, {"force": force, "note": note, "if_version": if_version}, output)
        return
    before = client.policy()["version"]
    found = client.apply_policy(proposal | {"force": force, "note": note, "if_version": if_version})
    if output == "json":
        show_json(found)
        return
    if found["version"] == before:
        show(f"nothing to change: version {before} is just that")
    else:
        show(f"version {found['version']} is in force")
        _show_changes(client.diff_policy({"version": found["version"], "against": found["version"] - 1}))
    _say_warnings(found["warnings"])


@policy_command.command("history")
@output_option
def history_command(output: str) -> None:
    """List the versions, the newest first: who made them, when, and what they changed."""
    rows = connected().policy_versions()
    if output == "json":
        show_json_array(rows)
        return
    now = now_ms()
    cells = [
        (
            str(row["version"]),
            when(row["at_ms"], now),
            row["by"] or "-",
            row["note"] or row["what"],
            "not kept any more" if row["changes"] is None else "; ".join(map(_change, row["changes"])) or "-",
        )
        for row in rows
    ]
    show_table(_VERSIONS, cells, "nobody has changed the policy yet")


def _proposal(file: str | None, version: int | None) -> Record:
    """What is sent for a file, or for an earlier version."""
    if (file is None) == (version is None):
        raise Problem("name a FILE, - for stdin, or --version N: one of them", "ganger policy history")
    if file is None:
        return {"version": version}
    name = "stdin" if file == "-" else file
    stream = sys.stdin.buffer if file == "-" else None
    return {"text": read_given(name, "policy", "ganger policy > policy.yaml", stream), "filename": name}


def _made(found: Record) -> str:
    """Who applied it, when and why."""
    if found["at_ms"] is None:
        return ": what holds where nobody set anything"
    note = f": {found['note']}" if found["note"] else ""
    return f", by {found['by'] or 'somebody'}, {when(found['at_ms'], now_ms())}{note}"


def _show_changes(found: Record) -> None:
    changes = found["changes"]
    rows = [(each["path"], _value(each["before"]), _value(each["after"])) for each in changes]
    show_table(_CHANGES, rows, f"nothing changes: version {found['against']} is just that")


def _show_stranded(jobs: list[Record]) -> None:
    if jobs:
        count = "1 live job" if len(jobs) == 1 else f"{len(jobs)} live jobs"
        say(f"it would strand {count}, and is refused without --force:", fg="yellow")
    for each in jobs[:SHOWN]:
        say(f"  {each['job']} ({each['state']}): {each['why']}")
    if len(jobs) > SHOWN:
        say(f"  and {len(jobs) - SHOWN} more")


def _say_warnings(warnings: list[Record]) -> None:
    for each in warnings:
        say(f"warning: {each['sentence']}; it holds all the same", fg="yellow")


def _change(change: Record) -> str:
    return f"{change['path']}: {_value(change['before'])} -> {_value(change['after'])}"


def _value(value: Any) -> str:
    """`-` for what is not written, `set` for a mapping that is there."""
    return "-" if value is None else "set" if value == "" else str(value)


def _named(jobs: list[str]) -> str:
    more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return f"{', '.join(jobs[:SHOWN])}{more}" if jobs else "nobody"


def _apply_objects(client: ControllerClient, proposal: Record, of_versions: Record, output: str) -> None:
    """Write the policy as objects of a Kubernetes cluster, with the user's own rights, and return when they are in
    force. Problem: an option that needs a server with policy versions."""
    if given := [
        f"--{name.replace('_', '-')}" for name, value in of_versions.items() if value not in (None, "", False)
    ]:
        raise Problem(
            f"{given[0]} is for a server that keeps versions; in a cluster the policy is objects",
            "kubectl get queues,schedulingpolicies -o yaml --show-managed-fields",
        )
    if "version" in proposal:
        proposal = {"document": client.policy(proposal["version"])["document"]}
    done = client.objects.apply_policy(proposal)
    if output == "json":
        show_json(done)
        return
    if not done["written"] and not done["deleted"]:
        show("nothing to change: the objects are just that")
        return
    for title in done["written"]:
        show(f"written: {title}")
    for title in done["deleted"]:
        show(f"deleted: {title}")
    show("in force")
