"""`ganger suspend`, `resume` and `priority`: a live job waits, goes on, or changes its place in the queue."""

import re
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.bulk import each
from ganger.cli.exit_codes import REFUSED
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import PRIORITY, live_jobs_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import SUSPENDED
from ganger.cli.output.tables import quoted, show
from ganger.model.job import ENDED, PRIORITIES

Record = dict[str, Any]

_WORDS: Final = {number: word for word, number in PRIORITIES.items()}


@click.command("suspend")
@live_jobs_argument
@output_option
def suspend_command(jobs: tuple[str, ...], output: str) -> int:
    """Suspend jobs: each may save its work, gives its nodes back, and waits for `resume`.

    A job that runs stops its processes and begins from its newest checkpoint when it is resumed; one that waits is
    passed over until then. Others may have its nodes meanwhile.
    """
    client = connected()

    def suspend(job: str) -> Record:
        row = client.job(job)["row"]
        if row["state"] in SUSPENDED:
            raise Problem(f"{row['id']} is {row['state']} already", f"ganger resume {quoted(row['id'])}", REFUSED)
        return client.change(row["id"], suspended=True)

    def tell(row: Record) -> None:
        way = "suspended" if row["state"] == "suspended" else "suspending"
        show(f"{way} {quoted(row['id'])}; ganger resume {quoted(row['id'])} lets it go on")

    return each(jobs, suspend, tell, output)


@click.command("resume")
@live_jobs_argument
@output_option
def resume_command(jobs: tuple[str, ...], output: str) -> int:
    """Resume suspended jobs: each waits for its turn, and goes on from its newest checkpoint."""
    client = connected()

    def resume(job: str) -> Record:
        row = client.job(job)["row"]
        name = quoted(row["id"])
        if row["state"] not in SUSPENDED and row["state"] not in ENDED:
            follow = f"ganger explain {name}" if row["state"] == "pending" else f"ganger logs {name} -f"
            raise Problem(f"{row['id']} is not suspended: it is {row['state']}", follow, REFUSED)
        return client.change(row["id"], suspended=False)

    def tell(row: Record) -> None:
        name = quoted(row["id"])
        show(f"resumed {name}: it is {row['state']}" + (f"; ganger explain {name}" if row["nodes"] == [] else ""))

    return each(jobs, resume, tell, output)


@click.command("priority", context_settings={"ignore_unknown_options": True})  # -100 is no option
@click.argument("words", metavar="JOB... VALUE", nargs=-1, shell_complete=completions.live_jobs)
@output_option
@click.pass_context
def priority_command(ctx: click.Context, words: tuple[str, ...], output: str) -> int:
    """Set the priority of jobs: low, normal, high, or an integer from -1000 to 1000.

    The value comes last, as in `scontrol update JobId=7 Priority=5` and `kubectl label pod NAME KEY=VALUE`: first what
    is changed, then what it becomes. Higher goes first, and may make lower give way.

    \b
      ganger priority bert high
      ganger priority bert-7f3 cv-11 -50
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    number = priority_of(ctx, words)
    client = connected()
    before: dict[str, int] = {}

    def change(job: str) -> Record:
        row = client.job(job)["row"]
        before[row["id"]] = row["priority"]
        return client.change(row["id"], priority=number)

    def tell(row: Record) -> None:
        was = before[row["id"]]
        show(
            f"{quoted(row['id'])} has priority {priority_said(number)}"
            + ("" if was == number else f"; it had {priority_said(was)}")
        )

    return each(words[:-1], change, tell, output)


def priority_of(ctx: click.Context, words: tuple[str, ...]) -> int:
    """The priority that the last of all words says."""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+", word):
            raise click.NoSuchOption(word, ctx=ctx)
    *jobs, value = words or ("",)
    if not jobs:
        what = f"{value} is to have which priority?" if value else "which job, and which priority?"
        raise Problem(what, next=f"ganger priority {quoted(value) if value else 'JOB'} high")
    try:
        PRIORITY.parse(value)
    except ValueError as error:
        swapped = re.fullmatch(rf"-?\d+|{'|'.join(PRIORITIES)}", jobs[0])
        ordered = [*jobs[1:], value, jobs[0]] if swapped else [*jobs, "high"]
        right = f"ganger priority {' '.join(quoted(word) for word in ordered)}"
        raise Problem(f"{error}; the value comes last", right) from None
    return PRIORITIES[value] if value in PRIORITIES else int(value)


def priority_said(priority: int) -> str:
    """A priority as people write it."""
    return _WORDS.get(priority, str(priority))
