"""`ganger --context NAME run|submit|ls|explain|logs|exec|stop`: jobs of a Kubernetes cluster, via kubeconfig.

A job is its GangJob object and its output is in the logs of its pods, so these commands need no controller: a user
can do here what the same user can do with kubectl.
"""

import os
import shutil
import sys
from typing import Any, Final, NoReturn

import click

from ganger.cli.bulk import for_each
from ganger.cli.exit_codes import INTERRUPTED, NOT_STARTED, OK
from ganger.cli.jobs.exec import NO_FLAGS, exec_options, flags_of
from ganger.cli.jobs.explain_events import show_explanation
from ganger.cli.jobs.list_and_stop import array_elements, listing_options, listing_query
from ganger.cli.jobs.logs import check_ranks, log_options
from ganger.cli.jobs.run_submit_wait import job_exit_code, show_dry_run
from ganger.cli.jobs.submit_request import build_request, has_several_jobs
from ganger.cli.options import command_prefix, exit_code_option, output_option, parse_ranks, spec_options
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import (
    Column,
    current_time_ms,
    format_age,
    format_time,
    printable,
    say,
    shell_quote,
    show,
    show_json,
    show_json_array,
    show_json_line,
    show_rows,
)
from ganger.cli.output.rank_lines import iso_time
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.model.job import GangState
from ganger.model.units import format_duration

Record = dict[str, Any]
Target = tuple[str, str | None]
"""(context, namespace), as `--context` and `--namespace` name them."""

NOT_PROCESSED: Final = "not processed by a controller yet: kubectl get pods -n ganger-system"

_COLUMNS: Final = (
    Column("JOB"),
    Column("STATE", state=True),
    Column("SIZE"),
    Column("QUEUE"),
    Column("USER"),
    Column("SUBMITTED", right=True),
    Column("NOTE"),
)
job_argument = click.argument("job", metavar="JOB")


@click.command("run", context_settings={"allow_interspersed_args": False})
@spec_options
@exit_code_option
@click.pass_obj
def run_command(
    target: Target,
    /,
    own_exit_code: bool,
    command: tuple[str, ...],
    output: str,
    dry_run: bool,
    **flags: Any,
) -> int:
    """Run a job on the cluster and follow it until it ends.

    Has the options of `ganger run`. Ctrl-C detaches and leaves the job running.
    """
    if output == "json" and not dry_run:
        raise Problem(
            "run prints the job's own output: -o json requires --dry-run",
            next=f"{command_prefix(target)} submit -o json ...",
        )
    request, jobs = _request(flags, command), GangJobs(*target)
    if dry_run:
        return show_dry_run(jobs.dry_run(request), output)
    if has_several_jobs(request):
        raise Problem(
            "run follows one job, but the file has several", next=f"{command_prefix(target)} submit -f {flags['path']}"
        )
    name, prefix = _submit(jobs, target, request)[0]["id"], command_prefix(target)
    is_array = bool(jobs.job(name)["spec"]["array"])
    progress = f"elements: {prefix} ls {name}" if is_array else f"logs: {prefix} logs {name} -f"
    say(f"✓ submitted {name}   stop: {prefix} stop {name}   {progress}")
    try:
        if not is_array:  # each element has logs of its own
            _write(jobs.logs(name, {"first": 1}, follow=True))
        ended = jobs.wait(name, None)
    except KeyboardInterrupt:
        say(f"\ndetached: {name} keeps running")
        say(f"  reattach:       {prefix} {f'wait {name}' if is_array else f'logs {name} -f'}")
        say(f"  stop it:        {prefix} stop {name}")
        return INTERRUPTED
    assert ended is not None  # noqa: S101  # no timeout was given
    say(ending_line(ended["row"]))
    return job_exit_code(ended["row"], own_exit_code)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@spec_options
@click.pass_obj
def submit_command(target: Target, /, command: tuple[str, ...], output: str, dry_run: bool, **flags: Any) -> int:
    """Submit a job to the cluster and return immediately; only its name is printed on stdout.

    A file may contain several jobs, separated by `---`: all of them are created or none, `after` may name them, and
    flags override each.
    """
    request, jobs = _request(flags, command), GangJobs(*target)
    if dry_run:
        return show_dry_run(jobs.dry_run(request), output)
    created = _submit(jobs, target, request)
    if output == "json":
        show_json(created if len(created) > 1 else created[0])
        return OK
    for job in created:
        show(job["id"])
    return OK


@click.command("ls")
@listing_options
@click.pass_obj
def ls_command(
    target: Target,
    /,
    *,
    array: str | None,
    all_: bool,
    states: tuple[tuple[GangState, ...], ...],
    labels: tuple[str, ...],
    output: str,
    **filters: Any,
) -> None:
    """List the jobs of a namespace that have a GangJob, newest first, or the elements of an array.

    Only elements need the controller.
    """
    jobs, query = GangJobs(*target), listing_query(states, labels, filters)
    rows = jobs.jobs(**query) if array is None else array_elements(jobs, array, query, everything=all_)
    is_filtered = any(value is not None for value in query.values())
    empty = "no matching jobs" if is_filtered else f"no jobs yet: {command_prefix(target)} run -- python train.py"
    now_ms = current_time_ms()
    show_rows(_COLUMNS, list(rows), lambda row: _cells(row, now_ms), empty, output)


def _cells(row: Record, now_ms: int) -> tuple[str, ...]:
    note = row["sentence"] or (f"on {', '.join(row['nodes'])}" if row["nodes"] else "")
    return (
        row["id"],
        row["state"],
        row["shape"] or "-",
        row["queue"],
        row["user"],
        format_age(row["submitted_ms"], now_ms),
        note,
    )


@click.command("explain")
@job_argument
@output_option
@click.pass_obj
def explain_command(target: Target, job: str, output: str) -> None:
    """Explain the state of a job: why it is pending or how it ended.

    The controller adds, for users who may ask it, until when the job is pending and what would start it now.
    """
    answer = GangJobs(*target).explain(job)
    row, explanation = answer["row"], answer.get("explanation")
    if output == "json":
        show_json(row | {"explanation": explanation})
        return
    now_ms = current_time_ms()
    if explanation is not None and row["state"] == "pending":
        show_explanation(explanation, now_ms)
        return
    show(f"{row['namespace']}/{row['id']} of {row['user']}: {row['state']}")
    if row["state"] == "unread":
        show(NOT_PROCESSED)
    for label in ("reason", "sentence", "shape", "generation", "nodes", "started_ms", "ended_ms", "exit_code"):
        value = row[label]
        if value in ("", None, []) or (label == "generation" and not value):
            continue
        text = (
            format_time(value, now_ms)
            if label.endswith("_ms")
            else ", ".join(value)
            if isinstance(value, list)
            else value
        )
        show(f"  {label.removesuffix('_ms').replace('_', ' '):12}{text}")


@click.command("logs")
@job_argument
@log_options
@click.pass_obj
def logs_command(
    target: Target,
    /,
    *,
    job: str,
    follow: bool,
    everything: bool,
    rank: str | None,
    timestamps: bool,
    stacks: bool,
    output: str,
    **query: Any,
) -> None:
    """Show the output of a job's processes from the logs of its pods; logs of deleted pods are lost."""
    check_ranks(rank, everything=everything)
    if stacks:
        command = f"{command_prefix(target)} logs {shell_quote(job)} --all --tail 100"
        raise Problem("stacks are not available from pods; see the last output of the ranks instead", command)
    ranks = None if rank is None else parse_ranks(rank)
    request = {
        "ranks": ranks,
        "everything": everything or (rank is not None and ranks is None),
        **{name: query[name] for name in ("role", "node", "grep", "tail")},
        "generation": query["attempt"],
        "since_ms": query["since"],
        "until_ms": query["until"],
    }
    lines = GangJobs(*target).logs(job, request, follow=follow)
    if output != "json":
        _write(lines, timestamps=timestamps)
    elif follow:
        for line in lines:
            show_json_line(line)
    else:
        show_json_array(lines)


@click.command("exec")
@job_argument
@exec_options
@click.pass_obj
def exec_command(
    target: Target,
    /,
    job: str,
    command: tuple[str, ...],
    rank: int | None,
    node: str | None,
    *,
    interactive: bool,
    terminal: bool,
) -> NoReturn:
    """Run a command next to a rank, with its environment, secrets and directory, through kubectl.

    Exits with the command's exit code, or with 125 if it could not be run. Requires the permission to `create`
    `pods/exec` in the namespace, which the role `ganger-exec` grants and which extends to the ranks of all users there.
    """
    flags = flags_of(job, command, interactive=interactive, terminal=terminal)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise Problem("exec needs kubectl, which is not on PATH", "install kubectl, or set PATH", NOT_STARTED)
    remote = GangJobs(*target).kubectl_exec(job, rank, node)
    options = [f"-{flag}" for flag in flags if flag != NO_FLAGS]
    argv = [
        "kubectl",
        *remote["kubectl"],
        *options,
        *remote["argv"],
        str(remote["generation"]),
        str(remote["rank"]),
        flags,
    ]
    sys.stdout.flush()
    os.execv(kubectl, [*argv, *command])  # noqa: S606 - no shell needed


@click.command("stop")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@output_option
@click.pass_obj
def stop_command(target: Target, names: tuple[str, ...], output: str) -> int:
    """Stop jobs, after a grace period in which each may save a checkpoint."""
    jobs = GangJobs(*target)
    return for_each(
        names, lambda name: {"row": jobs.stop(name)}, lambda row: show(f"stopping {shell_quote(row['id'])}"), output
    )


def _request(flags: Record, command: tuple[str, ...]) -> Record:
    """Return the submission, without values of secrets, which come from the namespace's Secret."""
    request = build_request(flags, command)
    if names := sorted(request.pop("secrets")):
        say(f"{', '.join(names)}: taken from the Secret ganger-secrets of the namespace, not from this shell")
    return request


def _submit(jobs: GangJobs, target: Target, request: Record) -> list[Record]:
    try:
        return jobs.submit_all(request)
    except KeyboardInterrupt:
        say(f"interrupted while submitting: `{command_prefix(target)} ls` shows whether the job was submitted")
        raise


def _write(lines: Any, *, timestamps: bool = False) -> None:
    """Print lines of a job immediately, with the rank before lines of other ranks than 0."""
    for line in lines:
        time_text = f"{iso_time(line['at_ms'])} " if timestamps else ""
        rank_text = f"r{line['rank']} | " if line["rank"] else ""
        sys.stdout.write(printable(f"{time_text}{rank_text}{line['text']}", sys.stdout) + "\n")
        sys.stdout.flush()


def ending_line(row: Record) -> str:
    """Return one line about how a job ended."""
    attempts = f" in {row['generation']} attempts" if row["generation"] > 1 else ""
    reason = f": {row['sentence']}" if row["sentence"] and row["state"] != "succeeded" else ""
    lasted = f" after {format_duration(row['ended_ms'] - row['submitted_ms'])}" if row["ended_ms"] else ""
    return f"{'✓' if row['state'] == 'succeeded' else '✗'} {row['id']} {row['state']}{lasted}{attempts}{reason}"
