"""`ganger suspend`, `resume` and `priority`."""

import re
from typing import Any

import click

from ganger.cli import completions
from ganger.cli.bulk import for_each
from ganger.cli.exit_codes import REFUSED
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import PRIORITY, live_jobs_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import SUSPENDED
from ganger.cli.output.print_output import say, shell_quote, show
from ganger.client import Client
from ganger.model.job import ENDED, PRIORITIES

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
