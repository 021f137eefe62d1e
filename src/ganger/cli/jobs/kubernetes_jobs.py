"""`ganger --context NAME run|submit|ls|explain|logs|exec|stop`: jobs of a Kubernetes cluster, by one's own kubeconfig.

`LazyGroup` takes commands from here when a context is named. No controller is asked: a job is its GangJob object, and
what it writes is in the logs of its pods, so whoever may do a thing with kubectl may do it here.
"""

import os
import shutil
import sys
from typing import Any, Final, NoReturn

import click

from ganger.cli.bulk import each
from ganger.cli.exit_codes import INTERRUPTED, NOT_STARTED, OK
from ganger.cli.jobs.exec import NEITHER, flags_of, visit_options
from ganger.cli.jobs.explain_events import explanation_lines
from ganger.cli.jobs.list_get_stop import elements_of, listing_options, wanted_of
from ganger.cli.jobs.logs import reading_options, see_ranks
from ganger.cli.jobs.run_submit_wait import exit_code_of, show_dry_run, typed
from ganger.cli.jobs.submit_request import build_request, has_several_jobs
from ganger.cli.options import exit_code_option, output_option, parse_ranks, spec_options
from ganger.cli.output.error_output import Problem
from ganger.cli.output.rank_lines import iso
from ganger.cli.output.tables import (
    Column,
    ago,
    now_ms,
    quoted,
    say,
    show,
    show_json,
    show_json_array,
    show_json_line,
    show_prose,
    show_table,
    when,
)
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.model.job import GangState
from ganger.model.units import format_duration

Record = dict[str, Any]

UNHEARD: Final = "no controller has read it yet: kubectl get pods -n ganger-system"

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
    named: tuple[str, str | None],
    /,
    own_exit_code: bool,
    command: tuple[str, ...],
    output: str,
    dry_run: bool,
    **flags: Any,
) -> int:
    """Run a job on the cluster and follow it to its end.

    Takes what `ganger run` takes. Ctrl-C leaves the job running and says how to come back to it.
    """
    if output == "json" and not dry_run:
        raise Problem(
            "run follows the job's own output: -o json goes with --dry-run", next=f"{typed(named)} submit -o json ..."
        )
    request, jobs = _request(flags, command), GangJobs(*named)
    if dry_run:
        return show_dry_run(jobs.dry_run(request), output)
    if has_several_jobs(request):
        raise Problem("run follows one job, and the file has several", next=f"{typed(named)} submit -f {flags['path']}")
    name, its = _submitted(jobs, named, request)[0]["id"], typed(named)
    is_array = bool(jobs.job(name)["spec"]["array"])
    look = f"elements: {its} ls {name}" if is_array else f"logs: {its} logs {name} -f"
    say(f"✓ submitted {name}   stop: {its} stop {name}   {look}")
    try:
        if not is_array:  # what elements write is in the logs of each
            _write(jobs.logs(name, {"first": 1}, follow=True))
        ended = jobs.wait(name, None)
    except KeyboardInterrupt:
        say(f"\ndetached: {name} goes on")
        say(f"  come back:      {its} {f'wait {name}' if is_array else f'logs {name} -f'}")
        say(f"  stop it:        {its} stop {name}")
        return INTERRUPTED
    assert ended is not None  # noqa: S101  # it was waited for without an end
    say(ending(ended["row"]))
    return exit_code_of(ended["row"], own_exit_code)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@spec_options
@click.pass_obj
def submit_command(
    named: tuple[str, str | None], /, command: tuple[str, ...], output: str, dry_run: bool, **flags: Any
) -> int:
    """Submit a job to the cluster and return at once. The name is printed on stdout, alone.

    A file may have several jobs, with `---` between them: all are made or none, `after` may name them, and flags go
    over each.
    """
    request, jobs = _request(flags, command), GangJobs(*named)
    if dry_run:
        return show_dry_run(jobs.dry_run(request), output)
    made = _submitted(jobs, named, request)
    if output == "json":
        show_json(made if len(made) > 1 else made[0])
        return OK
    for job in made:
        show(job["id"])
    return OK


@click.command("ls")
@listing_options
@click.pass_obj
def ls_command(
    named: tuple[str, str | None],
    /,
    *,
    array: str | None,
    all_: bool,
    states: tuple[tuple[GangState, ...], ...],
    labels: tuple[str, ...],
    output: str,
    **filters: Any,
) -> None:
    """List the jobs of a namespace, newest first: those whose GangJobs are there. Or the elements of an array.

    The controller tells of elements; of all else it is not asked.
    """
    jobs, wanted = GangJobs(*named), wanted_of(states, labels, filters)
    listed = jobs.jobs(**wanted) if array is None else elements_of(jobs, array, wanted, everything=all_)
    found = list(listed)
    if output == "json":
        show_json_array(found)
        return
    filtered = any(value is not None for value in wanted.values())
    what = "no job fits" if filtered else f"no jobs yet: {typed(named)} run -- python train.py"
    now = now_ms()
    show_table(_COLUMNS, [_cells(job, now) for job in found], what)


def _cells(job: Record, now: int) -> tuple[str, ...]:
    shape, submitted = job["shape"] or "-", ago(job["submitted_ms"], now)
    return job["id"], job["state"], shape, job["queue"], job["user"], submitted, _note(job)


@click.command("explain")
@job_argument
@output_option
@click.pass_obj
def explain_command(named: tuple[str, str | None], job: str, output: str) -> None:
    """Say how a job is, and why it waits or has ended.

    What the controller adds for whom it tells: until when it waits, and what would start it now.
    """
    told = GangJobs(*named).explain(job)
    row, explanation = told["row"], told.get("explanation")
    if output == "json":
        show_json(row | {"explanation": explanation})
        return
    now = now_ms()
    if explanation is not None and row["state"] == "pending":
        first, *others = explanation_lines(explanation, now)
        show(first)
        for line in others:
            show_prose(line)
        return
    show(f"{row['namespace']}/{row['id']} of {row['user']}: {row['state']}")
    if row["state"] == "unread":
        show(UNHEARD)
    for label in ("reason", "sentence", "shape", "generation", "nodes", "started_ms", "ended_ms", "exit_code"):
        value = row[label]
        if value in ("", None, []) or (label == "generation" and not value):
            continue
        said = when(value, now) if label.endswith("_ms") else ", ".join(value) if isinstance(value, list) else value
        show(f"  {label.removesuffix('_ms').replace('_', ' '):12}{said}")


@click.command("logs")
@job_argument
@reading_options
@click.pass_obj
def logs_command(
    named: tuple[str, str | None],
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
    """Show what a job's processes wrote, from the logs of its pods; those of pods that are gone are gone."""
    see_ranks(rank, everything=everything)
    if stacks:
        look = f"{typed(named)} logs {quoted(job)} --all --tail 100"
        raise Problem("stacks are not brought from pods: what its ranks wrote last may say where they were", look)
    ranks = None if rank is None else parse_ranks(rank)
    asked = {
        "ranks": ranks,
        "everything": everything or (rank is not None and ranks is None),
        **{name: query[name] for name in ("role", "node", "grep", "tail")},
        "generation": query["attempt"],
        "since_ms": query["since"],
        "until_ms": query["until"],
    }
    lines = GangJobs(*named).logs(job, asked, follow=follow)
    if output != "json":
        _write(lines, timestamps=timestamps)
    elif follow:
        for line in lines:
            show_json_line(line)
    else:
        show_json_array(lines)


@click.command("exec")
@job_argument
@visit_options
@click.pass_obj
def exec_command(
    named: tuple[str, str | None],
    /,
    job: str,
    command: tuple[str, ...],
    rank: int | None,
    node: str | None,
    *,
    interactive: bool,
    terminal: bool,
) -> NoReturn:
    """Run a command beside a rank, with its variables, secrets and directory, through kubectl.

    Exits as the command does, with 125 when it could not be run. Who may `create` `pods/exec` in the namespace may do
    it beside everybody's ranks there: the role `ganger-exec` gives that right.
    """
    flags = flags_of(interactive=interactive, terminal=terminal)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise Problem("exec goes through kubectl, which is not in PATH", "install kubectl, or set PATH", NOT_STARTED)
    way = GangJobs(*named).kubectl_exec(job, rank, node)
    passed = [f"-{flag}" for flag in flags if flag != NEITHER]
    words = ["kubectl", *way["kubectl"], *passed, *way["argv"], str(way["generation"]), str(way["rank"]), flags]
    sys.stdout.flush()
    os.execv(kubectl, [*words, *command])  # noqa: S606 - there is nothing for a shell to do


@click.command("stop")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@output_option
@click.pass_obj
def stop_command(named: tuple[str, str | None], names: tuple[str, ...], output: str) -> int:
    """Stop jobs: each may save its work first."""
    jobs = GangJobs(*named)
    return each(names, lambda name: {"row": jobs.stop(name)}, lambda row: show(f"stopping {quoted(row['id'])}"), output)


def _request(flags: Record, command: tuple[str, ...]) -> Record:
    """What is sent; this shell's values of secrets stay here, and that is said."""
    request = build_request(flags, command)
    if names := sorted(request.pop("secrets")):
        say(f"{', '.join(names)}: not this shell's value, but what the Secret ganger-secrets of the namespace has")
    return request


def _submitted(jobs: GangJobs, named: tuple[str, str | None], request: Record) -> list[Record]:
    """The jobs that were made."""
    try:
        return jobs.submit_all(request)
    except KeyboardInterrupt:
        say(f"interrupted while submitting: `{typed(named)} ls` shows whether the job was taken")
        raise


def _write(lines: Any, *, timestamps: bool = False) -> None:
    """Lines of a job as text, at once; whose they are, where it is not the first rank's."""
    for line in lines:
        at = f"{iso(line['at_ms'])} " if timestamps else ""
        who = f"r{line['rank']} | " if line["rank"] else ""
        sys.stdout.write(f"{at}{who}{line['text']}\n")
        sys.stdout.flush()


def ending(row: Record) -> str:
    """How a job ended, in a line."""
    attempts = f" in {row['generation']} attempts" if row["generation"] > 1 else ""
    how = f": {row['sentence']}" if row["sentence"] and row["state"] != "succeeded" else ""
    lasted = f" after {format_duration(row['ended_ms'] - row['submitted_ms'])}" if row["ended_ms"] else ""
    return f"{'✓' if row['state'] == 'succeeded' else '✗'} {row['id']} {row['state']}{lasted}{attempts}{how}"


def _note(job: Record) -> str:
    return job["sentence"] or (f"on {', '.join(job['nodes'])}" if job["nodes"] else "")
