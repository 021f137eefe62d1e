"""`ganger suspend`, `resume`, `priority`, `scale` and `rollback`."""

import re
from typing import Any

import click

from ganger.cli import completions
from ganger.cli.bulk import for_each
from ganger.cli.exit_codes import OK, REFUSED
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import PRIORITY, live_jobs_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import SUSPENDED
from ganger.cli.output.print_output import say, shell_quote, show, show_json
from ganger.client import Client
from ganger.model.job import ENDED, PRIORITIES
from ganger.spec.amounts import MAX_STEPS

Record = dict[str, Any]


@click.command("suspend")
@live_jobs_argument
@output_option
def suspend_command(jobs: tuple[str, ...], output: str) -> int:
    """Suspend jobs: each may save a checkpoint, releases its nodes and waits for `resume`.

    A running job stops its processes and restarts from its newest checkpoint when it is resumed; a pending job is
    skipped until then. Other jobs may use the nodes meanwhile.
    """
    client = connect()

    def suspend(job: str) -> Record:
        row = client.job(job)["row"]
        if row["state"] in SUSPENDED:
            raise Problem(f"{row['id']} is already {row['state']}", f"ganger resume {shell_quote(row['id'])}", REFUSED)
        return change_job(client, row["id"], suspended=True)

    return for_each(jobs, suspend, report_suspended, output)


@click.command("resume")
@live_jobs_argument
@output_option
def resume_command(jobs: tuple[str, ...], output: str) -> int:
    """Resume suspended jobs: each becomes pending and restarts from its newest checkpoint."""
    client = connect()

    def resume(job: str) -> Record:
        row = client.job(job)["row"]
        name = shell_quote(row["id"])
        if row["state"] not in SUSPENDED and row["state"] not in ENDED:
            follow = f"ganger explain {name}" if row["state"] == "pending" else f"ganger logs {name} -f"
            raise Problem(f"{row['id']} is not suspended: it is {row['state']}", follow, REFUSED)
        return change_job(client, row["id"], suspended=False)

    return for_each(jobs, resume, report_resumed, output)


@click.command("priority", context_settings={"ignore_unknown_options": True})  # so that -100 is a value
@click.argument("arguments", metavar="JOB... VALUE", nargs=-1, shell_complete=completions.live_jobs)
@output_option
@click.pass_context
def priority_command(ctx: click.Context, arguments: tuple[str, ...], output: str) -> int:
    """Set the priority of jobs: low, normal, high, or an integer from -1000 to 1000.

    The value comes last, as in `kubectl label pod NAME KEY=VALUE`. Jobs of a higher priority start first and may
    preempt jobs of a lower one.

    \b
      ganger priority bert high
      ganger priority bert-7f3 cv-11 -50
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    number = parse_priority_arguments(ctx, arguments)
    client = connect()
    before: dict[str, int] = {}

    def change(job: str) -> Record:
        row = client.job(job)["row"]
        before[row["id"]] = row["priority"]
        return change_job(client, row["id"], priority=number)

    def report(row: Record) -> None:
        show(priority_change(row["id"], before[row["id"]], number))

    return for_each(arguments[:-1], change, report, output)


def refuse_option(ctx: click.Context, _param: click.Parameter, job: str) -> str:
    """Return the name of a job; raise NoSuchOption for an option that was not recognised."""
    if job and job.startswith("-"):
        raise click.NoSuchOption(job, ctx=ctx)
    return job


@click.command("scale", context_settings={"ignore_unknown_options": True})  # so that -1 is a value
@click.argument("job", metavar="JOB", shell_complete=completions.live_jobs, callback=refuse_option, is_eager=True)
@click.argument("nodes", metavar="N|+N|-N")
@output_option
def scale_command(job: str, nodes: str, output: str) -> int:
    """Set the number of nodes of an elastic job, or of processes of its elastic role.

    It gets more nodes as soon as they are idle, and gives others back at once; from then on it does not grow beyond
    this number. The processes restart from the newest checkpoint.

    \b
      ganger scale bert 4
      ganger scale bert -2
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if not re.fullmatch(r"[+-]?[0-9]{1,6}", nodes):
        raise Problem(f"{nodes!r} is not a number of nodes", next=f"ganger scale {shell_quote(job)} 4, or +1, or -1")
    changed = change_job(connect(), job, nodes=nodes)
    if output == "json":
        show_json(changed["row"])
    else:
        name = shell_quote(changed["row"]["id"])
        show(f"scaled {name}: its size is {changed['row']['shape']} now; follow it: ganger events {name}")
    return OK


@click.command("rollback")
@click.argument("job", metavar="JOB", shell_complete=completions.live_jobs)
@click.option(
    "--to",
    "step",
    type=click.IntRange(0, MAX_STEPS),
    required=True,
    metavar="STEP",
    help="Return to the newest checkpoint of this step or before it.",
)
@output_option
def rollback_command(job: str, step: int, output: str) -> int:
    """Restart a job from an older checkpoint, and set the newer ones aside.

    A running job stops without saving; a pending or suspended one begins from there when it starts. Newer checkpoints
    are not deleted: they are renamed into the directory rolled-back~JOB~ATTEMPT beside the others.

    \b
      ganger rollback bert --to 12000
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    changed = change_job(connect(), job, rollback=step)
    if output == "json":
        show_json(changed["row"])
    else:
        name = shell_quote(changed["row"]["id"])
        show(f"rolled back {name} to step {step} or before; follow it: ganger events {name}")
    return OK


def change_job(client: Client, id: str, **fields: Any) -> Record:
    """Change a job and return it; print what to type if no controller has handled the change yet."""
    job = client.change(id, **fields)
    if unhandled := job.get("unhandled"):
        say(f"{id}: {unhandled}")
    return job


def report_suspended(row: Record) -> None:
    """Print that a job is being suspended, and how to resume it."""
    name, state = shell_quote(row["id"]), "suspended" if row["state"] == "suspended" else "suspending"
    show(f"{state} {name}; resume it: ganger resume {name}")


def report_resumed(row: Record) -> None:
    """Print the state of a resumed job."""
    name = shell_quote(row["id"])
    hint = "" if row["nodes"] else f"; ganger explain {name}"
    show(f"resumed {name}: it is {row['state']}{hint}")


def parse_priority_arguments(ctx: click.Context, arguments: tuple[str, ...]) -> int:
    """Return the priority, the last of all arguments."""
    for argument in arguments:
        if argument.startswith("-") and not re.fullmatch(r"-\d+", argument):
            raise click.NoSuchOption(argument, ctx=ctx)
    *jobs, value = arguments or ("",)
    if not jobs:
        message = f"the priority of {value} is missing" if value else "the job and the priority are missing"
        raise Problem(message, next=f"ganger priority {shell_quote(value) if value else 'JOB'} high")
    try:
        PRIORITY.parse(value)
    except ValueError as error:
        swapped = re.fullmatch(rf"-?\d+|{'|'.join(PRIORITIES)}", jobs[0])
        ordered = [*jobs[1:], value, jobs[0]] if swapped else [*jobs, "high"]
        right = f"ganger priority {' '.join(shell_quote(argument) for argument in ordered)}"
        raise Problem(f"{error}; the value comes last", right) from None
    return PRIORITIES[value] if value in PRIORITIES else int(value)


def priority_change(job: str, before: int, after: int) -> str:
    """Return `bert-7f3 has priority high; it had normal`."""
    names = {number: name for name, number in PRIORITIES.items()}
    former = "" if before == after else f"; it had {names.get(before, before)}"
    return f"{shell_quote(job)} has priority {names.get(after, after)}{former}"
