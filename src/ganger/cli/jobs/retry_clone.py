"""`ganger retry` and `clone`: a job once more, as it was or with something changed."""

import os
from pathlib import Path
from typing import Any

import click

from ganger.cli.bulk import each
from ganger.cli.exit_codes import INTERRUPTED
from ganger.cli.jobs.run_submit_wait import connected, exit_code_of, follow_job, say_plan, submitted
from ganger.cli.jobs.submit_request import command_of_words, spec_of_flags
from ganger.cli.options import ended_jobs_argument, job_argument, output_option, override_options
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import quoted, say, show, show_json
from ganger.client.secret_values import secret_values

Record = dict[str, Any]


@click.command("retry")
@ended_jobs_argument
@output_option
def retry_command(jobs: tuple[str, ...], output: str) -> int:
    """Run ended jobs again: the same spec, the same copy of the code.

    Each is a new job; its id is printed on stdout, alone. A job without `code:` runs in its directory again, as that
    is now, and goes on from a checkpoint that it finds there.
    """
    client = connected()

    def tell(row: Record) -> None:
        say(submitted(row))
        show(row["id"])

    return each(jobs, client.retry, tell, output)


@click.command("clone")
@job_argument
@override_options
@click.option("--follow", is_flag=True, help="Follow the new job to its end, as `ganger run` does.")
@output_option
def clone_command(job: str, command: tuple[str, ...], follow: bool, output: str, **flags: Any) -> int:
    """Make a new job from one that lives or has ended: exactly it, or with something changed.

    It has the same spec, the same copy of the code, the same environment and secrets. Options go over its spec, as
    they do over a job file, and a CMD replaces its command. The new id is printed on stdout, alone.

    \b
      ganger clone bert
      ganger clone bert --nodes 4 --env LR=1e-4
      ganger clone bert --follow -- python train.py --lr 1e-4
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    if follow and output == "json":
        raise Problem(
            "--follow prints the job's own output: -o json goes without it", f"ganger clone {quoted(job)} -o json"
        )
    overrides = _overrides(flags, command)
    client = connected()
    after = client.server()["seq"]
    made = client.clone(job, overrides, secret_values(overrides, os.environ))
    if output == "json":
        show_json(made)
        return 0
    if not follow:
        say_plan(made)
        show(made["row"]["id"])
        return 0
    ended = follow_job(client, made, after)
    return INTERRUPTED if ended is None else exit_code_of(ended["row"], own_exit_code=False)


def _overrides(flags: dict[str, Any], command: tuple[str, ...]) -> Record:
    """What is to be otherwise. A directory of code is the caller's: the job's own `.` would mean the copy it has."""
    overrides = spec_of_flags(flags)
    if "code" in overrides:
        overrides["code"] = str(Path(overrides["code"]).expanduser().absolute())
    return overrides | ({"run": command_of_words(command)} if command else {})
